"""The outbound hot path: a small HTTP/1.1 client for backends, with a pool per origin.

For everything that is not on a request's path (other nodes, downloads) httpx is the better
client. This one follows no redirects, decodes no content, reads no proxy settings and keeps
no cookies. Responses are parsed by httptools as strictly as requests (RFC 9112).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..errors import BadGateway, BadRequest, GatewayTimeout
from .connection import ClientConnection, ConnectionClosed

KEEP_IDLE = 4.0
"""Seconds that an idle connection is kept: some backends close theirs after five."""
MAX_IDLE = 256
"""Idle connections kept for one origin."""
REMEMBERED = 256
READ_LIMIT = 64 * 1024 * 1024

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


class Upstream:
    """A pool of connections to backends. One per node, used on one event loop."""

    def __init__(self, *, keep_idle: float = KEEP_IDLE) -> None:
        self._keep_idle = keep_idle
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._open: set[ClientConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._ssl: ssl.SSLContext | None = None
        self._targets: dict[str, tuple[Origin, bytes, bytes]] = {}

    async def request(
        self,
        url: str,
        method: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        connect_timeout: float = 5.0,
        first_byte_timeout: float | None = 600.0,
        idle_timeout: float | None = None,
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its response. Times in seconds.

        `url`: `http://host:port/path?query`, `https://...`, or
        `http+unix://<percent-encoded socket path>/path`. `first_byte_timeout` runs until the
        head is there, `idle_timeout` between pieces of the body.

        Raises BadRequest for a URL, method or header that cannot be sent; BadGateway
        `backend_unreachable` (nothing was sent), `backend_died` (it closed without an
        answer), `backend_invalid` (it answered no HTTP); GatewayTimeout `connect_timeout`
        (nothing was sent), `first_byte_timeout`.
        """
        origin, host, target = self._target(url)
        data = _request_head(method, host, target, headers, body) + body
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._send(
                    connection, origin, method, data, first_byte_timeout, idle_timeout
                )
            except ConnectionClosed:
                pass  # it closed while it was idle and has answered nothing
        connection = await self._connect(origin, connect_timeout)
        try:
            return await self._send(
                connection, origin, method, data, first_byte_timeout, idle_timeout
            )
        except ConnectionClosed:
            raise BadGateway(
                f"the backend at {origin} closed the connection without an answer",
                error="backend_died",
            ) from None

    async def close(self) -> None:
        """Close every connection, those in use too."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def _target(self, url: str) -> tuple[Origin, bytes, bytes]:
        """`_parse` with a memory: backends are asked for few URLs, often."""
        found = self._targets.get(url)
        if found is None:
            found = _parse(url)
            if len(self._targets) >= REMEMBERED:
                self._targets.clear()
            self._targets[url] = found
        return found

    async def _send(
        self,
        connection: ClientConnection,
        origin: Origin,
        method: str,
        data: bytes,
        first_byte_timeout: float | None,
        idle_timeout: float | None,
    ) -> UpstreamResponse:
        try:
            connection.send(data, method)
            if not await connection.wait_head(first_byte_timeout):
                raise GatewayTimeout(
                    f"the backend at {origin} gave no answer within {first_byte_timeout:g} s",
                    error="first_byte_timeout",
                )
        except BaseException:
            connection.close()
            raise
        return UpstreamResponse(self, connection, origin, idle_timeout)

    async def _connect(self, origin: Origin, seconds: float) -> ClientConnection:
        loop = asyncio.get_running_loop()

        def factory() -> ClientConnection:
            return ClientConnection(loop, self._open, str(origin))

        try:
            async with asyncio.timeout(seconds):
                if origin.socket:
                    _, connection = await loop.create_unix_connection(factory, origin.socket)
                    return connection
                context = await self._context() if origin.secure else None
                _, connection = await loop.create_connection(
                    factory, origin.host, origin.port, ssl=context
                )
                return connection
        except TimeoutError:
            raise GatewayTimeout(
                f"no connection to the backend at {origin} within {seconds:g} s",
                error="connect_timeout",
            ) from None
        except (OSError, UnicodeError) as error:
            raise BadGateway(
                f"no connection to the backend at {origin}: {_reason(error)}",
                error="backend_unreachable",
            ) from None

    async def _context(self) -> ssl.SSLContext:
        if self._ssl is None:
            self._ssl = await asyncio.to_thread(ssl.create_default_context)
        return self._ssl

    def _take(self, origin: Origin) -> ClientConnection | None:
        pool = self._idle.get(origin)
        while pool:
            connection = pool.pop()
            if connection.usable:
                return connection
        return None

    def release(self, connection: ClientConnection, origin: Origin) -> None:
        """Take back a connection whose response has been read to its end."""
        if not connection.usable:
            connection.close()
            return
        pool = self._idle.setdefault(origin, [])
        if len(pool) >= MAX_IDLE:
            pool.pop(0).close()
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        pool.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keep_idle, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long; set again while anything is idle."""
        loop = asyncio.get_running_loop()
        self._sweeper = None
        oldest = loop.time()
        limit = oldest - self._keep_idle
        for origin, pool in list(self._idle.items()):
            kept = []
            for connection in pool:
                if not connection.usable or connection.idle_since <= limit:
                    connection.close()
                else:
                    kept.append(connection)
                    oldest = min(oldest, connection.idle_since)
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        if self._idle:
            self._sweeper = loop.call_at(oldest + self._keep_idle, self._sweep)


class UpstreamResponse:
    """A response whose head is there: an async iterator of its body, as it arrives.

    Pieces that arrived together come together. A body cut short raises BadGateway
    `backend_died`, one that pauses too long GatewayTimeout `idle_timeout`. Must be read to
    its end or closed.
    """

    __slots__ = ("_connection", "_idle_timeout", "_origin", "_upstream", "headers", "status")

    def __init__(
        self,
        upstream: Upstream,
        connection: ClientConnection,
        origin: Origin,
        idle_timeout: float | None,
    ) -> None:
        self.status: int = connection.status
        self.headers: list[tuple[bytes, bytes]] = connection.headers
        self._upstream = upstream
        self._connection: ClientConnection | None = connection
        self._origin = origin
        self._idle_timeout = idle_timeout

    def header(self, name: bytes) -> bytes | None:
        """The first header `name` (lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    def __aiter__(self) -> UpstreamResponse:
        return self

    async def __anext__(self) -> bytes:
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        try:
            chunk = connection.take()
            while not chunk and not connection.complete:
                if connection.closed:
                    raise connection.failure()
                if not await connection.wait(self._idle_timeout):
                    raise GatewayTimeout(
                        f"the backend at {self._origin} was silent for {self._idle_timeout:g} s",
                        error="idle_timeout",
                    )
                chunk = connection.take()
        except BaseException:
            self._close()
            raise
        if connection.complete and not connection.buffered:
            self._connection = None
            self._upstream.release(connection, self._origin)
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read(self, limit: int = READ_LIMIT) -> bytes:
        """The whole body. Raises BadGateway `response_too_large` over `limit` bytes."""
        chunks = []
        size = 0
        async for chunk in self:
            size += len(chunk)
            if size > limit:
                self._close()
                raise BadGateway(
                    f"the answer of the backend at {self._origin} is over {limit} bytes",
                    error="response_too_large",
                )
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def aclose(self) -> None:
        """Close the connection at once if the body has not ended, else keep it for reuse."""
        self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.complete:
            self._upstream.release(connection, self._origin)
        else:
            connection.close()


def _parse(url: str) -> tuple[Origin, bytes, bytes]:
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


def _request_head(
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


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
