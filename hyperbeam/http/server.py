"""The HTTP server: a listening socket, the ASGI app that answers on it, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import Collection, Sequence
from email.utils import formatdate
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from ..access.origins import Origins
from ..access.proxies import Proxies
from ..device import Stream
from ..errors import HyperbeamError
from ..faults import said_of
from ..message import Link, Message
from ..observe.metrics import Metrics
from ..observe.request_id import RequestInfo
from ..observe.watch import StreamWatch, Watch, header
from . import listening
from . import request as requests
from .exchange import Lend, head
from .headers import CORS
from .hosts import Hosts
from .limits import Limits
from .protocol import NodeProtocol
from .reply import JSON, Linker, Reply, preflight, render, render_error
from .signing import Sign, sign
from .sse import send_stream

if TYPE_CHECKING:
    from ..config import HTTPConfig

FLUSH = 1.0
"""Seconds that a reply which is already written may take to leave when the server ends."""
IDLE = 10.0
"""Seconds that a server which another one replaces waits for kept connections' next request."""

_NOT_HERE = frozenset({"CONNECT", "TRACE"})
"""Methods whose 200 says more than that there is an answer: an open tunnel, an echo."""
_VALUES = (dict, list, str, bytes, int, float, NoneType, Link)

log = logging.getLogger("hyperbeam.http")


class Handler(Protocol):
    """What answers requests: the node."""

    async def handle(self, request: Message) -> Any:
        """A value, message or Stream for a request. Raises HyperbeamError."""

    def render_error(self, error: HyperbeamError, request: Message) -> Message:
        """The reply message for an error."""


