"""Which nodes can be asked for what: routes, the models of their nodes, and the list of all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hyperbeam import HyperbeamError, Message, NotFound
from hyperbeam.routing import Route, RouteNode
from hyperbeam.routing.lease import Lease
from hyperbeam.routing.strategy import Ask
from hyperbeam.routing.table import RouteLimits

from .backends import Backend
from .child import Sender
from .endpoints import Endpoint
from .passing import passed

if TYPE_CHECKING:
    from hyperbeam.node import Node

LOCAL = "local"
MODELS = "/v1/models"
OWNER = "hyperbeam"
KEPT = 10.0
"""Seconds for which a node's own list of models is taken as it was."""
SECONDS = 2.0
"""How long a node may take to give it."""

Models = list[dict[str, Any]]
_Names = tuple[str, ...] | None

log = logging.getLogger("hyperbeam.inference")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The route with those of its nodes that can be asked, and what the dispatcher is to look
    for: `model`, "" for any. `runs`: the name of the model that will answer, as far as known."""

    route: Route
    model: str
    runs: str


class Serving:
    """Knows the nodes of the routes that `device` answers. `created`: since when its model is."""

    def __init__(self, node: Node, device: str, backend: Backend) -> None:
        self._node = node
        self._device = device
        self._backend = backend
        only = RouteNode(id=LOCAL, backend=LOCAL)
        self._local = Route("/v1/.*", [only], device=device, id=f"{device} {LOCAL}")
        self._variants: dict[str, tuple[Route, tuple[_Names | bool, ...], Route]] = {}
        self._lists: dict[str, tuple[float, Models]] = {}
        self._fetching: dict[str, asyncio.Task[Models]] = {}

    async def stop(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    def route(self, path: str, request: Message) -> Route:
        """The route that `path` (`/v1/...`) takes: the table's, else to this node's own backend."""
        found = self._node.routes.match(path, request)
        return found if found is not None and found.device == self._device else self._local

    def routes(self) -> list[Route]:
        """All that this device answers."""
        found = [route for route in self._node.routes.routes if route.device == self._device]
        return found or [self._local]

    def others_up(self) -> bool:
        """Whether another node could be asked for completions now."""
        return any(
            not node.backend
            for route in self.routes()
            for node in self._node.dispatch.candidates(route, "")
        )

    def here(self, endpoint: Endpoint) -> bool:
        """Whether this node's own backend serves it."""
        return endpoint.api is not None or self.own_path(endpoint.path) is not None

    def own_path(self, path: str) -> str | None:
        """The path by which the own backend serves an endpoint; None where it does not."""
        known = self._backend.endpoints
        if known is None or path in known:
            return path
        short = path.removeprefix("/v1")
        return short if short in known else None

    async def choose(self, route: Route, endpoint: Endpoint, model: str) -> Chosen:
        """Whom to ask for `model`, the name that the client wrote.

        With several models an unknown name raises NotFound `model_not_found`; a single one
        answers to any.
        """
        nodes = route.nodes
        here = self.here(endpoint)
        if not here:
            nodes = [node for node in nodes if not node.backend] or nodes
        if len(nodes) == 1 and len(nodes[0].models) < 2:
            names = self._names(nodes[0])
            return Chosen(self._variant(route, nodes, (here,)), "", names[0] if names else model)
        lists = [self._names(node) for node in nodes]
        if None in lists and any(lists):
            learned = await asyncio.gather(*map(self._learned, nodes, lists))
            lists = list(learned)
        known = {name for names in lists for name in names or ()}
        if not known or not model:
            return Chosen(self._variant(route, nodes, (here,)), "", model)
        if model not in known and None not in lists:
            if len(known) > 1:
                raise unknown(model, known)
            return Chosen(self._variant(route, nodes, (here,)), "", *known)
        able = [replace(one, models=names or ()) for one, names in zip(nodes, lists, strict=True)]
        return Chosen(self._variant(route, able, (here, *lists)), model, model)

    def in_turn(self, route: Route) -> Route:
        """`route`, of whose nodes one is asked after another."""
        return replace(route, parallel=False, choose=1)

    async def models(self, own: dict[str, Any] | None, request: Message) -> Models:
        """The union of what all nodes serve, each model once; `own` is the own backend's."""
        states = {state.id: state.state for state in self._node.dispatch.nodes()}
        found: list[Models] = []
        waiting: list[tuple[Route, RouteNode]] = []
        seen: set[str] = set()
        for route in self.routes():
            for node in route.nodes:
                if node.id in seen:
                    continue
                seen.add(node.id)
                if node.backend:
                    found.append([own] if own is not None else [])
                elif states.get(node.id) == "down":
                    continue
                elif node.models:
                    found.append([_entry(name) for name in node.models])
                else:
                    waiting.append((route, node))
        found += await asyncio.gather(*(self._list(*each, request) for each in waiting))
        by_name: dict[str, dict[str, Any]] = {}
        for models in found:
            for model in models:
                by_name.setdefault(model["id"], model)
        return list(by_name.values())

    def _variant(
        self, route: Route, nodes: Sequence[RouteNode], key: tuple[_Names | bool, ...]
    ) -> Route:
        """`route` with these nodes: the same object as long as it is the same."""
        if all(one is other for one, other in zip(route.nodes, nodes, strict=False)) and len(
            route.nodes
        ) == len(nodes):
            return route
        made = self._variants.get(route.id)
        if made is None or made[0] is not route or made[1] != key:
            made = self._variants[route.id] = (route, key, replace(route, nodes=list(nodes)))
        return made[2]

    def _names(self, node: RouteNode) -> _Names:
        """Which models a node is known to serve; None: it is not known."""
        if node.models:
            return node.models
        if node.backend:
            return (self._backend.model,) if self._backend.model else None
        return None

    async def _learned(self, node: RouteNode, names: _Names) -> _Names:
        if names is not None or node.backend:
            return names
        kept = self._lists.get(node.id)
        if kept is None:
            models = await self._list(self._local, node, {})
        else:
            models = kept[1]
            if kept[0] < time.monotonic():
                self._fetch(self._local, node, {})
        return tuple(model["id"] for model in models) or None

    async def _list(self, route: Route, node: RouteNode, request: Message) -> Models:
        """What `node` says that it serves; nothing where it does not say so in time."""
        kept = self._lists.get(node.id)
        if kept is not None and kept[0] >= time.monotonic() and node.auth != "forward":
            return kept[1]
        return await asyncio.shield(self._fetch(route, node, request))

    def _fetch(self, route: Route, node: RouteNode, request: Message) -> asyncio.Task[Models]:
        if node.auth == "forward":
            return asyncio.create_task(self._ask(route, node, request))
        task = self._fetching.get(node.id)
        if task is None:
            task = asyncio.create_task(self._kept(route, node))
            self._fetching[node.id] = task
            task.add_done_callback(lambda _: self._fetching.pop(node.id, None))
        return task

    async def _kept(self, route: Route, node: RouteNode) -> Models:
        models = await self._ask(route, node, {})
        self._lists[node.id] = (time.monotonic() + KEPT, models)
        return models

    async def _ask(self, route: Route, node: RouteNode, request: Message) -> Models:
        async def attempt(lease: Lease) -> Models:
            given = await passed(Sender(self._node.upstream, lease=lease), MODELS, [], b"", "GET")
            lease.close()
            listed = (given.answer or {}).get("data")
            return [one for one in listed if _is_entry(one)] if isinstance(listed, list) else []

        alone = replace(
            route, id=f"models {node.id}", nodes=[node], limits=RouteLimits(), parallel=False
        )
        try:
            async with asyncio.timeout(SECONDS):
                ask = Ask(path=MODELS, request=request)
                return await self._node.dispatch.run(alone, ask, attempt)
        except (HyperbeamError, TimeoutError) as error:
            log.debug("%s gives no list of its models: %s", node.id, error)
            return []


def unknown(model: str, known: Iterable[str]) -> NotFound:
    """404 for a model that nobody here serves."""
    names = ", ".join(f"'{name}'" for name in sorted(known))
    return NotFound(
        model,
        f"The model '{model[:200]}' does not exist: there {'are' if ',' in names else 'is'} "
        f"{names[:1000] or 'none'}.",
        error="model_not_found",
        param="model",
    )


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("id"), str)
