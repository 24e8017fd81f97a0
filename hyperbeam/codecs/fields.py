"""The few structured fields of RFC 9651 that messages travel in, read leniently.

Upstream's `ao-types` writes names that RFC 9651 forbids (`1="integer"`, `.="list"`,
capitals), so a strict parser refuses what every HyperBEAM node sends.
Source: RFC 9651; upstream hb_structured_fields, hb_escape.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import BadRequest, TooLarge
from ..message import Atom

_BARE = r'"(?:[^"\\]|\\.)*+"|:[A-Za-z0-9+/=]*+:|[^\s,;="():][^\s,;="()]*+'
_NAME = r'[^\s,;="()]++'
_PARAMETERS = rf"(?:\s*+;\s*+{_NAME}(?:\s*+=\s*+(?:{_BARE}))?)*+"
_MEMBER = re.compile(rf"\s*+({_NAME}|(?==))(?:=({_BARE}))?({_PARAMETERS})\s*+(?:,|\Z)", re.DOTALL)
_ITEM = re.compile(rf"\s*+({_BARE})({_PARAMETERS})\s*+(?:,|\Z)", re.DOTALL)
_PARAMETER = re.compile(rf";\s*+({_NAME})(?:\s*+=\s*+({_BARE}))?", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*\Z")
_INTEGER = re.compile(r"-?[0-9]+\Z", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+\Z", re.ASCII)
_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789.-_/?&")
_ESCAPES = [chr(byte) if byte in _KEPT else f"%{byte:02x}" for byte in range(256)]
_ENCODED = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")

MAX_MEMBERS = 200_000
"""Commas of one field: with more of them reading it would block the node for seconds."""


def parse_dictionary(text: str, field: str) -> dict[str, Any]:
    """Members of a dictionary; one without a value is True. `field` names it in errors."""
    members: dict[str, Any] = {}
    for match in _scan(_MEMBER, text, field):
        name, bare, _ = match.groups()
        members[name] = True if bare is None else _bare_item(bare, field)
    return members


def parse_list(text: str, field: str) -> list[Any]:
    """Items of a list, their parameters left out."""
    return [_bare_item(match.group(1), field) for match in _scan(_ITEM, text, field)]


def parse_parameters(text: str) -> tuple[str, dict[str, str]]:
    """`form-data; name="a"` as its first word in lower case and its parameters.

    For Content-Type and Content-Disposition (RFC 9110 5.6.6).
    """
    head, semicolon, rest = text.partition(";")
    parameters = {
        match.group(1).lower(): _unquote(match.group(2) or "")
        for match in _PARAMETER.finditer(semicolon + rest)
    }
    return head.strip().lower(), parameters


def format_string(text: str) -> str:
    """`text` in quotes, quotes and backslashes escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def format_token(text: str) -> str:
    """`text` as a token where it is one, else as a string."""
    return text if _TOKEN.match(text) else format_string(text)


def format_dictionary(members: Iterable[tuple[str, str]]) -> str:
    """A dictionary whose values are strings; names are written as they are."""
    return ", ".join(f"{name}={format_string(value)}" for name, value in members)


def escape_name(name: str) -> str:
    """A key as `ao-types` names it: what is not plain lower case is percent-encoded."""
    return "".join([_ESCAPES[byte] for byte in name.encode()])


def unescape_name(name: str, field: str) -> str:
    """The reverse of `escape_name`. A long name costs no more than its length."""
    if "%" not in name:
        return name
    try:
        return _ENCODED.sub(_unescaped, name.encode()).decode()
    except UnicodeError:
        raise BadRequest(f"{field}: {name[:64]!r} is not a percent-encoded UTF-8 name") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[0].replace(b"%", b"").decode())


def _scan(pattern: re.Pattern[str], text: str, field: str) -> Iterator[re.Match[str]]:
    if text.count(",") > MAX_MEMBERS:
        raise TooLarge(f"{field} has over {MAX_MEMBERS:,} members")
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            if not text[position:].strip():
                return
            rest = text[position : position + 40]
            raise BadRequest(f"{field} cannot be read at character {position}: {rest!r}")
        yield match
        position = match.end()


def _bare_item(text: str, field: str) -> Any:
    if text[0] == '"':
        return _unquote(text)
    if text[0] == ":" and len(text) > 1 and text[-1] == ":":
        try:
            return base64.b64decode(text[1:-1])
        except binascii.Error:
            raise BadRequest(f"{field}: {text[:64]!r} is not base64") from None
    if text in ("?0", "?1"):
        return text == "?1"
    if _INTEGER.match(text):
        return parse_integer(text, field)
    if _DECIMAL.match(text):
        return float(text)
    return Atom(text)


def parse_integer(text: str, field: str) -> int:
    """A decimal integer of any size that Python reads (4,300 digits)."""
    if not _INTEGER.match(text):
        raise BadRequest(f"{field}: {text[:64]!r} is not an integer")
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{field}: an integer of {len(text)} digits is too long") from None


def _unquote(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text[:1] == '"' else text
