"""Which of a route's nodes a request goes to, and where to next. Source: upstream dev_router."""

from __future__ import annotations

import hashlib
import math
import random
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..commitments import unsigned_id
from ..errors import HyperbeamError
from ..message import Message, is_id, public
from . import affinity
from .table import DEFAULT_STRATEGY, Route, RouteNode

_FIELD = 1 << 256


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


class Idle:
    """Nodes of which nothing is known."""

    def in_flight(self, node: RouteNode) -> int:
        return 0

    def latency(self, node: RouteNode) -> float:
        return 0.0

    def turn(self, route: Route) -> int:
        return 0


Strategy = Callable[[Route, Sequence[RouteNode], Ask, Load], list[RouteNode]]


def order(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    """`nodes` in the order in which they are to be tried."""
    if len(nodes) == 1:
        return list(nodes)
    return STRATEGIES[route.strategy](route, nodes, ask, load)


def rendezvous(key: bytes, node: RouteNode) -> float:
    """How much of a claim `node` has on `key`: the highest of all nodes has it.

    Without a node only its own keys go elsewhere, and a new one takes its share alone.
    Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005).
    """
    digest = hashlib.sha256(node.id.encode() + b"\0" + key).digest()
    share = (int.from_bytes(digest[:7], "big") + 0.5) / (1 << 56)
    return -node.weight / math.log(share)


def _all(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    return list(nodes)


def _random(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    return random.sample(nodes, len(nodes))


def _by_weight(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    # Sorted by u ** (1 / weight) is drawn by weight without putting back (Efraimidis, Spirakis).
    return sorted(nodes, key=lambda node: math.log(1 - random.random()) / node.weight, reverse=True)


def _by_base(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    number = _base_number(ask)
    left = list(nodes)
    return [left.pop(number % len(left)) for _ in nodes]


def _nearest(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    number = _base_number(ask)

    def distance(node: RouteNode) -> int:
        apart = abs(_number(node.wallet) - number)
        return min(apart, _FIELD - apart)

    return sorted(nodes, key=distance)


def _round_robin(route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load) -> list[RouteNode]:
    first = load.turn(route) % len(nodes)
    return [*nodes[first:], *nodes[:first]]


def _least_loaded(
    route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load
) -> list[RouteNode]:
    return sorted(nodes, key=lambda node: (load.in_flight(node) / node.weight, random.random()))


def _shortest_latency(
    route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load
) -> list[RouteNode]:
    # One that has answered nothing yet is tried first: else it would stay unknown.
    return sorted(nodes, key=lambda node: (load.latency(node), random.random()))


def _prefix_affinity(
    route: Route, nodes: Sequence[RouteNode], ask: Ask, load: Load
) -> list[RouteNode]:
    key = ask.affinity() if ask.affinity is not None else affinity.of_request(ask.request)
    return sorted(nodes, key=lambda node: rendezvous(key, node), reverse=True)


STRATEGIES: Mapping[str, Strategy] = {
    "All": _all,
    "Random": _random,
    "By-Base": _by_base,
    "By-Weight": _by_weight,
    "Nearest": _nearest,
    "Round-Robin": _round_robin,
    DEFAULT_STRATEGY: _least_loaded,
    "Shortest-Latency": _shortest_latency,
    "Prefix-Affinity": _prefix_affinity,
}


def _base_number(ask: Ask) -> int:
    """The base message's id as a number; of a request without a base the hash of its path."""
    base = public(ask.base) if isinstance(ask.base, dict) else None
    if base:
        try:
            return _number(unsigned_id(base))
        except HyperbeamError:
            pass  # no id: too large, or with values that no id is for
    return int.from_bytes(hashlib.sha256(ask.path.encode("utf-8", "replace")).digest(), "big")


def _number(id: str) -> int:
    return int.from_bytes(urlsafe_b64decode(id + "=") if is_id(id) else id.encode(), "big")
