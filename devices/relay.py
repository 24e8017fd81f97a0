"""relay@1.0: passes a request on along a route. Source: upstream dev_relay."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import aclosing
from typing import Any, Self

from hyperbeam import BadRequest, Device, Forbidden, Message, Stream, key
from hyperbeam.http.upstream import UpstreamResponse
from hyperbeam.routing import Route, RouteNode

_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_BODY_IN_MEMORY = 64 * 1024 * 1024

log = logging.getLogger("hyperbeam.relay")


class Relay(Device):
    """Reaches only what a route names: never an address that a request gives."""

    name = "relay@1.0"

    async def start(self) -> None:
        self._casts: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in self._casts:
            task.cancel()
        await asyncio.gather(*self._casts, return_exceptions=True)

    @key
    async def call(self, base: Any, request: Message) -> Any:
        """Send the request to `relay-path` and give the reply: status, headers, body or stream."""
        path = _path(base, request)
        route = self.node.routes.require(path, request)
        if route.device:
            return await self.node.resolve(
                {"device": route.device}, {**request, "path": path, "method": _method(request)}
            )
        return await self._send(route, path, request)

    @key
    async def cast(self, base: Any, request: Message) -> str:
        """As `call`, but answer OK at once and drop the reply."""
        path = _path(base, request)
        self.node.routes.require(path, request)
        task = asyncio.create_task(self._cast(base, request))
        self._casts.add(task)
        task.add_done_callback(self._casts.discard)
        return "OK"

    async def _cast(self, base: Any, request: Message) -> None:
        try:
            result = await self.call(base, request)
            if isinstance(result, Stream):
                async with aclosing(result):
                    async for _ in result.source:
                        pass
        except Exception as error:
            log.warning("cast failed: %s", error)

    async def _send(self, route: Route, path: str, request: Message) -> Any:
        node = route.choose()
        body = request.get("relay-body", request.get("body", b""))
        node.in_flight += 1
        try:
            response = await self.node.upstream.request(
                node.target(path),
                _method(request),
                _headers(request),
                body.encode() if isinstance(body, str) else bytes(body or b""),
                first_byte_timeout=route.timeout,
                idle_timeout=route.timeout,
            )
        except BaseException:
            node.in_flight -= 1
            raise
        log.debug("%s%s answered %d", node.prefix, path.partition("?")[0][:500], response.status)
        kept = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in response.headers
            if name.decode("latin-1") not in _OURS
        }
        content_type = kept.pop("content-type", "application/octet-stream")
        if content_type.startswith("text/event-stream"):
            return Stream(_Body(response, node), content_type, response.status, kept)
        try:
            data = await response.read(_BODY_IN_MEMORY)
        finally:
            node.in_flight -= 1
            await response.aclose()
        return {**kept, "status": response.status, "content-type": content_type, "body": data}


class _Body:
    """A relayed stream; its node counts as busy until it is closed, begun or not."""

    def __init__(self, response: UpstreamResponse, node: RouteNode) -> None:
        self._response = response
        self._node: RouteNode | None = node

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._response)

    async def aclose(self) -> None:
        if self._node is not None:
            self._node.in_flight -= 1
            self._node = None
        await self._response.aclose()


def _path(base: Any, request: Message) -> str:
    path = request.get("relay-path") or (base.get("relay-path") if isinstance(base, dict) else None)
    if not isinstance(path, str) or not path:
        raise BadRequest("say where to: relay-path=/v1/models", param="relay-path")
    if "://" in path.partition("?")[0]:
        raise Forbidden(
            f"{path[:200]!r} is an address; the relay reaches only what a route names: give a path"
        )
    if _UNSAFE.search(path):
        raise BadRequest("relay-path has a space or a control character; percent-encode it")
    return "/" + path.lstrip("/")


def _method(request: Message) -> str:
    return str(request.get("relay-method") or request.get("method") or "GET").upper()


def _headers(request: Message) -> list[tuple[bytes, bytes]]:
    """The client's own headers but for those of its connection, and never its secrets."""
    names = request.get("priv", {}).get("request-headers", ())
    return [
        (name.encode("latin-1"), str(request[name]).encode("latin-1", "replace"))
        for name in names
        if name not in _OURS and name in request
    ]
