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
_SCHEMES = frozenset({"http", "https", "http+unix"})
_USER = re.compile(r"//[^/?#]*@")
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
        raise BadRequest(f"{_shown(url)} is not a URL") from None
    if parts.scheme not in _SCHEMES:
        raise BadRequest(f"{_shown(url)} does not begin with http://, https:// or http+unix://")
    if parts.scheme != "http+unix" and "@" in parts.netloc:
        raise BadRequest(f"{_shown(url)} has a user or password in it, which cannot be sent")
    target = parts.path or "/"
    if parts.query:
        target = f"{target}?{parts.query}"
    if not _URL.match(url) or not target.startswith("/") or parts.fragment:
        raise BadRequest(f"{_shown(url)} has a path or query that cannot be sent")
    if parts.scheme == "http+unix":
        path = unquote(parts.netloc)
        if not path.startswith("/") or "\0" in path:
            raise BadRequest(f"{_shown(url)} does not name a unix socket")
        return Origin(False, "localhost", 0, path), b"localhost", target.encode("ascii")
    if not parts.hostname:
        raise BadRequest(f"{_shown(url)} names no host")
    secure = parts.scheme == "https"
    try:
        host = parts.netloc.encode("ascii")
    except UnicodeEncodeError:
        raise BadRequest(f"{_shown(url)} has a host name that is not ASCII") from None
    origin = Origin(secure, parts.hostname, port or (443 if secure else 80))
    return origin, host, target.encode("ascii")


def _shown(url: str) -> str:
    """`url` for a message: no user, no password."""
    return repr(_USER.sub("//", url)[:200])


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
