"""A server connection: uvicorn's httptools protocol with limits, strict framing and our errors.

What differs from uvicorn: the app starts when the body is there in full; a client that
leaves cancels the app's task at once; bytes of later (pipelined) requests wait unparsed,
so that reading goes on and a leaving client is seen behind them.

The end of a client's stream counts as leaving, also where the client only closed its
sending side: TCP tells the two apart only by an answer that is refused, and a backend
must not generate for nobody.
"""

from __future__ import annotations

import asyncio
from typing import Protocol as Interface

import httptools
from starlette.types import ASGIApp, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..errors import BadRequest, HyperbeamError
from .exchange import Exchange, Lend
from .limits import (
    FRAMING_HEADERS,
    FRAMING_LIMIT,
    HEAD_LIMIT,
    HEADER_COUNT,
    LINGER,
    PIPELINE_LIMIT,
    SLOWEST_BODY,
    Limits,
    body_too_large,
    draining,
    head_too_large,
    target,
    too_many_bodies,
    too_slow,
)


class Owner(Interface):
    """What a connection needs of the server."""

    app: ASGIApp
    limits: Limits
    draining: bool
    retiring: bool
    lend: Lend | None
    unfinished: int
    """Bytes of all bodies that have not arrived whole."""

    def refusal(self, error: HyperbeamError, scope: Scope | None) -> bytes:
        """The whole reply for an error met before the app; `scope` where the head was sound."""

    def connection_closed(self) -> None: ...


class NodeProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, config: Config, server_state: ServerState, owner: Owner) -> None:
        super().__init__(config, server_state, {})
        self.owner = owner
        self.exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting = b""
        self._closing = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._deadline: float | None = None
        self._held = 0
        self._reset()

    def _reset(self) -> None:
        """Ready for the next head."""
        self._hold(0)
        self.headers = []
        self.url = b""
        self._head_done = False
        self._message_done = False
        self._surplus = False
        self._head_size = 0
        self._tail = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._length: int | None = None
        self._is_chunked = False
        self._hosts = 0
        self.expect_100_continue = False
        self._request: Scope | None = None
        self._framing_size = 0
        self._began = 0.0
        self._error: HyperbeamError | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.exchange is not None and not self.exchange.complete

    @property
    def idle(self) -> bool:
        """Whether nothing of a request has come since the last answer."""
        return not (self.busy or self._head_size or self._closing)

    # uvicorn narrows the transport's type the same way: a server's can write
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expire_in(self.owner.limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._waiting = b""
        self._hold(0)
        self._cancel()
        super().connection_lost(exc)
        self.owner.connection_closed()

    def eof_received(self) -> None:
        if self.busy:
            self._cancel()
            self.transport.abort()

    def _cancel(self) -> None:
        exchange, task = self.exchange, self._task
        if exchange is not None and not exchange.complete and not exchange.disconnected:
            exchange.disconnected = True
            if task is not None:
                task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing or self.transport.is_closing():
            return
        if self.busy:
            self._wait(data)
        else:
            self._feed(data)

    def _wait(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None or not exchange.keep_alive:
            return  # nothing is answered after this reply
        self._waiting += data
        if len(self._waiting) > PIPELINE_LIMIT:
            # Reading goes on, as only that shows when the client leaves.
            self._waiting = b""
            exchange.keep_alive = False

    def _feed(self, data: bytes) -> None:
        try:
            while data and not self.busy:
                data = self._feed_body(data) if self._head_done else self._feed_head(data)
                if self._message_done:
                    self._dispatch()
        except HyperbeamError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            self._refuse(BadRequest(f"the request is not valid HTTP/1.1: {error}"))
        else:
            if data:
                self._wait(data)

    def _feed_head(self, data: bytes) -> bytes:
        """Parse to the end of the head at most; gives what follows it."""
        rest = b""
        seen = self._tail + data
        end = seen.find(b"\r\n\r\n")
        if end < 0:
            self._tail = seen[-3:]
        else:
            cut = end + 4 - len(self._tail)
            self._tail = b""
            data, rest = data[:cut], data[cut:]
        if not self._head_size and end < 0:
            self._expire_in(self.owner.limits.header_timeout)
        self._head_size += len(data)
        if self._head_size > HEAD_LIMIT:
            raise head_too_large(f"the head of the request is over {HEAD_LIMIT} bytes")
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._without_upgrade()
        if len(self.headers) > HEADER_COUNT:
            raise head_too_large(f"the request has over {HEADER_COUNT} headers")
        if self._head_done:
            self._check_head()
        return rest

    def _without_upgrade(self) -> None:
        """No upgrade is taken. llhttp then reads no body: a fresh parser reads it."""
        if self._length is None and not self._is_chunked:
            self.parser = httptools.HttpRequestParser(self)
            return
        self._message_done = False
        framing = (
            b"transfer-encoding: chunked"
            if self._length is None
            else b"content-length: %d" % self._length
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)

    def _check_head(self) -> None:
        """Raises for a head that httptools lets pass. Makes the ASGI scope."""
        if self._version not in ("1.1", "1.0"):
            detail = "only HTTP/1.1 and HTTP/1.0 are spoken here"
            raise BadRequest(detail, status=505, error="version_not_supported")
        if self._hosts > 1 or (not self._hosts and self._version == "1.1"):
            raise BadRequest(f"one host header is needed, the request has {self._hosts}")
        if self._error is not None:
            raise self._error
        self._request = self._scope(target(self.url, self._method))
        limit = self.owner.limits.body
        if self._length is not None and self._length > limit:
            raise body_too_large(limit)
        if self.owner.draining:
            raise draining()
        if not self._message_done:
            self._began = self.loop.time()
            self._expire_in(self.owner.limits.body_timeout)
            if self.expect_100_continue and self._version == "1.1":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _scope(self, target: bytes) -> Scope:
        raw_path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self._method,
            "root_path": "",
            "path": raw_path.decode("ascii"),
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
        }

    def _hold(self, size: int) -> None:
        self.owner.unfinished += size - self._held
        self._held = size

    def _feed_body(self, data: bytes) -> bytes:
        """Parse to the end of the body at most; gives what follows it."""
        rest = b""
        size = self._body_size
        if self._length is not None:
            need = self._length - size
            if len(data) > need:
                data, rest = data[:need], data[need:]
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._message_done:
                raise
        limits = self.owner.limits
        if self._body_size > limits.body:
            raise body_too_large(limits.body)
        if not self._message_done:
            if self._body_size == size:
                self._framing_size += len(data)
                if self._framing_size > FRAMING_LIMIT:
                    raise BadRequest("the chunked body has too many extensions or trailers")
            else:
                self._framing_size = 0
            slack = self.loop.time() - self._began - self._body_size / SLOWEST_BODY
            self._expire_in(limits.body_timeout - max(0.0, slack))
            self._hold(self._body_size)
            if self.owner.unfinished > limits.unfinished:
                raise too_many_bodies()
        return rest

    def on_message_begin(self) -> None:
        if self._message_done:
            self._surplus = True

    def on_url(self, url: bytes) -> None:
        if not self._head_done:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_done:
            return
        name = name.lower()
        value = value.rstrip()
        self.headers.append((name, value))
        if name in FRAMING_HEADERS:
            self._on_framing(name, value)

    def _on_framing(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        else:
            self._is_chunked = True
            if value.lower() != b"chunked":
                self._error = BadRequest("the only transfer-encoding understood is chunked")

    def on_headers_complete(self) -> None:
        if self._head_done:
            return
        self._head_done = True
        self._version = self.parser.get_http_version()
        self._method = self.parser.get_method().decode("ascii")
        self._keep_alive = self._version == "1.1" and self.parser.should_keep_alive()
        if self._is_chunked and self._version == "1.0":
            self._error = BadRequest("HTTP/1.0 has no transfer-encoding")

    def on_body(self, body: bytes) -> None:
        if not self._surplus:
            self._body.append(body)
            self._body_size += len(body)

    def on_message_complete(self) -> None:
        if not self._surplus:
            self._message_done = True

    def _dispatch(self) -> None:
        """Start the app on the request that has arrived."""
        if self.owner.draining:
            raise draining()
        self._deadline = None
        assert self._request is not None
        # After a chunked body the parser cannot say where the next request starts, so what
        # came with it is dropped and the client, told of the close, sends it again.
        keep_alive = self._keep_alive and not self._surplus and not self.owner.retiring
        exchange = self.exchange = Exchange(
            self._request,
            b"".join(self._body),
            transport=self.transport,
            flow=self.flow,
            default_headers=self.server_state.default_headers,
            keep_alive=keep_alive,
            on_complete=self.on_response_complete,
            lend=self.owner.lend,
            send_timeout=self.owner.limits.send_timeout,
        )
        self._reset()
        task = self._task = self.loop.create_task(exchange.run(self.owner.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._task = None
        if self.transport.is_closing():
            return
        self._expire_in(self.owner.limits.idle_timeout)
        self.flow.resume_reading()
        if self._waiting:
            data, self._waiting = self._waiting, b""
            self._feed(data)

    def _refuse(self, error: HyperbeamError) -> None:
        """Answer in front of the app, then read on for a moment and throw away what comes.

        Closing with bytes unread would reset the connection, and with it the answer.
        """
        self._closing = True
        self._waiting = b""
        self._body = []
        self._hold(0)
        self.transport.write(self.owner.refusal(error, self._request))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._expire_in(LINGER)

    def shutdown(self) -> None:
        """The server is about to end: this connection closes after the reply it is giving."""
        if self.exchange is not None and self.busy:
            self.exchange.keep_alive = False

    def cut(self) -> None:
        """End the request that is running: 503 if nothing was sent yet.

        Else the stream breaks, an event stream after an event that says why.
        """
        exchange = self.exchange
        if exchange is None or not self.busy:
            return
        if exchange.started:
            if self._task is not None:
                self._task.cancel()
            return
        self._cancel()
        self.transport.write(self.owner.refusal(draining(), exchange.scope))
        self.transport.close()

    def _expire_in(self, seconds: float) -> None:
        self._deadline = at = self.loop.time() + seconds
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.loop.call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        """One timer a connection, set again only when it fires: requests move the deadline."""
        self._alarm = None
        if self._deadline is None:
            return
        left = self._deadline - self.loop.time()
        if left > 0:
            self._expire_in(left)
        elif self._closing:
            self.transport.abort()
        elif self._head_done:
            self._refuse(too_slow("body"))
        elif self._head_size:
            self._refuse(too_slow("head"))
        else:
            self.transport.close()
