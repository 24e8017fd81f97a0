"""router@1.0: the route table as it is read now. Source: upstream dev_router."""

from __future__ import annotations

from typing import Any

from hyperbeam import BadRequest, Device, Message, key


class Router(Device):
    """Shows the routes and says which one a path would take."""

    name = "router@1.0"

    @key
    async def routes(self, base: Any, request: Message) -> list[Message]:
        """Every route, in the order in which they are tried."""
        return [route.describe() for route in self.node.routes.routes]

    @key
    async def match(self, base: Any, request: Message) -> Message:
        """The route of `route-path` and where it leads: /~router@1.0/match&route-path=/v1/models"""
        path = request.get("route-path") or (
            base.get("route-path") if isinstance(base, dict) else None
        )
        if not isinstance(path, str):
            raise BadRequest("say which path: &route-path=/v1/models", param="route-path")
        path = "/" + path.lstrip("/")
        route = self.node.routes.require(path, request)
        return {**route.describe(), "target": [node.target(path) for node in route.nodes]}
