"""What a program printed: the JSON that it ends with, and words of it that a log may show."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

MAX_TRIES = 64
"""Lines, counted from the end, of which each may begin the answer."""
MAX_PARTS = 20_000
"""Braces, brackets and commas of an answer: more of them would hold up the whole process."""
MAX_SHOWN = 300

_BEGIN = re.compile(r"(?:^|[\r\n])[ \t]*(?=\{)")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)


def last_object(output: bytes) -> dict[str, Any] | None:
    """The JSON object that `output` ends with; lines of a log may stand before it.

    Takes at most MAX_TRIES parses of at most MAX_PARTS parts, whatever the output.
    """
    text = output.decode("utf-8", "replace").rstrip()
    if not text.endswith("}"):
        return None
    starts = deque((found.end() for found in _BEGIN.finditer(text)), maxlen=MAX_TRIES)
    decoder = json.JSONDecoder()
    for start in reversed(starts):
        if sum(text.count(part, start) for part in "{[,") > MAX_PARTS:
            return None
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            # Each line of an answer that begins an object can be read: this one is none of it.
            return None
        if end == len(text):
            return value if isinstance(value, dict) else None
    return None


def words(said: bytes | str) -> str:
    """The last MAX_SHOWN characters in one line, without escapes and control characters."""
    if isinstance(said, bytes):
        said = said[-16 * MAX_SHOWN :].decode("utf-8", "replace")
    plain = _ESCAPE.sub("", said[-4 * MAX_SHOWN :])
    shown = "".join(char if char.isprintable() else " " for char in plain)
    return " ".join(shown.split())[-MAX_SHOWN:]
