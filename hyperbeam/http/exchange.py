"""One request and its reply on a connection: the `receive` and `send` of the ASGI app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.flow_control import FlowControl


def status_line(status: int) -> bytes:
    """`HTTP/1.1 200 OK` with its line end; an unknown status has no phrase."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


STATUS_LINES = {status: status_line(status) for status in range(200, 600)}


def head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A reply's head without the empty line that ends it."""
    parts = [STATUS_LINES[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    return b"".join(parts)


class Loan(Protocol):
    """A connection on which somebody else ends an event stream where this process is killed."""

    def wrote(self, size: int) -> None:
        """Bytes were handed to the transport, up to the end of a chunk."""

    def close(self) -> None:
        """The stream has ended."""


Lend = Callable[[asyncio.Transport, bytes], Loan | None]
"""Lends a transport for the event stream that a request for a path gets."""


class Exchange:
    """Runs the app for one request whose body has arrived in full.

    A client that leaves cancels the app's task, so `receive` has nothing to tell after
    the body. An app that returns before its reply is complete closes the connection
    without the last chunk: the client sees a cut, not an end.
    """

    __slots__ = (
        "_body",
        "_chunked",
        "_default_headers",
        "_flow",
        "_head",
        "_lend",
        "_loan",
        "_on_complete",
        "_send_timeout",
        "_transport",
        "_without_body",
        "complete",
        "disconnected",
        "keep_alive",
        "scope",
        "started",
    )

    def __init__(
        self,
        scope: Scope,
        body: bytes,
        *,
        transport: asyncio.Transport,
        flow: FlowControl,
        default_headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        on_complete: Callable[[], None],
        lend: Lend | None = None,
        send_timeout: float = 60.0,
    ) -> None:
        self.scope = scope
        self._body: bytes | None = body
        self._transport = transport
        self._flow = flow
        self._default_headers = default_headers
        self.keep_alive = keep_alive
        self._on_complete = on_complete
        self._lend = lend
        self._send_timeout = send_timeout
        self._loan: Loan | None = None
        self._head = b""
        self._chunked = False
        self._without_body = False
        self.started = False
        self.complete = False
        self.disconnected = False

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            if self._loan is not None:
                self._loan.close()
            if not self.complete and not self.disconnected:
                self._transport.close()

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """As ASGI has it; a body marked `optional` is dropped while the client is slow, one
        marked `last` does not wait for it.

        `written`, where a body message has it, is called with the body once the socket has it.
        """
        if self._flow.write_paused and not self.disconnected and not message.get("last"):
            if message.get("optional"):
                return
            await self._drained()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
            return
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        out, self._head = self._head, b""
        self.started = True
        if self._without_body:
            pass
        elif self._chunked:
            end = b"" if more else b"0\r\n\r\n"
            if body:
                out = b"%b%x\r\n%b\r\n%b" % (out, len(body), body, end)
            else:
                out += end
        else:
            out += body
        if out:
            self._transport.write(out)
            if self._loan is not None:
                self._loan.wrote(len(out))
        written: Callable[[bytes], None] | None = message.get("written")
        if written is not None:
            written(b"" if self._without_body else body)
        if not more:
            self.complete = True
            if self._loan is not None:
                self._loan.close()
            if not self.keep_alive:
                self._transport.close()
            self._on_complete()

    async def _drained(self) -> None:
        """Wait until the client has taken what was written; one that takes nothing is cut."""
        left = self._transport.get_write_buffer_size()
        while self._flow.write_paused and not self.disconnected:
            try:
                async with asyncio.timeout(self._send_timeout):
                    await self._flow.drain()
            except TimeoutError:
                before, left = left, self._transport.get_write_buffer_size()
                if left >= before:
                    self._transport.abort()
                    # The end of the connection cancels this task.
                    await asyncio.get_running_loop().create_future()

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head waits for the first piece of body, so that both leave in one packet."""
        self._without_body = self.scope["method"] == "HEAD" or status in (204, 304)
        sized, defaults, events = self._without_body, self._default_headers, False
        for name, value in headers:
            if name == b"content-length":
                sized = True
            elif name == b"date":
                defaults = []
            elif name == b"content-type":
                events = value.startswith(b"text/event-stream")
        framing = b""
        if not sized:
            if self.scope["http_version"] == "1.1":
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
                if events and self._lend is not None:
                    self._loan = self._lend(self._transport, self.scope["raw_path"])
            else:
                self.keep_alive = False
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        self._head = b"%b%b\r\n" % (head(status, defaults + headers), framing)
