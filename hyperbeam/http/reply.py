"""A result as an HTTP reply: status, headers and body. The one place for header rules."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..codecs import flat, httpsig, json, msgpack
from ..codecs.structured import RESERVED
from ..errors import HyperbeamError, NotFound, TooLarge
from ..message import Atom, Link, Message, is_private, status_of, without
from . import page
from .headers import NOSNIFF, Headers, cors, device_fields, guards, header_fields
from .request import BUNDLE

Linker = Callable[[Any], str]
"""Keeps a message or list so that it can be asked for by the id that it gives."""

JSON = "json@1.0"
HTML = "text/html"
HTTPSIG = "httpsig@1.0"
MSGPACK = "msgpack@1.0"
FLAT = "flat@1.0"
CODECS = (JSON, HTTPSIG, MSGPACK, FLAT)
MEDIA = {
    "application/json": JSON, "application/msgpack": MSGPACK, "application/*": JSON,
    "text/html": HTML, "*/*": HTTPSIG, **{f"device/{codec}": codec for codec in CODECS},
}  # fmt: skip
_WRITERS: Mapping[str, tuple[bytes, Callable[[Any], bytes]]] = {
    JSON: (b"application/json", json.encode),
    MSGPACK: (b"application/msgpack", msgpack.encode),
    FLAT: (b"text/plain", lambda value: flat.to_text(httpsig.as_message(value))),
}

_ELSEWHERE = frozenset({"body", "status"})
_TYPES = (b"ao-types", b'status="integer"')


@dataclass(slots=True)
class Reply:
    """`headers` in the order they are sent, names in lower case."""

    status: int
    body: bytes = b""
    headers: Headers = field(default_factory=list)


def render(result: Any, request: Message, link: Linker | None = None) -> Reply:
    """The reply for a result that is not a Stream.

    A message with `content-type` and a `body` of text or bytes is that body, its other plain
    values are headers but for DEVICE_ONLY ones; a device gives those as
    `priv["reply-headers"]`, a list of (name, value) pairs. Anything else, and what is asked for
    as msgpack, goes by the request's `accept-codec`, then `accept`: application/json,
    application/msgpack, device/CODEC, text/html, or headers as upstream writes them
    (httpsig@1.0): there nested messages are links to what `link` keeps, unless the request says
    `accept-bundle: true`.
    """
    if isinstance(result, dict):
        content = result.get("content-type")
        body = result.get("body")
        if isinstance(content, str) and isinstance(body, str | bytes) and not _wants_all(request):
            return _as_is(result, body, request)
    return _negotiated(result, request, link)


def render_error(message: Message, error: HyperbeamError, request: Message) -> Reply:
    """The reply for an error whose message the node has made; `error.headers` are headers."""
    said = without(message, error.headers)
    if said.get("error") == NotFound.error and _bundles(request):
        # Upstream's clients know this word; for the reader there is `detail`.
        word = Atom(NotFound.error)
        # A value that no header can hold would make the body one of several parts.
        detail = str(said.get("body")).encode("ascii", "backslashreplace").decode()
        said = {"status": said["status"], "ao-result": "body", "body": word, "detail": detail}
    reply = render(said, request)
    reply.status = _status(message)
    present = {name for name, _ in reply.headers}
    fields = header_fields({"cache-control": "no-store", **error.headers})
    reply.headers += [(name, value) for name, value in fields if name not in present]
    return reply


def preflight(request: Message) -> Reply:
    """204 to OPTIONS: what a browser asks before it lets a page call another origin."""
    headers = cors(request)
    if not headers:
        return Reply(204)
    if "access-control-request-headers" not in request:
        headers.append((b"access-control-allow-headers", b"*"))
    headers.append((b"access-control-max-age", b"86400"))
    return Reply(204, b"", headers)


def _as_is(message: Message, body: str | bytes, request: Message) -> Reply:
    raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
    status = _status(message)
    headers = header_fields(message, _ELSEWHERE, trusted=False)
    given = _given(message)
    headers += device_fields(given)
    headers += guards(headers)
    headers += _described(status, raw, headers)
    headers += cors(request)
    return _sized(Reply(status, raw, headers), request, given)


def _described(status: int, body: bytes, headers: Headers) -> Headers:
    """What upstream's replies say of themselves, for a body that says nothing of it."""
    typed, digested = False, not body
    for name, _ in headers:
        typed = typed or name == b"ao-types"
        digested = digested or name == b"content-digest"
    fields = [(b"status", b"%d" % status)]
    if not typed:
        fields.append(_TYPES)
    if not digested:
        digest = base64.b64encode(hashlib.sha256(body).digest())
        fields.append((b"content-digest", b"sha-256=:%b:" % digest))
    return fields


