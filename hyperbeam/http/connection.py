"""One outbound connection: requests written, responses parsed, never more read than wanted."""

from __future__ import annotations

import asyncio
import select
from typing import cast

import httptools

from ..errors import BadGateway, HyperbeamError

HEAD_LIMIT = 64 * 1024
"""Bytes of a response's head (interim responses included), and of trailers or chunk
extensions in a row."""
HEADER_COUNT = 200
WINDOW = 64 * 1024
"""Unread bytes of body over which the connection reads no further."""


class ConnectionClosed(Exception):
    """The connection ended before any byte of a response."""


class ClientConnection(asyncio.Protocol):
    """One response at a time: `send`, `wait_head`, then `take` and `wait` until `complete`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: set[ClientConnection],
        name: str,
    ) -> None:
        self.idle_since = 0.0
        self.closed = False
        self._loop = loop
        self._connections = connections
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._busy = False
        self._poll: select.poll | None = None
        self._reset("")

    def _reset(self, method: str) -> None:
        self._method = method
        self.written = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self._head_done = False
        self._keep_alive = False
        self._until_close = False
        self._received = 0
        self._framing = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: HyperbeamError | None = None

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return not self.closed and not self._busy

    @property
    def buffered(self) -> bool:
        return self._size > 0

    def send(self, data: bytes, method: str) -> None:
        """Write a whole request."""
        if self._transport is None or self.closed:
            raise ConnectionClosed
        self._reset(method)
        self._busy = True
        self._parser = httptools.HttpResponseParser(self)
        self.written = True
        self._transport.write(data)

    def quiet(self) -> bool:
        """Whether nothing has come on an idle connection, its end included, as of this moment.

        The event loop may not have looked since; what is written to a connection that the
        other side has closed would be lost.
        """
        if self._poll is None:
            transport = self._transport
            sock = transport.get_extra_info("socket") if transport is not None else None
            if sock is None:
                return False
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        return not self._poll.poll(0)

    async def wait_head(self, seconds: float | None) -> bool:
        """Wait for the head; False if it did not come in time.

        Raises ConnectionClosed if the connection ended before any byte, BadGateway later.
        """
        at = None if seconds is None else self._loop.time() + seconds
        while not self._head_done:
            if self.closed:
                if self._received or self._error is not None:
                    raise self.failure()
                raise ConnectionClosed
            if not await self._wait_until(at):
                return False
        return True

    async def wait(self, seconds: float | None) -> bool:
        """Wait until something has arrived or the connection has ended; False: too late."""
        return await self._wait_until(None if seconds is None else self._loop.time() + seconds)

    async def _wait_until(self, at: float | None) -> bool:
        if at is not None:
            self._expire_at(at)
        self._waiter = waiter = self._loop.create_future()
        try:
            await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
            self._deadline = None
        return True

    def take(self) -> bytes:
        """What has arrived of the body."""
        chunks = self._chunks
        if not chunks:
            return b""
        self._chunks = []
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def failure(self) -> HyperbeamError:
        """Why a response did not come to its end."""
        if self._error is not None:
            return self._error
        return BadGateway(
            f"the backend at {self._name} died in the middle of its answer", error="backend_died"
        )

    def close(self) -> None:
        """Close at once, whatever has not been read or sent."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._end()

    def eof_received(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._head_done and self._until_close and self._error is None:
            self.complete = True
        self.closed = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.close()  # nobody asked: the pool must not hand it out
            return
        before = self._size
        self._received += len(data)
        try:
            self._parser.feed_data(data)
            self._check_sizes(len(data), self._size != before)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the backend at {self._name} answered something that is not HTTP: {error}")
        if self._size > WINDOW and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _check_sizes(self, size: int, body: bool) -> None:
        if self._received <= HEAD_LIMIT:
            return
        if not self._head_done:
            self._fail(f"the head of the answer of the backend at {self._name} is too large")
        elif body or self.complete:
            self._framing = 0
        else:
            self._framing += size
            if self._framing > HEAD_LIMIT:
                self._fail(f"the backend at {self._name} sends framing without a body")

    def _fail(self, detail: str) -> None:
        if self.complete:
            self._busy = True  # the response stands, the connection is not used again
            return
        self._error = BadGateway(detail, error="backend_invalid")
        self.close()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def on_message_begin(self) -> None:
        if self.complete:
            self._busy = True  # a second response to one request: not used again
        else:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._head_done:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        size = sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_LIMIT or len(self.headers) > HEADER_COUNT:
            self._fail(f"the head of the answer of the backend at {self._name} is too large")
            return
        self.status = status
        self._keep_alive = self._parser.should_keep_alive() and not self._is_of_llama()
        self._head_done = True
        if self._method == "HEAD":
            self.complete = True
            self._finish()
        else:
            names = {name for name, _ in self.headers}
            self._until_close = b"content-length" not in names and not self._is_chunked()

    def _is_chunked(self) -> bool:
        return any(
            name == b"transfer-encoding" and value.lower().endswith(b"chunked")
            for name, value in self.headers
        )

    def _is_of_llama(self) -> bool:
        """llama.cpp closes the connection after an event stream, though it says that it will not:
        a request that is written before its end arrives would be lost."""
        headers = dict(self.headers)
        return headers.get(b"server") == b"llama.cpp" and headers.get(
            b"content-type", b""
        ).startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._chunks.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        if self._head_done and not self.complete:
            self.complete = True
            self._finish()

    def _finish(self) -> None:
        """The response is there in full; whether the connection can serve another."""
        transport = self._transport
        written = transport is not None and transport.get_write_buffer_size() == 0
        self._busy = not (self._keep_alive and written)

    def _expire_at(self, at: float) -> None:
        self._deadline = at
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        """One timer a connection, set again only when it fires: reads move the deadline."""
        self._alarm = None
        if self._deadline is None:
            return
        if self._deadline > self._loop.time():
            self._expire_at(self._deadline)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())
