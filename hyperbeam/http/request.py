"""An HTTP request as one message."""

from __future__ import annotations

from starlette.types import Scope

from ..access.proxies import Proxies
from ..message import Message, is_private

BUNDLE = "accept-bundle"
"""Whether nested messages come as they are, not as links; false unless the head says it."""
INPUT = "signature-input"
"""The header that signed requests have."""
CREDENTIALS = frozenset({"authorization", "cookie", "x-api-key"})
HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def build(scope: Scope, body: bytes, proxies: Proxies | None = None) -> Message:
    """The message of a request: `method`, `path` (raw target), `body` (bytes), headers as keys.

    Headers that describe the connection are left out, `content-length` too where nothing is
    signed; credentials stand only under `priv["headers"]`. A header can set neither of the keys
    named above nor a private one. `priv["client"]` is the peer's address, or what trusted
    `proxies` say it is, `priv["target"]` the path as it was sent, `priv["host"]` the Host header,
    `priv["path-header"]` and `priv["body-header"]` are headers of these names,
    `priv["request-headers"]` the names that came from the head.
    """
    headers: dict[str, str] = {}
    credentials: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("ascii")
        try:
            value = raw_value.decode()
        except UnicodeDecodeError:
            value = raw_value.decode("latin-1")
        if name in HOP_BY_HOP or is_private(name):
            continue
        target = credentials if name in CREDENTIALS or name.startswith("proxy-") else headers
        if name in target:
            separator = "; " if name == "cookie" else ", "
            target[name] = f"{target[name]}{separator}{value}"
        else:
            target[name] = value
    if INPUT not in headers:
        headers.pop("content-length", None)
    client = scope["client"]
    peer = client[0] if client else ""
    query = scope["query_string"]
    path = scope["raw_path"]
    message: Message = dict(headers)
    if BUNDLE not in message:
        message[BUNDLE] = False
    message["method"] = scope["method"]
    said = {f"{name}-header": message[name] for name in ("body", "path") if name in message}
    message["path"] = target = (path + b"?" + query if query else path).decode("ascii")
    message["body"] = body
    message["priv"] = {
        "headers": credentials,
        "client": peer if proxies is None else proxies.client(peer, headers),
        "request-headers": frozenset((*headers, BUNDLE)),
        "target": target,
        "host": message.get("host", ""),
    }
    if said:
        message["priv"].update(said)
    return message
