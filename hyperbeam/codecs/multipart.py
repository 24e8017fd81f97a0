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

from ..errors import BadRequest
from .fields import parse_parameters, unescape_name
from .structured import normalize_key

_CRLF = b"\r\n"
_PLAIN = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+*!#$&'^`|~ @"
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `path` is where its value stands, outermost key first; empty for the inline part.

    Header names are lower case. `body` is None where no empty line ends the headers.
    """

    path: tuple[str, ...]
    headers: Mapping[str, bytes] = field(default_factory=dict)
    body: bytes | None = None


def join(parts: Iterable[Part]) -> tuple[str, bytes]:
    """Content-Type and body of `parts` in their order."""
    written = [_write(part) for part in parts]
    digest = hashlib.sha256(_CRLF.join(written)).digest()
    boundary = base64.urlsafe_b64encode(digest).rstrip(b"=")
    body = _CRLF.join(b"--" + boundary + _CRLF + part for part in written)
    return (
        f'multipart/form-data; boundary="{boundary.decode()}"',
        body + _CRLF + b"--" + boundary + b"--",
    )


def split(body: bytes, boundary: str) -> list[Part]:
    """The parts of `body`. Raises BadRequest for a body that is not closed or a part
    without a content-disposition that names it."""
    mark = b"--" + boundary.encode("utf-8", "replace")
    start = body.find(mark + _CRLF) + len(mark) + len(_CRLF)
    end = body.find(_CRLF + mark + b"--", max(start - len(_CRLF), 0))
    if start <= len(mark) or end < 0:
        raise BadRequest(f"the multipart body lacks its boundary {boundary[:72]!r} or its end")
    if end < start:
        return []
    parts = body[start:end].split(_CRLF + mark + _CRLF)
    return [_read(text, number) for number, text in enumerate(parts, 1)]


def _write(part: Part) -> bytes:
    name = "/".join(_escape(segment) for segment in part.path)
    disposition = f'form-data;name="{name}"' if part.path else "inline"
    headers = {**part.headers, "content-disposition": disposition.encode()}
    head = _CRLF.join(key.encode() + b": " + headers[key] for key in sorted(headers))
    return head if part.body is None else head + _CRLF + _CRLF + part.body


def _read(text: bytes, number: int) -> Part:
    where = f"part {number} of the multipart body"
    head, gap, body = text.partition(_CRLF + _CRLF)
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
    kind, parameters = parse_parameters(disposition.decode("utf-8", "replace"))
    path: tuple[str, ...] = ()
    if kind != "inline":
        if "name" not in parameters:
            raise BadRequest(f"{where} has no name")
        path = tuple(
            unescape_name(name, f"{where}: name") for name in parameters["name"].split("/")
        )
    return Part(path, headers, body if gap else None)


def _escape(segment: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in segment.encode())
