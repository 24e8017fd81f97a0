"""relay@1.0: passes a request on along a route. Source: upstream dev_relay."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import aclosing
from typing import Any, Self

from hyperbeam import (
    BadGateway,
    BadRequest,
    Device,
    Forbidden,
    HyperbeamError,
    Message,
    Stream,
    Unavailable,
    key,
)
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
_DOTS = re.compile(r"(?:^|/|%2f)(?:\.|%2e){1,2}(?:$|/|%2f)", re.IGNORECASE)
_SMALL = 1024 * 1024
MAX_CASTS = 64
"""Casts under way at a time."""

log = logging.getLogger("hyperbeam.relay")


class Relay(Device):
    """Reaches only what a route names: never an address that a request gives."""

    name = "relay@1.0"

    async def start(self) -> None:
        self._casts: set[asyncio.Task[None]] = set()
        self._via = f"hyperbeam-{secrets.token_hex(6)}"

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
        if len(self._casts) >= MAX_CASTS:
            raise Unavailable(f"{MAX_CASTS} casts are under way; try again later", error="busy")
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
                self._headers(request),
                body.encode() if isinstance(body, str) else bytes(body or b""),
                first_byte_timeout=route.timeout,
                idle_timeout=route.timeout,
            )
        except BaseException:
            node.in_flight -= 1
            raise
        log.debug("%s%s answered %d", node.prefix, path.partition("?")[0][:500], response.status)
        body_of = _Body(response, node)
        try:
            return await _reply(response, body_of, _method(request))
        except BaseException:
            await body_of.aclose()
            raise

    def _headers(self, request: Message) -> list[tuple[bytes, bytes]]:
        """The client's own headers but for those of its connection, and never its secrets."""
        via = str(request.get("via", ""))
        if self._via in via:
            raise HyperbeamError(
                "a route leads back to this node", status=508, error="loop_detected"
            )
        names = request.get("priv", {}).get("request-headers", ())
        headers = [
            (name.encode("latin-1"), str(request[name]).encode("latin-1", "replace"))
            for name in names
            if name not in _OURS and name != "via" and name in request
        ]
        named = f"{via}, 1.1 {self._via}" if via else f"1.1 {self._via}"
        return [*headers, (b"via", named.encode("latin-1", "replace"))]


async def _reply(response: UpstreamResponse, body: _Body, method: str) -> Message | Stream:
    """The backend's reply: whole where it is small, else as a stream."""
    if not 200 <= response.status < 600:
        raise BadGateway(f"the backend answered with status {response.status}")
    fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
    hop = {
        word.strip().lower()
        for name, value in fields
        if name == "connection"
        for word in value.split(",")
    }
    kept = [(name, value) for name, value in fields if name not in _OURS and name not in hop]
    types = [value for name, value in kept if name == "content-type"]
    content_type = types[0] if types else "application/octet-stream"
    kept = [(name, value) for name, value in kept if name != "content-type"]
    length = response.header(b"content-length") or b""
    small = length.isdigit() and int(length) <= _SMALL
    if method == "HEAD" or response.status in (204, 304):
        if length.isdigit():
            kept.append(("content-length", length.decode()))
    elif not small or content_type.startswith("text/event-stream"):
        return Stream(body, content_type, response.status, dict(kept))
    data = await response.read(_SMALL)
    await body.aclose()
    return {
        "status": response.status,
        "content-type": content_type,
        "body": data,
        "priv": {"reply-headers": kept},
    }


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
    bare = path.partition("?")[0]
    if _DOTS.search(bare) or "\\" in bare or "%5c" in bare.lower():
        raise BadRequest("a path along a route has no dot segments and no backslash")
    if _UNSAFE.search(path):
        raise BadRequest("relay-path has a space or a control character; percent-encode it")
    return "/" + path.lstrip("/")


def _method(request: Message) -> str:
    return str(request.get("relay-method") or request.get("method") or "GET").upper()
