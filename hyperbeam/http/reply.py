"""A result as an HTTP reply: status, headers and body. The one place for header rules."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..codecs import flat, httpsig, json, msgpack
from ..codecs.structured import RESERVED
from ..errors import HyperbeamError, NotFound, TooLarge
from ..message import Atom, Link, Message, is_private, without
from . import page
from .request import BUNDLE

Headers = list[tuple[bytes, bytes]]
Linker = Callable[[Any], str]
"""Keeps a message or list so that it can be asked for by the id that it gives."""

CORS: Headers = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-expose-headers", b"*"),
]
NOSNIFF = (b"x-content-type-options", b"nosniff")
JSON = "json@1.0"
HTML = "text/html"
EVENT_STREAM = "text/event-stream"
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
        "x-content-type-options",
        "x-request-id",
    }
)
"""Headers that this layer writes or that end at this hop: a result cannot set them."""

# They act on a browser or a proxy beyond the one reply, and any link can make a message.
DEVICE_ONLY = frozenset(
    {
        "accept-ch",
        "activate-storage-access",
        "alt-svc",
        "clear-site-data",
        "content-encoding",
        "content-location",
        "content-range",
        "content-security-policy-report-only",
        "critical-ch",
        "document-policy",
        "document-policy-report-only",
        "expect-ct",
        "link",
        "location",
        "nel",
        "origin-agent-cluster",
        "origin-trial",
        "public-key-pins",
        "public-key-pins-report-only",
        "refresh",
        "report-to",
        "reporting-endpoints",
        "service-worker-allowed",
        "set-cookie",
        "set-cookie2",
        "set-login",
        "sourcemap",
        "speculation-rules",
        "strict-transport-security",
        "timing-allow-origin",
        "use-as-dictionary",
        "www-authenticate",
        "x-sendfile",
        "x-sourcemap",
    }
)
"""Headers that a message's plain keys cannot set, only a device by `priv["reply-headers"]`."""
DEVICE_ONLY_FAMILIES = ("access-control-", "cross-origin-", "proxy-", "sec-", "x-accel-")

ORDERS = frozenset({"/~meta@1.0/claim", "/~meta@1.0/info", "/~router@1.0/routes"})
"""Paths whose POSTs change the node: no page of another origin reads their replies."""

INERT = frozenset({"application/json", "text/plain", EVENT_STREAM})
"""Media types that a browser shows without running anything of them."""

_ELSEWHERE = frozenset({"body", "status"})
_TYPES = (b"ao-types", b'status="integer"')
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END = re.compile(r"[\r\n\x00]")


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
        detail = said.get("body")
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


def cors(request: Message) -> Headers:
    """Any page may call, but not as the operator; the headers that a preflight asks for are
    allowed."""
    if _is_order(request):
        return []
    asked = request.get("access-control-request-headers")
    if isinstance(asked, str) and not _UNSAFE.search(asked):
        return [*CORS, (b"access-control-allow-headers", asked.encode())]
    return CORS.copy()


def _is_order(request: Message) -> bool:
    """Whether a request, or what a preflight asks for, is of a kind that the operator signs."""
    method = request.get("access-control-request-method", request["method"])
    return method == "POST" and request["path"].partition("?")[0] in ORDERS


def device_fields(pairs: Iterable[tuple[str, str]]) -> Headers:
    """Header fields that a device gives itself, in its order, repeats as they are.

    Left out: names that are no header name and the headers that are this layer's own.
    Values are Latin-1 where they can be, as servers and clients read a head, else UTF-8.
    Raises TypeError or ValueError for the device's fault: no text, or a line end in it.
    """
    fields: Headers = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"the reply header {name!r} is {value!r}: both have to be str")
        if _LINE_END.search(value):
            raise ValueError(f"the reply header {name!r} has a line end or NUL in it")
        name = name.lower()
        if name in OWN or is_private(name) or not _NAME.match(name) or _UNSAFE.search(value):
            continue
        try:
            raw = value.encode("latin-1")
        except UnicodeEncodeError:
            raw = value.encode("utf-8", "replace")
        fields.append((name.encode("ascii"), raw.strip(b" \t")))
    return fields


def guards(headers: Headers) -> Headers:
    """What keeps a browser from running a reply with `headers` as a page of this node."""
    kinds = [value for name, value in headers if name == b"content-type"]
    fields = [NOSNIFF]
    # Browsers take the last type of a list, so a comma is as good as another type.
    if len(kinds) != 1 or b"," in kinds[0] or _media(kinds[0]) not in INERT:
        fields.append((b"content-security-policy", b"sandbox"))
    return fields


def header_fields(
    values: Message, skip: frozenset[str] = frozenset(), *, trusted: bool = True
) -> Headers:
    """The plain values of a message as header fields.

    Left out: private keys, lists and messages, names that are no header name, values that
    would end the line (CR, LF, NUL), the headers that are this layer's own, and, unless
    `trusted`, those that only a device may give.
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
        if not trusted and (name in DEVICE_ONLY or name.startswith(DEVICE_ONLY_FAMILIES)):
            continue
        if text.isprintable() or not _UNSAFE.search(text):
            fields.append((name.encode("ascii"), text.strip().encode("utf-8", "replace")))
    return fields


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


def _media(content_type: bytes) -> str:
    return content_type.partition(b";")[0].strip().lower().decode("latin-1")


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
