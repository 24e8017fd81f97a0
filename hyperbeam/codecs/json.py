"""Messages as JSON.

Written: keys sorted, no spaces, bytes as text where they are UTF-8 and else in base64url
without padding (JSON cannot tell it from text), an Atom as text, a Link as `"key+link": id`.
Read: RFC 8259 and no more: no NaN, no infinity, no key twice, no half surrogate pairs. Texts
that `ao-types` beside them gives a type are of that type: so upstream writes messages.
Source: RFC 8259; upstream dev_codec_json.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from ..errors import BadRequest
from ..message import Link, is_private
from .json_reader import MAX_DEPTH, parse
from .room import check_room
from .structured import LINK_SUFFIX, typed

_TYPES = b'"ao-types"'


def encode(value: Any) -> bytes:
    """`value` (a message or plain value) as JSON in UTF-8, without private keys.

    Raises BadRequest for infinity and NaN, for over 128 levels and for what is no message,
    TooLarge for what `check_room` has no room for.
    """
    check_room(value)
    try:
        return json.dumps(
            _plain(value, 0),
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,
        ).encode()
    except UnicodeEncodeError:
        raise BadRequest("JSON cannot hold half of a surrogate pair") from None
    except ValueError:
        raise BadRequest("an integer of over 4,300 digits has no text form") from None


def decode(data: bytes) -> Any:
    """What the JSON text `data` (UTF-8) says; integers are exact.

    Raises BadRequest with what is wrong and where, and TooLarge for over 200,000 items:
    those take seconds to read.
    """
    value = parse(data)
    return _typed(value) if _TYPES in data else value


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if not isinstance(value, dict):
        return value
    message = {name: _typed(item) for name, item in value.items()}
    types = message.get("ao-types")
    return typed(message) if isinstance(types, str) else message


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadRequest(f"a message may be at most {MAX_DEPTH} levels deep")
    match value:
        case dict():
            members: dict[str, Any] = {}
            for name, item in value.items():
                if is_private(name):
                    continue
                key = name + LINK_SUFFIX if isinstance(item, Link) else name
                if key in members:
                    raise BadRequest(f"a message has both {key[:64]!r} and a link of that name")
                members[key] = _plain(item, depth + 1)
            return members
        case list():
            return [_plain(item, depth + 1) for item in value]
        case bytes() | bytearray() | memoryview():
            return _text(bytes(value))
        case Link():
            return value.id
        case float():
            if not math.isfinite(value):
                raise BadRequest("JSON has no infinity and no NaN")
            return value
        case None | str() | bool() | int():
            return value
    raise BadRequest(f"a {type(value).__name__} cannot be written as JSON")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