def _negotiated(result: Any, request: Message, link: Linker | None) -> Reply:
    status = _status(result) if isinstance(result, dict) else 200
    given = _given(result) if isinstance(result, dict) else []
    codec = _codec(request)
    if codec in _WRITERS:
        kind, encode = _WRITERS[codec]
        value = result
        if codec == JSON and isinstance(result, dict):
            value = _data(result, request)
        body = encode(value)
        headers: Headers = [(b"content-type", kind), (b"codec-device", codec.encode())]
        headers += device_fields(given)
        headers += guards(headers)
        headers += _described(status, body, headers)
        if not isinstance(result, dict | list):
            headers.append((b"ao-result", b"body"))
    elif codec == HTML:
        body = page.render(result, title=request["path"])
        headers = [*header_fields(page.HEADERS), *device_fields(given), NOSNIFF]
    else:
        bundle = _bundles(request)
        if link is not None and not bundle:
            result = _linked(result, link)
        encoded, body = httpsig.encode(result, bundle=bundle, status=status)
        headers = [*header_fields(dict(encoded), trusted=False), *device_fields(given)]
        headers += guards(headers)
    headers += [(b"vary", b"accept, accept-codec"), *cors(request)]
    path = request.get("priv", {}).get("hashpath")
    if path is not None and path.isascii() and path.isprintable():
        headers.append((b"hashpath", path.encode("ascii")))
    return _sized(Reply(status, body, headers), request, given)


def _wants_all(request: Message) -> bool:
    return request.get("accept") == "application/msgpack" or request.get("accept-codec") == MSGPACK


def _bundles(request: Message) -> bool:
    return request.get(BUNDLE) in ("true", True)


def _linked(value: Any, link: Linker) -> Any:
    """`value` with links for the messages and lists in it that are not empty."""
    if isinstance(value, list):
        return [_link_to(item, link) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: item if is_private(name) or name in RESERVED else _link_to(item, link)
        for name, item in value.items()
    }


def _link_to(value: Any, link: Linker) -> Any:
    if not isinstance(value, dict | list) or not value:
        return value
    try:
        return Link(link(value))
    except TooLarge:
        return value  # it goes as a part of the body


def _given(message: Message) -> list[tuple[str, str]]:
    """The header fields that a device has put into the message's private part."""
    private = message.get("priv")
    given = private.get("reply-headers", []) if isinstance(private, dict) else []
    if not isinstance(given, list):
        raise TypeError(f"reply-headers is a {type(given).__name__}, not a list of pairs")
    return given


def _sized(reply: Reply, request: Message, given: list[tuple[str, str]]) -> Reply:
    """With the length of the body; a HEAD may be given that of the body it stands for."""
    if reply.status in (204, 304):
        reply.body = b""
        return reply
    length = b"%d" % len(reply.body)
    if given and not reply.body and request["method"] == "HEAD":
        for name, value in given:
            if name.lower() == "content-length" and value.isascii() and value.isdigit():
                length = value.encode("ascii")
    reply.headers.append((b"content-length", length))
    return reply


def _data(message: Message, request: Message) -> Message:
    """What JSON shows: nothing that only repeats the request (the codec drops private keys)."""
    names = request.get("priv", {}).get("request-headers", ())
    return {
        key: value
        for key, value in message.items()
        if not (
            key in request
            and (key in names or key in ("method", "path", "body"))
            and _same(value, request[key])
        )
    }


def _same(value: Any, own: Any) -> bool:
    if isinstance(value, str) and isinstance(own, bytes):
        return value.encode("utf-8", "replace") == own
    return type(value) is type(own) and bool(value == own)


def _status(message: Message) -> int:
    return status_of(message) or 200


def _codec(request: Message) -> str:
    name = request.get("accept-codec")
    if isinstance(name, str):
        if name not in CODECS:
            known = ", ".join(CODECS)
            detail = f"no codec {name[:100]!r}; a reply can be written with {known}"
            raise HyperbeamError(detail, status=406, error="not_acceptable", param="accept-codec")
        return name
    accept = request.get("accept")
    if not isinstance(accept, str) or accept == "*/*":
        return HTTPSIG
    return MEDIA.get(accept) or _preferred(accept)


def _preferred(accept: str) -> str:
    """By the media range with the highest weight, the first of equals (RFC 9110 12.5.1)."""
    best, best_weight = HTTPSIG, 0.0
    for part in accept.lower().split(","):
        media, _, parameters = part.partition(";")
        codec = MEDIA.get(media.strip())
        if codec is None:
            continue
        weight = 1.0
        for parameter in parameters.split(";"):
            key, _, text = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(text)
                except ValueError:
                    weight = 0.0
        if weight > best_weight:
            best, best_weight = codec, weight
    return best
