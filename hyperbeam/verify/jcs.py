"""Canonical JSON for what is hashed and signed: one value, one text.

Source: RFC 8785. Kept to what this project signs: no decimal numbers, ASCII keys,
integers that every JSON reader keeps exact.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from .checks import Malformed
from .reading import read_object

MAX_INTEGER = 2**53 - 1

# What passes `_check` it writes as RFC 8785 has it; atoms are the only subclass of str.
_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=str)


def encode(value: Any) -> bytes:
    """The canonical text of `value`: dicts with ASCII str keys, lists, str, int, bool, None.

    Raises ValueError for anything else, integers past 2^53 - 1 and lone surrogates included.
    """
    _check(value)
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        raise ValueError("the text has a lone surrogate in it") from None


def digest(value: Any) -> str:
    """SHA-256 of the canonical text, in lower-case hex."""
    return hashlib.sha256(encode(value)).hexdigest()


def parse(text: str | bytes, what: str = "the text") -> dict[str, Any]:
    """The object in `text`. Raises Malformed unless `text` is canonical JSON of one object."""
    value = read_object(text, what, "not-canonical")
    try:
        same = encode(value) == (text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise Malformed(f"{what}: {error}", "not-canonical") from None
    if not same:
        raise Malformed(f"{what} is not canonical JSON (RFC 8785)", "not-canonical")
    return value


def _check(value: Any) -> None:
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError(f"the integer {value} is past 2^53; write it as text")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise ValueError(f"the key {key!r} is not ASCII text")
            _check(item)
    elif isinstance(value, list):
        for item in value:
            _check(item)
    else:
        raise ValueError(f"a {type(value).__name__} has no canonical form here")
