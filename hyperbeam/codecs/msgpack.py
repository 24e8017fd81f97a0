"""Messages as msgpack, as the store keeps them too: ext types for what msgpack lacks.

Ext 1 is an Atom (UTF-8), 2 a Link (the id in ASCII), 3 an integer past 64 bits (two's
complement, big-endian). These forms never change: files outlive programs.
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from typing import Any

import msgpack

from ..errors import BadRequest, TooLarge
from ..message import Atom, Link, Message, public
from .room import check_room
from .structured import MAX_DEPTH, MAX_READ

ATOM, LINK, INTEGER = 1, 2, 3
MAX_INTEGER_BITS = 14_000
"""Just under 4,300 decimal digits, the most that Python turns into text."""


def encode(value: Any) -> bytes:
    """`value` (a message or plain value) without private keys. Raises BadRequest, and TooLarge
    for what `check_room` has no room for."""
    check_room(value)
    _check_depth(value)
    return pack(public({"": value})[""])


def decode(data: bytes) -> Any:
    """What `data` says. Raises BadRequest for anything that `encode` does not write, TooLarge
    for over MAX_READ keys and values: a byte of text can be a hundred of memory."""
    if len(data) > MAX_READ and _has_more_than(MAX_READ, data):
        raise TooLarge(f"the msgpack has over {MAX_READ:,} keys and values")
    try:
        value = unpack(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the text is no msgpack of a message: {str(error)[:200]}") from None
    _check_depth(value)
    return value


def pack(value: Any) -> bytes:
    """The bytes of a value. Raises BadRequest for what is no message value."""
    try:
        packed: bytes = msgpack.packb(value, default=_extended, strict_types=True)
    except UnicodeEncodeError:
        raise BadRequest("a text with half a surrogate pair cannot be stored") from None
    return packed


def unpack(data: bytes) -> Any:
    """The value in `data`. Raises ValueError for anything that `pack` does not write."""
    try:
        value = msgpack.unpackb(
            data, object_pairs_hook=_message, list_hook=_checked, ext_hook=_value_of
        )
        return _checked([value])[0]
    except msgpack.UnpackException as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _extended(value: Any) -> Any:
    if isinstance(value, Atom):
        return msgpack.ExtType(ATOM, value.encode())
    if isinstance(value, Link):
        return msgpack.ExtType(LINK, value.id.encode())
    if isinstance(value, int):
        size = value.bit_length()
        if size > MAX_INTEGER_BITS:
            raise BadRequest(f"an integer of {size} bits; the limit is {MAX_INTEGER_BITS}")
        return msgpack.ExtType(INTEGER, value.to_bytes(size // 8 + 1, "big", signed=True))
    # Members of enums, numbers of numpy's and the like: as what they are to Python.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return b"".join([value])
    raise BadRequest(
        f"a {type(value).__name__} cannot be stored: a message's values are str, bytes, int, "
        "float, bool, None, list, message, Atom and Link"
    )


def _value_of(code: int, payload: bytes) -> Any:
    if code == ATOM:
        return Atom(payload.decode())
    if code == LINK:
        return Link(payload.decode())
    if code == INTEGER and len(payload) * 8 <= MAX_INTEGER_BITS + 8:
        return int.from_bytes(payload, "big", signed=True)
    raise ValueError(f"ext type {code} of {len(payload)} bytes")


def _message(pairs: list[tuple[Any, Any]]) -> Message:
    message = dict(pairs)
    if not all(type(key) is str for key in message):
        raise ValueError("a key that is no text")
    _checked(message.values())
    return message


def _checked(values: Any) -> Any:
    # Ext type -1 does not pass through `ext_hook`.
    if any(type(value) is msgpack.Timestamp for value in values):
        raise ValueError("ext type -1")
    return values


def _has_more_than(count: int, data: bytes) -> bool:
    """Whether `data` has more than `count` values, keys and containers among them. Looks at
    their first bytes alone; says False where they cannot be read."""
    position = 0
    for _ in range(count):
        if position >= len(data):
            return False
        first = data[position]
        position += 1
        if 0xA0 <= first < 0xC0:
            position += first & 0x1F
        elif first in _SIZED:
            size, more = _SIZED[first]
            position += size + more + int.from_bytes(data[position : position + size])
        else:
            position += _FIXED.get(first, 0)
    return position < len(data)


_SIZED = {
    **{0xC4 + n: (1 << n, 0) for n in range(3)},
    **{0xC7 + n: (1 << n, 1) for n in range(3)},
    **{0xD9 + n: (1 << n, 0) for n in range(3)},
}
"""bin, ext and str: bytes of their length, and how many more come before what it counts."""
_FIXED = {
    **{first + n: 1 << n for first in (0xCC, 0xD0) for n in range(4)},
    **dict(zip((0xCA, 0xCB, 0xDC, 0xDD, 0xDE, 0xDF), (4, 8, 2, 4, 2, 4), strict=True)),
    **{0xD4 + n: 1 + (1 << n) for n in range(5)},
}
"""Bytes after the first of numbers, short ext types, and the counts of arrays and maps."""


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise BadRequest(f"a message may be at most {MAX_DEPTH} levels deep")
