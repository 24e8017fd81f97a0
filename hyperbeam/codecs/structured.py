"""Typed messages to and from text: every value a str or bytes, types in `ao-types`.

A TABM (upstream's "type annotated binary message") is a dict of lower-case keys to
str, bytes or TABMs. `{"n": 1, "l": [2]}` is
`{"n": "1", "l": {"1": "2", "ao-types": '.="list", 1="integer"'}, "ao-types": 'n="integer"'}`;
a Link is the key `name+link`. Private keys and the keys in RESERVED are left out.
Source: upstream dev_codec_structured, hb_link.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import BadRequest, TooLarge
from ..message import Atom, Link, Message, is_id, is_private
from .fields import (
    escape_name,
    format_dictionary,
    format_token,
    parse_dictionary,
    parse_integer,
    parse_list,
    unescape_name,
)
from .room import check_room

Tabm = dict[str, Any]

MAX_DEPTH = 128
MAX_VALUES = 11_000
"""Values at all depths of a message that is written in headers and parts, or given an id:
more of them would hold up the node for longer than a tenth of a second."""
MAX_READ = 200_000
"""Values at all depths of a message that is read from headers and parts, or from lines."""
MAX_PATH = 4096
"""Characters, as written, of the keys that lead to a value: each value's path repeats them."""
LINK_SUFFIX = "+link"
EMPTY_MESSAGE = "empty-message"
RESERVED = frozenset(
    {"ao-types", "ao-ids", "ao-body-key", "content-digest", "unsigned_id", "commitments"}
)
"""Keys about an encoding or a signature: made anew when a message is written, never data."""
_EMPTY = {"empty-binary": str, "empty-list": list, EMPTY_MESSAGE: dict}
"""Types of keys that have no value of their own: so clients write them."""
_WORDS = {"true": True, "false": False, "null": None}
ID_SIZES = frozenset({32, 42, 43})
"""Bytes of keys that are ids, whose case counts."""


def encode(message: Message, *, commitments: bool = False) -> Tabm:
    """The TABM of `message`, with the commitments of what is nested in it where that is wanted:
    ids are without. Raises BadRequest for what has no such form: two keys that differ only in
    case, infinity and NaN, more than 128 levels; TooLarge for over MAX_VALUES values."""
    check_room(message, MAX_VALUES, " in headers, nor have an id; ask for accept: application/json")
    return _encode(message, 0, RESERVED - {"commitments"} if commitments else RESERVED)


def decode(tabm: Tabm) -> Message:
    """The message of a TABM; bytes that are UTF-8 become str.

    Raises BadRequest for what cannot be read, TooLarge for over MAX_READ values.
    """
    message = _decode(tabm, 0, _Room())
    if not isinstance(message, dict):
        raise BadRequest('ao-types: .="list" stands on a message that has to be a mapping')
    return message


def normalize_key(key: str) -> str:
    """Keys are lower case, except those as long as an id (32, 42 or 43 bytes).

    Source: upstream hb_ao:normalize_key/2.
    """
    return key if len(key.encode()) in ID_SIZES else key.lower()


def encode_value(value: Any) -> tuple[str, str]:
    """Type and text of an int, float, bool, None or Atom."""
    match value:
        case bool():
            return "atom", "true" if value else "false"
        case None:
            return "atom", "null"
        case int():
            try:
                return "integer", str(value)
            except ValueError:
                raise BadRequest("an integer of over 4,300 digits has no text form") from None
        case float():
            if not math.isfinite(value):
                raise BadRequest("infinity and NaN cannot be written")
            return "float", f"{value:.20e}"
        case Atom():
            return "atom", format_token(value)
    raise BadRequest(f"a {type(value).__name__} cannot be written as a message's value")


def decode_value(type: str, text: str) -> Any:
    """The value that `text` is under a type of `ao-types`.

    Types: integer, float, atom, boolean, binary, string, token, list, map.
    """
    match type.lower():
        case "integer":
            return parse_integer(text, "integer")
        case "float":
            return _decode_float(text)
        case "atom" | "boolean" | "token":
            return _decode_atom(text)
        case "binary" | "string":
            return text
        case "list":
            return [_decode_listed(item) for item in parse_list(text, "list")]
        case "map":
            return {name: _plain(item) for name, item in parse_dictionary(text, "map").items()}
    raise BadRequest(f"ao-types: unknown type {type[:64]!r}")


def parse_types(text: str) -> dict[str, str]:
    """`ao-types` as key to type in lower case."""
    if text == EMPTY_MESSAGE:
        return {}
    return {
        unescape_name(name, "ao-types"): str(kind).lower()
        for name, kind in parse_dictionary(text, "ao-types").items()
        if isinstance(kind, str)
    }


def empty_keys(text: str) -> set[str]:
    """The keys that `ao-types` alone has: of empty text, lists and messages."""
    return {name for name, kind in parse_types(text).items() if kind in _EMPTY}


