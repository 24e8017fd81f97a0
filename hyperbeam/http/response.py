"""The body of an outbound request's response, and the time that it may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadGateway, GatewayTimeout
from .connection import ClientConnection
from .target import Origin

if TYPE_CHECKING:
    from .upstream import Upstream

READ_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Total:
    """The time that a request may take altogether: `seconds`, up to the loop's time `until`."""

    seconds: float
    until: float

    def limit(self, seconds: float | None) -> float:
        """`seconds`, or what is left where that is less."""
        left = self.until - asyncio.get_running_loop().time()
        return left if seconds is None or left < seconds else seconds

    def passed(self, origin: Origin) -> GatewayTimeout:
        return GatewayTimeout(
            f"the backend at {origin} took more than {self.seconds:g} s altogether",
            error="total_timeout",
        )


class UpstreamResponse:
    """A response whose head is there: an async iterator of its body, as it arrives.

    Pieces that arrived together come together. A body cut short raises BadGateway
    `backend_died`, one that pauses too long GatewayTimeout `idle_timeout`, one that takes too
    long altogether `total_timeout`. Must be read to its end or closed.
    """

    __slots__ = (
        "_connection", "_idle_timeout", "_origin", "_total", "_upstream", "headers", "status",
    )  # fmt: skip

    def __init__(
        self,
        upstream: Upstream,
        connection: ClientConnection,
        origin: Origin,
        idle_timeout: float | None,
        total: Total | None = None,
    ) -> None:
        self.status: int = connection.status
        self.headers: list[tuple[bytes, bytes]] = connection.headers
        self._upstream = upstream
        self._connection: ClientConnection | None = connection
        self._origin = origin
        self._idle_timeout = idle_timeout
        self._total = total

    def header(self, name: bytes) -> bytes | None:
        """The first header `name` (lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    def __aiter__(self) -> UpstreamResponse:
        return self

    async def __anext__(self) -> bytes:
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        total = self._total
        seconds = self._idle_timeout
        try:
            if total is not None:
                seconds = total.limit(seconds)
                if seconds <= 0:
                    raise total.passed(self._origin)
            chunk = connection.take()
            while not chunk and not connection.complete:
                if connection.closed:
                    raise connection.failure()
                if not await connection.wait(seconds):
                    if seconds != self._idle_timeout and total is not None:
                        raise total.passed(self._origin)
                    raise GatewayTimeout(
                        f"the backend at {self._origin} was silent for {seconds:g} s",
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
