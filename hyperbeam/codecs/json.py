"""Messages as JSON.

Written: keys sorted, no spaces, bytes as text where they are UTF-8 and else in base64url
without padding (JSON cannot tell it from text), an Atom as text, a Link as `"key+link": id`.
Read: RFC 8259 and no more: no NaN, no infinity, no key twice, no half surrogate pairs.
Source: RFC 8259; upstream dev_codec_json.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

from ..errors import BadRequest, TooLarge
from ..message import Link, is_private
from .structured import LINK_SUFFIX

MAX_DEPTH = 128
MAX_ITEMS = 200_000

# A string that nothing closes runs to the end, so that one pass suffices whatever it holds.
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def encode(value: Any) -> bytes:
    """`value` (a message or plain value) as JSON in UTF-8, without private keys.

    Raises BadRequest for infinity and NaN, for over 128 levels and for what is no message.
    """
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

    Raises BadRequest with the position of the error, for over 128 levels too, and
    TooLarge for over 200,000 items: those take seconds to read.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise BadRequest("invalid JSON: it starts with a byte-order mark")
    brackets = data.count(b"[") + data.count(b"{")
    if brackets + data.count(b",") > MAX_ITEMS:
        raise TooLarge(f"the JSON has over {MAX_ITEMS:,} items")
    if brackets > MAX_DEPTH:
        _check_depth(data)
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
        )
    except UnicodeDecodeError as error:
        raise BadRequest(f"invalid JSON: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno} (character {error.pos})"
        raise BadRequest(f"invalid JSON at {where}: {error.msg}") from None
    except ValueError:
        raise BadRequest("invalid JSON: an integer of over 4,300 digits") from None
    if _SURROGATE.search(data):
        _check_surrogates(value)
    return value


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


def _check_depth(data: bytes) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        match data[match.start() : match.start() + 1]:
            case b"[" | b"{":
                depth += 1
                if depth > MAX_DEPTH:
                    raise BadRequest(
                        f"invalid JSON: over {MAX_DEPTH} levels deep at byte {match.start()}"
                    )
            case b"]" | b"}":
                depth -= 1


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("invalid JSON: half of a surrogate pair in a string") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"invalid JSON: the key {name[:64]!a} is there twice")
            seen.add(name)
    return members


def _refuse_constant(name: str) -> Any:
    raise BadRequest(f"invalid JSON: {name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequest(f"invalid JSON: the number {text[:64]} is too large")
    return value
