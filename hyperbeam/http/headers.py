"""Header fields of replies: which of them a result may set, and what guards a browser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from ..message import Message, is_private

Headers = list[tuple[bytes, bytes]]

CORS: Headers = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-expose-headers", b"*"),
]
NOSNIFF = (b"x-content-type-options", b"nosniff")
EVENT_STREAM = "text/event-stream"

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

ORDERS = (("meta@1.0", "claim"), ("meta@1.0", "info"), ("router@1.0", "routes"))
"""Devices and keys whose POSTs change the node: no page of another origin reads their replies."""

INERT = frozenset({"application/json", "text/plain", EVENT_STREAM})
"""Media types that a browser shows without running anything of them."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END = re.compile(r"[\r\n\x00]")


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
    if method != "POST":
        return False
    # One path can be written in many ways.
    path = unquote(request["path"].partition("?")[0]).lower()
    return any(device in path and called in path for device, called in ORDERS)


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


def _media(content_type: bytes) -> str:
    return content_type.partition(b";")[0].strip().lower().decode("latin-1")
