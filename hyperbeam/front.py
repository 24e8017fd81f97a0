"""Requests from outside: checked, then along a route, or by the path's own devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .device import Device
from .errors import HyperbeamError
from .faults import DeviceFault, check
from .http.decoding import is_plain
from .http.request import INPUT
from .http.signed import read
from .message import Message
from .observe.request_id import current
from .path import Step
from .resolver import call, resolve_steps
from .routing import Route
from .targets import first_part, is_empty, names_device, own_path, steps_of

if TYPE_CHECKING:
    from .node import Node

RELAY_DEVICE = "relay@1.0"
RELAY_KEY = "call"
INDEX = "/~meta@1.0/info"

log = logging.getLogger("hyperbeam.node")


class Front:
    """What answers requests of the server for `node`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def answer(self, request: Message) -> Any:
        """A value, message or Stream. Raises HyperbeamError."""
        signed = INPUT in request
        if signed or not is_plain(request):
            raw = self._takes_raw(request)
            if signed or not raw:
                request = await asyncio.to_thread(read, request, raw=raw)
        path = request["path"]
        if not self._node.hooks.outer:
            return await self._answer(path, request, None)
        own = path if self._route(path, request) else own_path(path)
        changed = await self._node.hooks.before(steps_of(own, request), request)
        result = await self._answer(path, request, changed)
        return await self._node.hooks.after(request, result)

    async def _answer(self, path: str, request: Message, changed: list[Step] | None) -> Any:
        """`changed`: the steps to go, where they are not those of `path`."""
        if changed is not None and not is_empty(changed[0]):
            return await resolve_steps(self._node, changed)
        if path.partition("?")[0].strip("/") == "":
            headers = [("location", INDEX)]
            private = {"reply-headers": headers}
            return {"status": 302, "content-type": "text/plain", "body": "", "priv": private}
        route = self._route(path, request)
        if route is None:
            return await resolve_steps(self._node, changed or steps_of(own_path(path), request))
        info = current()
        if info is not None:
            info.route = route.id
        log.debug("%s takes the route %s", path.partition("?")[0][:500], route.template)
        if not route.device:
            relay = self._node.device(RELAY_DEVICE)
            own = changed[0].message if changed else {}
            asked = {**request, **own, "path": RELAY_KEY, "relay-path": path}
            return await call(relay, relay.keys[RELAY_KEY], RELAY_KEY, {}, asked)
        self._node.device(route.device)
        steps = changed or steps_of(path, request)
        steps[0] = replace(steps[0], device=route.device)
        return await resolve_steps(self._node, steps)

    def render_error(self, error: HyperbeamError, request: Message) -> Message:
        """The reply for `error`: by the device of the path or its route, else our own shape."""
        device = self._device_of(request)
        message = None
        if device is not None:
            message = device.render_error(error)
            check(message, device.name, "render_error", None, None)
            if message is not None and not isinstance(message, dict):
                kind = type(message).__name__
                raise DeviceFault(f"{device.name}/render_error gives a {kind}, which is no message")
        if message is None:
            message = {"status": error.status, "error": error.error, "body": error.detail}
            if error.param:
                message["param"] = error.param
        return {**message, **error.headers}

    def _route(self, path: str, request: Mapping[str, Any]) -> Route | None:
        return None if names_device(path) else self._node.routes.match(path, request)

    def _takes_raw(self, request: Message) -> bool:
        """Whether what a request leads to reads its body itself, as a route's nodes do."""
        path = request["path"]
        if self._route(path, request) is not None:
            return True
        path = path.lower()
        return any(name in path for name, device in self._node.devices.items() if device.raw_body)

    def _device_of(self, request: Mapping[str, Any]) -> Device | None:
        path = request.get("path", "")
        if names_device(path):
            name = first_part(path).partition("~")[2].partition("&")[0].lower()
        else:
            route = self._node.routes.match(path, request)
            name = route.device if route is not None else ""
        return self._node.devices.get(name)
