"""A result as an HTTP reply: status, headers and body. The one place for header rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..codecs import httpsig, json
from ..errors import HyperbeamError
from ..message import Message, is_private, without
from . import page

Headers = list[tuple[bytes, bytes]]

CORS: Headers = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-expose-headers", b"*"),
]
JSON = "json@1.0"
HTML = "text/html"
HTTPSIG = "httpsig@1.0"
CODECS = (JSON, HTTPSIG)
MEDIA = {"application/json": JSON, "application/*": JSON, "text/html": HTML, "*/*": HTTPSIG}

OWN = frozenset(
    {
        "access-control-allow-headers",
        "access-control-allow-methods",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that this layer writes or that end at this hop: a result cannot set them."""

_ELSEWHERE = frozenset({"body", "status"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(slots=True)
class Reply:
    """`headers` in the order they are sent, names in lower case."""

    status: int
    body: bytes = b""
    headers: Headers = field(default_factory=list)


def render(result: Any, request: Message) -> Reply:
    """The reply for a result that is not a Stream.

    A message with `content-type` and a `body` of text or bytes is that body, its other
    plain values are headers. Anything else goes by the request's `accept-codec`, then
    `accept`: application/json, text/html, or headers as upstream writes them (httpsig@1.0).
    """
    if isinstance(result, dict):
        content = result.get("content-type")
        body = result.get("body")
        if isinstance(content, str) and isinstance(body, str | bytes):
            return _as_is(result, body, request)
    return _negotiated(result, request)


def render_error(message: Message, error: HyperbeamError, request: Message) -> Reply:
    """The reply for an error whose message the node has made; `error.headers` are headers."""
    reply = render(without(message, error.headers), request)
    reply.status = _status(message)
    present = {name for name, _ in reply.headers}
    fields = header_fields({"cache-control": "no-store", **error.headers})
    reply.headers += [(name, value) for name, value in fields if name not in present]
    return reply


def preflight(request: Message) -> Reply:
    """204 to OPTIONS: what a browser asks before it lets a page call another origin."""
    headers = cors(request)
    if "access-control-request-headers" not in request:
        headers.append((b"access-control-allow-headers", b"*"))
    headers.append((b"access-control-max-age", b"86400"))
    return Reply(204, b"", headers)


def cors(request: Message) -> Headers:
    """Any page may call; the headers that a preflight asks for are allowed."""
    asked = request.get("access-control-request-headers")
    if isinstance(asked, str) and not _UNSAFE.search(asked):
        return [*CORS, (b"access-control-allow-headers", asked.encode())]
    return CORS.copy()


def header_fields(values: Message, skip: frozenset[str] = frozenset()) -> Headers:
    """The plain values of a message as header fields.

    Left out: private keys, lists and messages, names that are no header name, values that
    would end the line (CR, LF, NUL), and the headers that are this layer's own.
    """
    fields: Headers = []
    for name, value in values.items():
        if name in skip or name in OWN:
            continue
        if isinstance(value, str):
            text: str = value
        elif isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, int | float):
            text = str(value)
        else:
            continue
        if is_private(name) or not _NAME.match(name):
            continue
        if text.isprintable() or not _UNSAFE.search(text):
            fields.append((name.encode("ascii"), text.strip().encode("utf-8", "replace")))
    return fields


def _as_is(message: Message, body: str | bytes, request: Message) -> Reply:
    raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
    headers = header_fields(message, _ELSEWHERE)
    headers += cors(request)
    return _sized(Reply(_status(message), raw, headers))


def _negotiated(result: Any, request: Message) -> Reply:
    status = _status(result) if isinstance(result, dict) else 200
    codec = _codec(request)
    fields: Message
    if codec == JSON:
        value = _data(result, request) if isinstance(result, dict) else result
        fields, body = {"content-type": "application/json"}, json.encode(value)
    elif codec == HTML:
        body = page.render(result, title=request["path"])
        fields = {"content-type": "text/html; charset=utf-8", **page.HEADERS}
    else:
        bundle = request.get("accept-bundle") == "true"
        encoded, body = httpsig.encode(result, bundle=bundle, status=status)
        fields = dict(encoded)
    headers = [*header_fields(fields), (b"vary", b"accept, accept-codec"), *cors(request)]
    return _sized(Reply(status, body, headers))


def _sized(reply: Reply) -> Reply:
    if reply.status in (204, 304):
        reply.body = b""
    else:
        reply.headers.append((b"content-length", b"%d" % len(reply.body)))
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
    status = message.get("status")
    if isinstance(status, int) and not isinstance(status, bool) and 200 <= status < 600:
        return status
    return 200


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
