"""The outbound hot path: a small HTTP/1.1 client for backends, with a pool per origin.

For everything that is not on a request's path (other nodes, downloads) httpx is the better
client. This one follows no redirects, decodes no content, reads no proxy settings and keeps
no cookies. Responses are parsed by httptools as strictly as requests (RFC 9112).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from ..errors import BadGateway, GatewayTimeout
from .connection import ClientConnection, ConnectionClosed
from .response import Total, UpstreamResponse
from .target import Origin, parse_url, request_head

__all__ = ["Origin", "Upstream", "UpstreamResponse"]

KEEP_IDLE = 4.0
"""Seconds that an idle connection is kept: some backends close theirs after five."""
MAX_IDLE = 256
"""Idle connections kept for one origin."""
REMEMBERED = 256

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})


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
        total_timeout: float | None = None,
        idempotent: bool | None = None,
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its response. Times in seconds.

        `url`: `http://host:port/path?query`, `https://...`, or
        `http+unix://<percent-encoded socket path>/path`. `first_byte_timeout` runs until the
        head is there, `idle_timeout` between pieces of the body, `total_timeout` (None or 0:
        none) until the body's end.

        A request that was written to a kept connection which then closes without an answer
        is sent once more if `idempotent` (None: by the method): the backend may have begun.

        Raises BadRequest for a URL, method or header that cannot be sent; BadGateway
        `backend_unreachable` (nothing was sent), `backend_died` (it closed without an
        answer), `backend_invalid` (it answered no HTTP); GatewayTimeout `connect_timeout`
        (nothing was sent), `first_byte_timeout`, `total_timeout`.
        """
        origin, host, target = self._target(url)
        data = request_head(method, host, target, headers, body) + body
        total = None
        if total_timeout:
            total = Total(total_timeout, asyncio.get_running_loop().time() + total_timeout)
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._send(
                    connection, origin, method, data, first_byte_timeout, idle_timeout, total
                )
            except ConnectionClosed:
                if connection.written and not (
                    method in _REPEATABLE if idempotent is None else idempotent
                ):
                    raise _died(origin) from None
        connection = await self._connect(origin, connect_timeout, total)
        try:
            return await self._send(
                connection, origin, method, data, first_byte_timeout, idle_timeout, total
            )
        except ConnectionClosed:
            if not connection.written:
                raise BadGateway(
                    f"the backend at {origin} closed the connection before the request",
                    error="backend_unreachable",
                ) from None
            raise _died(origin) from None

    async def connect(self, url: str, seconds: float) -> None:
        """Open a connection to the host of `url` and close it: is anybody there?

        Raises as `request` does before it has sent anything.
        """
        (await self._connect(self._target(url)[0], seconds, None)).close()

    async def close(self) -> None:
        """Close every connection, those in use too."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def _target(self, url: str) -> tuple[Origin, bytes, bytes]:
        """`parse_url` with a memory: backends are asked for few URLs, often."""
        found = self._targets.get(url)
        if found is None:
            found = parse_url(url)
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
        total: Total | None,
    ) -> UpstreamResponse:
        seconds = first_byte_timeout
        if total is not None:
            seconds = total.limit(seconds)
        try:
            connection.send(data, method)
            if not await connection.wait_head(seconds):
                if seconds != first_byte_timeout and total is not None:
                    raise total.passed(origin)
                raise GatewayTimeout(
                    f"the backend at {origin} gave no answer within {seconds:g} s",
                    error="first_byte_timeout",
                )
        except BaseException:
            connection.close()
            raise
        return UpstreamResponse(self, connection, origin, idle_timeout, total)

    async def _connect(
        self, origin: Origin, connect_timeout: float, total: Total | None
    ) -> ClientConnection:
        loop = asyncio.get_running_loop()
        seconds = connect_timeout
        if total is not None:
            seconds = total.limit(seconds)

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
            if seconds != connect_timeout and total is not None:
                raise total.passed(origin) from None
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
                if connection.quiet():
                    return connection
                connection.close()
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


def _died(origin: Origin) -> BadGateway:
    return BadGateway(
        f"the backend at {origin} closed the connection without an answer", error="backend_died"
    )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
