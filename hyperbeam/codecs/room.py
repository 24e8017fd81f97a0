"""How much a message may be where it is written: one value may stand in it any number of times."""

from __future__ import annotations

from typing import Any

from ..errors import TooLarge

MAX_WRITTEN = 1_000_000
"""Values of a message that is written."""
MAX_TEXT = 64 * 1024 * 1024
"""Characters and bytes of all its keys, texts and bytes."""


def check_room(value: Any, values: int = MAX_WRITTEN, way_out: str = "") -> None:
    """Raise TooLarge for what is over `values` values, or over MAX_TEXT of text."""
    waiting = [value]
    left, text = values, MAX_TEXT
    while waiting:
        one = waiting.pop()
        if isinstance(one, str | bytes | bytearray | memoryview):
            text -= len(one)
        elif isinstance(one, dict):
            left -= len(one)
            text -= sum(map(len, one))
            waiting.extend(one.values())
        elif isinstance(one, list):
            left -= len(one)
            waiting.extend(one)
        if left < 0:
            raise TooLarge(f"a message of over {values:,} values cannot be written{way_out}")
        if text < 0:
            raise TooLarge(f"a message of over {MAX_TEXT >> 20} MiB of text cannot be written")
