"""router@1.0: the route table as it is in use, and as a hook. Source: upstream dev_router."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hyperbeam import BadRequest, Device, Message, key
from hyperbeam.routing import Ask, Route, RouteNode
from hyperbeam.routing.strategy import order


class RouterConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[router]`: what `preprocess` does with a request for which there is no route."""

    preprocess_default: Literal["local", "error"] = "local"
    """`local`: it goes its own way; `error`: 404."""


class Router(Device):
    """Shows the routes, how their nodes do, and which one a path would take."""

    name = "router@1.0"
    Config = RouterConfig

    @key
    async def routes(self, base: Any, request: Message) -> list[Message]:
        """Every route, in the order in which they are tried. A POST by the operator adds one."""
        if request.get("method") == "POST":
            order = await self.node.operator.authorize(request)
            await self.node.operator.add_route(order)
        return [route.describe() for route in self.node.routes.routes]

    @key
    async def status(self, base: Any, request: Message) -> Message:
        """How many routes serve, and why the file's last change does not ("": it does)."""
        table = self.node.routes
        return {"routes": len(table.routes), "error": self.node.board.get("routes-error", "")}

    @key
    async def nodes(self, base: Any, request: Message) -> list[Message]:
        """Every node of the routes: its state, requests in flight, latency and last error.

        `latency`: seconds to the first byte; `since`: when the state began, ms since 1970.
        """
        return [
            {
                "id": node.id,
                "state": node.state,
                "in-flight": node.in_flight,
                "latency": node.latency,
                "failures": node.failures,
                "last-error": node.last_error,
                "since": node.since,
                "models": list(node.models),
            }
            for node in self.node.dispatch.nodes()
        ]

    @key
    async def match(self, base: Any, request: Message) -> Message:
        """The route of `route-path` and where it leads: /~router@1.0/match?route-path=/v1/models

        `target`: the nodes' addresses, in the order in which they would be tried now.
        """
        path, route, nodes = self._choices(base, request)
        return {**route.describe(), "target": [node.target(path) for node in nodes]}

    @key
    async def route(self, base: Any, request: Message) -> Message:
        """Where a request for `route-path` would go now: `uri`, with no `opts`; the route itself
        where only a device serves it.
        """
        path, route, nodes = self._choices(base, request)
        return {"uri": nodes[0].target(path), "opts": {}} if nodes else route.describe()

    def _choices(self, base: Any, request: Message) -> tuple[str, Route, list[RouteNode]]:
        """The path that is asked about, its route, and the route's nodes in their order now."""
        path = request.get("route-path") or (
            base.get("route-path") if isinstance(base, dict) else None
        )
        if not isinstance(path, str):
            raise BadRequest("say which path: ?route-path=/v1/models", param="route-path")
        path = "/" + path.lstrip("/")
        route = self.node.routes.require(path, request)
        nodes = order(route, route.nodes, Ask(path, request=request), self.node.dispatch)
        return path, route, list(nodes)

    @key
    async def preprocess(self, base: Any, request: Message) -> Message:
        """As a `request` hook: a request that has a route goes to it, also one whose path
        names a device; the others as `preprocess_default` says.
        """
        asked = request.get("request")
        path = asked.get("path") if isinstance(asked, dict) else None
        if not isinstance(asked, dict) or not isinstance(path, str):
            raise BadRequest("preprocess is for the hook `request`", param="request")
        if self.config.preprocess_default == "error":
            self.node.routes.require(path, asked)
        elif self.node.routes.match(path, asked) is None:
            return {"body": request.get("body")}
        call = {**asked, "path": "call", "relay-path": path}
        return {"body": [{"device": "relay@1.0"}, call]}
