"""Which of a route's nodes a request goes to, and where to next. Source: upstream dev_router."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..message import Message
from .table import Route, RouteNode


@dataclass(slots=True)
class Ask:
    """What is asked along a route: by which client, for which model, of which conversation."""

    path: str
    client: str = ""
    model: str = ""
    affinity: Callable[[], bytes] | None = None
    base: Any = None
    request: Message = field(default_factory=dict)


class Load(Protocol):
    """What is known of the nodes."""

    def in_flight(self, node: RouteNode) -> int: ...

    def latency(self, node: RouteNode) -> float:
        """Seconds; 0 is unknown."""

    def turn(self, route: Route) -> int:
        """A number that goes up by one each time."""


def order(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    """The nodes in the order in which they are to be tried."""
    if len(nodes) == 1:
        return list(nodes)
    return sorted(nodes, key=lambda node: (load.in_flight(node), random.random()))
