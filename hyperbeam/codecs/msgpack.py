"""Messages as msgpack, as the store keeps them too: ext types for what msgpack lacks.

Ext 1 is an Atom (UTF-8), 2 a Link (the id in ASCII), 3 an integer past 64 bits (two's
complement, big-endian). These forms never change: files outlive programs.
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from typing import Any

import msgpack

from ..errors import BadRequest
from ..message import Atom, Link, Message, public
from .structured import MAX_DEPTH

ATOM, LINK, INTEGER = 1, 2, 3
MAX_INTEGER_BITS = 14_000
"""Just under 4,300 decimal digits, the most that Python turns into text."""


def encode(value: Any) -> bytes:
    """`value` (a message or plain value) without private keys. Raises BadRequest."""
    _check_depth(value)
    return pack(public({"": value})[""])


def decode(data: bytes) -> Any:
    """What `data` says. Raises BadRequest for anything that `encode` does not write."""
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
