"""Multipart bodies: the parts that a message's values make when they are no headers.

A part is headers, and after an empty line a body. The boundary is the base64url
SHA-256 of the parts, so that equal messages have equal bytes and no part can hold it.
Source: RFC 7578, RFC 2046; upstream dev_codec_httpsig_conv.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import BadRequest, TooLarge
from .fields import parse_parameters, unescape_name
from .structured import MAX_PATH, MAX_READ, normalize_key

_CRLF = b"\r\n"
_PLAIN = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+*!#$&'^`|~ @"
)


_ESCAPES = [chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in range(256)]


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `path` is where its value stands, outermost key first; empty for the inline part.

    Header names are lower case. `body` is None where no empty line ends the headers.
    """

    path: tuple[str, ...]
    headers: Mapping[str, bytes] = field(default_factory=dict)
    body: bytes | None = None


def join(parts: Iterable[Part], inline: str) -> tuple[str, bytes]:
    """Content-Type and body of `parts` in the order of their paths; the one at `inline` has no
    name. Raises BadRequest for a name of over MAX_PATH characters."""
    written = [_write(part, part.path == (inline,)) for part in sorted(parts, key=_place)]
    digest = hashlib.sha256(_CRLF.join(written)).digest()
    boundary = base64.urlsafe_b64encode(digest).rstrip(b"=")
    body = _CRLF.join(b"--" + boundary + _CRLF + part for part in written)
    return (
        f'multipart/form-data; boundary="{boundary.decode()}"',
        body + _CRLF + b"--" + boundary + b"--",
    )


def split(body: bytes, boundary: str) -> list[Part]:
    """The parts of `body`. Raises BadRequest for a body that is not closed or a part
    without a content-disposition that names it, TooLarge for over MAX_READ headers in all."""
    mark = b"--" + boundary.encode("utf-8", "replace")
    start = body.find(mark + _CRLF) + len(mark) + len(_CRLF)
    end = body.find(_CRLF + mark + b"--", max(start - len(_CRLF), 0))
    if start <= len(mark) or end < 0:
        raise BadRequest(f"the multipart body lacks its boundary {boundary[:72]!r} or its end")
    if end < start:
        return []
    between = _CRLF + mark + _CRLF
    count = body.count(between, start, end)
    _check_count(count)
    parts: list[Part] = []
    for number, text in enumerate(body[start:end].split(between), 1):
        head, gap, rest = text.partition(_CRLF + _CRLF)
        count += head.count(_CRLF)
        _check_count(count)
        parts.append(_read(head, rest if gap else None, number))
    return parts


def _check_count(count: int) -> None:
    if count > MAX_READ:
        raise TooLarge(f"the multipart body has over {MAX_READ:,} parts and headers")


def _place(part: Part) -> str:
    if sum(map(len, part.path)) > MAX_PATH:
        raise _too_long(part)
    return "/".join(part.path)


def _too_long(part: Part) -> BadRequest:
    start = "/".join(key[:40] for key in part.path[:4])
    return BadRequest(f"a part's name has at most {MAX_PATH:,} characters: {start!r}...")


def _write(part: Part, inline: bool) -> bytes:
    name = "/".join(map(_escape, part.path))
    if len(name) > MAX_PATH:
        raise _too_long(part)
    disposition = f'form-data;name="{name}"' if not inline else "inline"
    headers = {**part.headers, "content-disposition": disposition.encode()}
    head = _CRLF.join(key.encode() + b": " + headers[key] for key in sorted(headers))
    return head if part.body is None else head + _CRLF + _CRLF + part.body


def _read(head: bytes, body: bytes | None, number: int) -> Part:
    where = f"part {number} of the multipart body"
    headers: dict[str, bytes] = {}
    for line in filter(None, head.split(_CRLF)):
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadRequest(f"{where} has a header without a colon")
        key = normalize_key(name.decode("utf-8", "replace").strip())
        if key in headers:
            raise BadRequest(f"{where} has {key[:64]!r} twice")
        headers[key] = value.removeprefix(b" ")
    disposition = headers.pop("content-disposition", None)
    if disposition is None:
        raise BadRequest(f"{where} has no content-disposition")
    if len(disposition) > 2 * MAX_PATH:
        raise BadRequest(f"{where} has a content-disposition of {len(disposition):,} bytes")
    kind, parameters = parse_parameters(disposition.decode("utf-8", "replace"))
    path: tuple[str, ...] = ()
    if kind != "inline":
        if "name" not in parameters:
            raise BadRequest(f"{where} has no name")
        if len(parameters["name"]) > MAX_PATH:
            raise BadRequest(f"{where} has a name of over {MAX_PATH:,} characters")
        path = tuple(
            unescape_name(name, f"{where}: name") for name in parameters["name"].split("/")
        )
    return Part(path, headers, body)


def _escape(segment: str) -> str:
    return "".join([_ESCAPES[byte] for byte in segment.encode()])
