"""Nested messages as one level of paths: `{"a": {"b": 1}}` is `{"a/b": "1", ...}`.

A segment with other characters than letters, digits and `-_.~@*!$&'` is percent-encoded; types
stand in `ao-types` beside the keys that they are for (`a/ao-types`), as in `structured`.
As text: a line `path: value` each; a value of several lines, or that is no text, as
`path+base64: ...`.
Source: upstream dev_codec_flat.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from ..errors import BadRequest
from ..message import Message
from . import structured
from .structured import EMPTY_MESSAGE, LINK_SUFFIX, MAX_DEPTH, Tabm

BASE64 = "+base64"
_KEPT = "~@*!$&'"
_TYPES = "ao-types"


def encode(message: Message) -> dict[str, str | bytes]:
    """Paths and values. Raises BadRequest for what has no such form (`structured.encode`)."""
    flat: dict[str, str | bytes] = {}
    _flatten(structured.encode(message), "", flat)
    return flat


def decode(flat: dict[str, Any]) -> Message:
    """The message of paths and values (str or bytes). Raises BadRequest."""
    tabm: Tabm = {}
    for path, value in flat.items():
        if not isinstance(value, str | bytes):
            raise BadRequest(f"flat@1.0: {path[:64]!r} is no text")
        parts = [_segment(part) for part in path.split("/")]
        if len(parts) > MAX_DEPTH:
            raise BadRequest(f"flat@1.0: {path[:64]!r} has over {MAX_DEPTH} levels")
        _place(tabm, parts, value, path)
    return structured.decode(_emptied(tabm))


def to_text(message: Message) -> bytes:
    """One line each. Raises BadRequest."""
    lines = []
    for path, value in sorted(encode(message).items()):
        data = value if isinstance(value, bytes) else value.encode()
        if _is_line(value):
            lines.append(f"{path}: ".encode() + data + b"\n")
        else:
            text = base64.urlsafe_b64encode(data)
            lines.append(f"{path}{BASE64}: ".encode() + text + b"\n")
    return b"".join(lines)


def from_text(data: bytes) -> Message:
    """The message of such lines. Raises BadRequest."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadRequest("flat@1.0: the text is not UTF-8") from None
    flat: dict[str, str | bytes] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        path, mark, written = line.partition(": ")
        value: str | bytes = written
        if not mark:
            raise BadRequest(f"flat@1.0: line {number} has no ': '")
        if path.endswith(BASE64):
            path, value = path.removesuffix(BASE64), _bytes(written, number)
        if path in flat:
            raise BadRequest(f"flat@1.0: {path[:64]!r} is there twice")
        flat[path] = value
    return decode(flat)


def _flatten(tabm: Tabm, before: str, flat: dict[str, str | bytes]) -> None:
    if not tabm and before:
        flat[f"{before}{_TYPES}"] = EMPTY_MESSAGE
    for key, value in tabm.items():
        path = before + _escaped(key)
        if isinstance(value, dict):
            _flatten(value, f"{path}/", flat)
        else:
            flat[path] = value


def _escaped(key: str) -> str:
    if key.endswith(LINK_SUFFIX):
        return _escaped(key.removesuffix(LINK_SUFFIX)) + LINK_SUFFIX
    return quote(key, safe=_KEPT) if key else "%"


def _segment(part: str) -> str:
    if part.endswith(LINK_SUFFIX):
        return _segment(part.removesuffix(LINK_SUFFIX)) + LINK_SUFFIX
    if part == "%":
        return ""
    if not part:
        raise BadRequest("flat@1.0: a path has an empty segment")
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"flat@1.0: {part[:64]!r} is not UTF-8 once decoded") from None


def _place(tabm: Tabm, parts: list[str], value: str | bytes, path: str) -> None:
    for part in parts[:-1]:
        tabm = tabm.setdefault(part, {})
        if not isinstance(tabm, dict):
            raise BadRequest(f"flat@1.0: {path[:64]!r} stands below a key that is no message")
    if parts[-1] in tabm:
        raise BadRequest(f"flat@1.0: {path[:64]!r} is there twice")
    tabm[parts[-1]] = value


def _emptied(tabm: Tabm) -> Tabm:
    if tabm == {_TYPES: EMPTY_MESSAGE}:
        return {}
    return {
        key: _emptied(value) if isinstance(value, dict) else value for key, value in tabm.items()
    }


def _is_line(value: str | bytes) -> bool:
    return isinstance(value, str) and "\n" not in value and "\r" not in value


def _bytes(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"flat@1.0: line {number} is no base64") from None
