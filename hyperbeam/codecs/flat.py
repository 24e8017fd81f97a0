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
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from ..errors import BadRequest, TooLarge
from ..message import Message
from . import structured
from .fields import unescape_name
from .structured import EMPTY_MESSAGE, LINK_SUFFIX, MAX_DEPTH, MAX_PATH, MAX_READ, Tabm

BASE64 = "+base64"
_KEPT = "~@*!$&'"
_TYPES = "ao-types"


def encode(message: Message) -> dict[str, str | bytes]:
    """Paths and values.

    Raises BadRequest for what has no such form (`structured.encode`) and for a path of over
    MAX_PATH characters, TooLarge for over `structured.MAX_VALUES` values or MAX_READ segments.
    """
    flat: dict[str, str | bytes] = {}
    _flatten(structured.encode(message, commitments=True), "", flat)
    _check_segments(flat)
    return flat


def decode(flat: dict[str, Any]) -> Message:
    """The message of paths and values (str or bytes).

    Raises BadRequest, and TooLarge for over MAX_READ segments of paths.
    """
    tabm: Tabm = {}
    _check_segments(flat)
    for path, value in flat.items():
        if not isinstance(value, str | bytes):
            raise BadRequest(f"flat@1.0: {path[:64]!r} is no text")
        _checked(path)
        parts = [_segment(part) for part in path.split("/")]
        if len(parts) > MAX_DEPTH + 1:
            raise BadRequest(f"flat@1.0: {path[:64]!r} has over {MAX_DEPTH} levels")
        _place(tabm, parts, value, path)
    return structured.decode(_emptied(tabm))


def to_text(message: Message) -> bytes:
    """One line each. Raises BadRequest."""
    lines = []
    for path, value in sorted(encode(message).items()):
        data = value if isinstance(value, bytes) else value.encode()
        if _is_line(data):
            lines.append(f"{path}: ".encode() + data + b"\n")
        else:
            text = base64.urlsafe_b64encode(data)
            lines.append(f"{path}{BASE64}: ".encode() + text + b"\n")
    return b"".join(lines)


def from_text(data: bytes) -> Message:
    """The message of such lines. Raises BadRequest, and TooLarge for over MAX_READ lines."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadRequest("flat@1.0: the text is not UTF-8") from None
    if text.count("\n") > MAX_READ:
        raise TooLarge(f"flat@1.0: the text has over {MAX_READ:,} lines")
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
        flat[_checked(f"{before}{_TYPES}")] = EMPTY_MESSAGE
    for key, value in tabm.items():
        path = _checked(before + _escaped(_checked(key)))
        if isinstance(value, dict):
            _flatten(value, f"{path}/", flat)
        else:
            flat[path] = value


def _check_segments(paths: Iterable[str]) -> None:
    if sum(path.count("/") + 1 for path in paths) > MAX_READ:
        raise TooLarge(f"flat@1.0: the paths have over {MAX_READ:,} segments")


def _checked(path: str) -> str:
    if len(path) > MAX_PATH:
        raise BadRequest(f"flat@1.0: a path has at most {MAX_PATH:,} characters: {path[:64]!r}")
    return path


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
    return unescape_name(part, "flat@1.0")


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


def _is_line(data: bytes) -> bool:
    return b"\n" not in data and b"\r" not in data and isinstance(structured.text_of(data), str)


def _bytes(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"flat@1.0: line {number} is no base64") from None
