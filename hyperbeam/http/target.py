"""Where an outbound request goes, and its head as it is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..errors import BadRequest

_OWN = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of the connection: written here, never taken from the caller."""
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}\Z")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_URL = re.compile(r"[!-~]+\Z")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to connect: a host and port, or the path of a unix socket."""

    secure: bool
    host: str
    port: int
    socket: str = ""

    def __str__(self) -> str:
        return self.socket or f"{self.host}:{self.port}"


def parse_url(url: str) -> tuple[Origin, bytes, bytes]:
    """Where to connect, the host header and the request target."""
    try:
        parts = urlsplit(url)
        port = parts.port if parts.scheme != "http+unix" else None
    except ValueError:
        raise BadRequest(f"{url[:200]!r} is not a URL") from None
    target = parts.path or "/"
    if parts.query:
        target = f"{target}?{parts.query}"
    if not _URL.match(url) or not target.startswith("/") or parts.fragment:
        raise BadRequest(f"{url[:200]!r} has a path or query that cannot be sent")
    if parts.scheme == "http+unix":
        path = unquote(parts.netloc)
        if not path.startswith("/") or "\0" in path:
            raise BadRequest(f"{url[:200]!r} does not name a unix socket")
        return Origin(False, "localhost", 0, path), b"localhost", target.encode("ascii")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise BadRequest(f"{url[:200]!r} is not an http, https or http+unix URL")
    secure = parts.scheme == "https"
    try:
        host = parts.netloc.encode("ascii")
    except UnicodeEncodeError:
        raise BadRequest(f"{url[:200]!r} has a host name that is not ASCII") from None
    origin = Origin(secure, parts.hostname, port or (443 if secure else 80))
    return origin, host, target.encode("ascii")


def request_head(
    method: str, host: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bytes:
    if not _METHOD.match(method):
        raise BadRequest(f"{method[:50]!r} is not an HTTP method")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target)]
    named = False
    for name, value in headers:
        lowered = name.lower()
        if lowered in _OWN:
            continue
        if lowered == b"host":
            if named:
                raise BadRequest("two host headers cannot be sent")
            named = True
        if not _NAME.match(name) or b"\n" in value or b"\r" in value or b"\0" in value:
            raise BadRequest(
                f"header {name[:100]!r} cannot be sent: its name or value is not sound"
            )
        lines.append(b"%b: %b" % (name, value))
    if not named:
        lines.insert(1, b"host: " + host)
    if body or method in _WITH_BODY:
        lines.append(b"content-length: %d" % len(body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