class Server:
    """Serves `handler` on `host` and `port` (0: a free one). Installs no signal handlers.

    Limits: `body_limit` bytes of body; `header_timeout` seconds to finish a head and
    `body_timeout` without a byte of body (and at least 1 KiB/s after that);
    `idle_timeout` between requests; `send_timeout` without a byte that the
    client takes. `keep_alive_comment`: seconds of silence in an event
    stream before a comment, 0 for none. `hosts`: the names beside localhost's own that a
    request may come under, None for any. `watch` follows the requests. `cors`: origins whose
    pages may read replies. `proxies`: networks whose x-forwarded-for is believed. `link` keeps
    the nested messages of replies, which are links then. `sign` signs replies that are no stream.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 8734,
        body_limit: int = 32 * 1024 * 1024,
        keep_alive_comment: float = 15.0,
        header_timeout: float = 10.0,
        body_timeout: float = 60.0,
        idle_timeout: float = 75.0,
        send_timeout: float = 60.0,
        hosts: Collection[str] | None = None,
        watch: Watch | None = None,
        cors: Collection[str] = ("*",),
        proxies: Collection[str] = (),
        link: Linker | None = None,
        sign: Sign | None = None,
    ) -> None:
        self.handler = handler
        self.host = host
        self.limits = Limits(body_limit, header_timeout, body_timeout, idle_timeout, send_timeout)
        self.draining = False
        self.retiring = False
        self.unfinished = 0
        self.lend: Lend | None = None
        self.watch = watch or Watch(Metrics())
        self.app: ASGIApp = self.__call__
        self._link = link
        self._sign = sign
        self._port = port
        self._hosts = None if hosts is None else Hosts(hosts)
        self._keep_alive_comment = keep_alive_comment
        self._origins = None if "*" in cors else Origins(cors)
        self._proxies = Proxies(proxies) if proxies else None
        self.sockets: Sequence[socket.socket] = ()
        self._servers: list[asyncio.Server] = []
        self._state = ServerState()
        self._closed = asyncio.Event()
        self._clock: asyncio.TimerHandle | None = None

    def configure(self, http: HTTPConfig) -> None:
        """Take the settings that can change while it runs; running requests keep theirs."""
        self.limits = Limits(
            http.body_limit,
            http.header_timeout,
            http.body_timeout,
            self.limits.idle_timeout,
            http.send_timeout,
        )
        if self._hosts is not None:
            self._hosts = Hosts(http.hosts)
        self._keep_alive_comment = http.keep_alive_comment
        self._origins = None if "*" in http.cors else Origins(http.cors)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    @property
    def in_flight(self) -> int:
        """Requests that are being answered."""
        return len(self._state.tasks)

    async def bind(self) -> Sequence[socket.socket]:
        """Take the port, without answering yet; `drain` gives it free.

        Raises ConfigError where the address is taken or not to be had.
        """
        self.sockets = await listening.bind(self.host, self._port)
        self._port = self.sockets[0].getsockname()[1]
        return self.sockets

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Answer on `sockets`, which listen already, or those that `bind` makes."""
        if sockets:
            self._port = sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        config = Config(
            self.app,
            http=NodeProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            interface="asgi3",
        )
        config.load()
        self._tick()
        for sock in sockets or await self.bind():
            server = await loop.create_server(
                lambda: NodeProtocol(config, self._state, self),
                sock=sock,
                backlog=listening.BACKLOG,
            )
            self._servers.append(server)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109
        """Stop listening, let running answers end for at most `timeout` seconds, then cut them.

        Open connections get 503 `draining` for new requests meanwhile.
        """
        self.draining = True
        self._close_listening()
        running = set(self._state.tasks)
        if running:
            _, running = await asyncio.wait(running, timeout=timeout)
        for connection in self._connections():
            connection.cut()
        if running:
            await asyncio.wait(running, timeout=FLUSH)
        for connection in self._connections():
            connection.transport.close()
        try:
            async with asyncio.timeout(FLUSH):
                while self._state.connections:
                    self._closed.clear()
                    await self._closed.wait()
        except TimeoutError:
            for connection in self._connections():
                connection.transport.abort()
        if self._clock is not None:
            self._clock.cancel()

    async def retire(self) -> None:
        """Stop listening, as another process does; return when no connection is left.

        Running answers take the time that they need. A kept connection's next request is
        answered, and told of the connection's end; one without a request closes after `IDLE`.
        """
        self.retiring = True
        self._close_listening()
        loop = asyncio.get_running_loop()
        closing = loop.call_later(IDLE, self._close_idle)
        try:
            while self._state.connections:
                self._closed.clear()
                await self._closed.wait()
        finally:
            closing.cancel()

    def _close_listening(self) -> None:
        for server in self._servers:
            server.close()
        if not self._servers:
            listening.close(self.sockets)
        for connection in self._connections():
            connection.shutdown()

    def _close_idle(self) -> None:
        for connection in self._connections():
            if connection.idle:
                connection.transport.close()

    def connection_closed(self) -> None:
        self._closed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        event = await receive()
        request = requests.build(scope, event["body"], self._proxies)
        if self._origins is not None:
            send = self._origins.sending(send, request.get("origin"))
        info = self.watch.begin(request)
        try:
            try:
                reply = await self._answer(request, send, info)
            except Exception as error:
                reply = self._error_reply(error, request)
            if reply is not None and self._sign is not None:
                reply = await self._signed(reply, request)
            if reply is not None:
                info.status, info.size = reply.status, len(reply.body)
                reply.headers.append(header(info.id))
                await send(
                    {
                        "type": "http.response.start",
                        "status": reply.status,
                        "headers": reply.headers,
                    }
                )
                await send({"type": "http.response.body", "body": reply.body})
        finally:
            self.watch.done(info)
        if log.isEnabledFor(logging.DEBUG):
            bare = request["path"].partition("?")[0][:500]
            sent = f"{reply.status}, {len(reply.body)} bytes" if reply is not None else "streamed"
            log.debug("%s %s %s: %s", request["priv"]["client"], request["method"], bare, sent)

    async def _answer(self, request: Message, send: Send, info: RequestInfo) -> Reply | None:
        """The reply to send; None where a stream has been sent."""
        if self._hosts is not None:
            self._hosts.check(request.get("host"))
        if request["method"] == "OPTIONS":
            return preflight(request)
        if request["method"] in _NOT_HERE:
            raise HyperbeamError(
                f"{request['method']} is nothing that this node does",
                status=501,
                error="not_implemented",
            )
        result = await self.handler.handle(request)
        if not isinstance(result, Stream):
            if not isinstance(result, _VALUES):
                kind = type(result).__name__
                raise TypeError(f"the result is a {kind}, which is no message value")
            return render(result, request, self._link)
        await send_stream(
            result,
            request,
            send,
            comment_after=self._keep_alive_comment,
            error_event=lambda error: self.error_event(error, request),
            ending=lambda: self.draining,
            watch=StreamWatch(info, self.watch.metrics),
        )
        return None

    async def _signed(self, reply: Reply, request: Message) -> Reply:
        """`reply` with the node's signature, or an error where there is none to be had."""
        assert self._sign is not None
        try:
            await sign(reply, request["priv"].get("hashpath") or "", self._sign)
        except Exception as error:
            return self._error_reply(error, request)
        return reply

    def refusal(self, error: HyperbeamError, scope: Scope | None) -> bytes:
        """The whole reply for an error met before the app, closing the connection.

        In the shape of the path's device where the head was sound, else in JSON.
        """
        request = None
        if scope is None:
            reply = _plain_error(error)
        else:
            request = requests.build(scope, b"", self._proxies)
            reply = self._error_reply(error, {**request, "accept-codec": JSON})
        if self._origins is not None:
            origin = None if request is None else request.get("origin")
            reply.headers = self._origins.restrict(reply.headers, origin)
        headers = [
            *self._state.default_headers,
            *reply.headers,
            header(self.watch.refused(request, error)),
            (b"connection", b"close"),
        ]
        body = b"" if scope is not None and scope["method"] == "HEAD" else reply.body
        return b"%b\r\n%b" % (head(reply.status, headers), body)

    def _error_reply(self, error: Exception, request: Message) -> Reply:
        known = self._known(error, request)
        try:
            return render_error(self.handler.render_error(known, request), known, request)
        except Exception as problem:
            if not isinstance(problem, HyperbeamError):
                known = self._known(problem, request)
            return _plain_error(known)

    def error_event(self, error: Exception, request: Message) -> bytes:
        """The last event of a stream that broke off, in the shape of the path's own errors."""
        known = self._known(error, request)
        reply = self._error_reply(known, request)
        try:
            value = json.loads(reply.body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("error"), dict):
            value = {
                "error": {
                    "message": known.detail,
                    "type": "server_error" if known.status >= 500 else "invalid_request_error",
                    "param": known.param,
                    "code": known.error,
                }
            }
        return b"data: %b\n\n" % json.dumps(value, separators=(",", ":")).encode()

    def _known(self, error: Exception, request: Message) -> HyperbeamError:
        """`error` itself, or a 500 that says no more than the id under which it was logged."""
        if isinstance(error, HyperbeamError):
            return error
        name = secrets.token_hex(8)
        path = request["path"].partition("?")[0]
        said, cause = said_of(error)
        where = f"{request['method']} {path[:500]}{said}"
        log.error("error %s in %s", name, where, exc_info=cause)
        return HyperbeamError(f"internal error {name}: the node's log has the reason")

    def _connections(self) -> list[NodeProtocol]:
        return [one for one in self._state.connections if isinstance(one, NodeProtocol)]

    def _tick(self) -> None:
        """The date header, made once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode("ascii"))]
        self._clock = asyncio.get_running_loop().call_later(1.0, self._tick)


def _plain_error(error: HyperbeamError) -> Reply:
    """An error as JSON `{status, error, body}` without asking anybody."""
    message = {"status": error.status, "error": error.error, "body": error.detail}
    body = json.dumps(message, separators=(",", ":")).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        (b"content-length", b"%d" % len(body)),
        *CORS,
    ]
    if "retry-after" in error.headers:
        headers.append((b"retry-after", error.headers["retry-after"].encode("ascii")))
    return Reply(error.status, body, headers)