def text_of(value: bytes) -> str | bytes:
    """`value` as str where it is UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _encode(value: Message | list[Any], depth: int, nested: frozenset[str]) -> Tabm:
    if depth > MAX_DEPTH:
        raise BadRequest(f"a message may be at most {MAX_DEPTH} levels deep")
    types: dict[str, str] = {}
    if isinstance(value, list):
        value = {str(number): item for number, item in enumerate(value, 1)}
        types["."] = "list"
    tabm: Tabm = {}
    left_out = nested if depth else RESERVED
    for name, item in value.items():
        key = normalize_key(_checked(name))
        if is_private(key) or key in left_out:
            continue
        if isinstance(item, Link):
            key, item = key + LINK_SUFFIX, item.id
        if key in tabm:
            raise BadRequest(f"two keys of a message are the same but for case: {key[:64]!r}")
        match item:
            case dict() | list():
                tabm[key] = _encode(item, depth + 1, nested)
            case bytes() | bytearray() | memoryview():
                tabm[key] = bytes(item)
            case str() if not isinstance(item, Atom):
                tabm[key] = _checked(item)
            case _:
                types[key], tabm[key] = encode_value(item)
    for key in tabm:
        if key.endswith(LINK_SUFFIX) and key.removesuffix(LINK_SUFFIX) in tabm:
            raise BadRequest(f"a message has {key[:64]!r} as well as the key that it stands for")
    if types:
        tabm["ao-types"] = format_dictionary(
            (escape_name(name), types[name]) for name in sorted(types)
        )
    return tabm


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"half of a surrogate pair in {text[:64]!a}") from None
    return text


class _Room:
    """How many values a message that is being read may still have."""

    def __init__(self) -> None:
        self.left = MAX_READ

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLarge(f"a message that is read may have at most {MAX_READ:,} values")


def _decode(tabm: Tabm, depth: int, room: _Room) -> Message | list[Any]:
    if depth > MAX_DEPTH:
        raise BadRequest(f"a message may be at most {MAX_DEPTH} levels deep")
    types = _types(tabm)
    room.take(max(len(tabm), len(types)))
    message: Message = {}
    for name, value in tabm.items():
        if name == "ao-types" or is_private(name):
            continue
        key = name
        if isinstance(value, dict):
            value = _decode(value, depth + 1, room)
        elif isinstance(value, (str, bytes)):
            value = text_of(value) if isinstance(value, bytes) else value
            if name.endswith(LINK_SUFFIX) and isinstance(value, str) and is_id(value):
                key, value = name.removesuffix(LINK_SUFFIX), Link(value)
            elif name in types:
                if isinstance(value, str) and types[name] in ("list", "map"):
                    room.take(value.count(","))
                value = _decode_typed(name, types[name], value)
        if key in message:
            raise BadRequest(f"a message has both {key[:64]!r} and a link of that name")
        if types.get(key) == "list" and isinstance(value, dict):
            value = _as_list(value)  # so some clients write one of messages
        message[key] = value
    for name, kind in types.items():
        if kind in _EMPTY and name not in message and not is_private(name):
            message[name] = _EMPTY[kind]()
    return _as_list(message) if types.get(".") == "list" else message


def _types(tabm: Tabm) -> dict[str, str]:
    text = tabm.get("ao-types", "")
    if isinstance(text, bytes):
        text = text_of(text)
    if not isinstance(text, str):
        raise BadRequest("ao-types has to be text")
    return parse_types(text)


def _decode_typed(name: str, kind: str, value: str | bytes) -> Any:
    if isinstance(value, bytes):
        if kind == "binary":
            return value
        raise BadRequest(f"{name[:64]!r} is no {kind}: its bytes are not UTF-8")
    try:
        return decode_value(kind, value)
    except BadRequest as error:
        raise BadRequest(f"{name[:64]!r}: {error.detail}") from None


def typed(message: Message) -> Any:
    """A message whose texts have the types that its `ao-types` says, or the list that it is."""
    types = parse_types(message["ao-types"])
    found: Message = {}
    for name, value in message.items():
        if name == "ao-types":
            continue
        key, kind = normalize_key(name), types.get(normalize_key(name))
        if kind is not None and kind not in _EMPTY and isinstance(value, str):
            value = _decode_typed(key, kind, value)
        found[name] = value
    for name, kind in types.items():
        if kind in _EMPTY and name not in found and not is_private(name):
            found[name] = _EMPTY[kind]()
    return _as_list(found) if types.get(".") == "list" else found


def _as_list(message: Message) -> list[Any]:
    try:
        return [message[str(number)] for number in range(1, len(message) + 1)]
    except KeyError as missing:
        raise BadRequest(
            f"a list's keys run from 1 to its length, here {len(message)}: {missing} is missing"
        ) from None


def _decode_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadRequest(f"float: {text[:64]!r} is not a number") from None
    if not math.isfinite(value):
        raise BadRequest(f"float: {text[:64]!r} is not a finite number")
    return value


def _decode_atom(text: str) -> Any:
    if text[:1] == '"':
        items = parse_list(text, "atom")
        text = str(items[0]) if len(items) == 1 else text
    return _WORDS[text] if text in _WORDS else Atom(text)


def _decode_listed(item: Any) -> Any:
    """Upstream writes a typed item of such a list as the string `(ao-type-integer) 1`."""
    if isinstance(item, str) and item.startswith("(ao-type-") and ") " in item:
        kind, _, text = item.removeprefix("(ao-type-").partition(") ")
        return decode_value(kind, text)
    return _plain(item)


def _plain(item: Any) -> Any:
    if isinstance(item, Atom):
        return _WORDS.get(item, item)
    return text_of(item) if isinstance(item, bytes) else item
