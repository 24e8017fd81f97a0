"""The route table: what routes and their nodes say, and which route a path takes.

Field names are upstream's (dev_router), so that an operator's table carries over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import NoRoute
from ..message import Message

LOCAL = "local"
DEFAULT_STRATEGY = "Least-Loaded"
DEFAULT_RETRIES = 2
_REMEMBERED = 1024
_REMEMBERED_LENGTH = 256
"""So many paths of at most this length are not matched again."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, to the first byte, between bytes, altogether (0: no limit)."""

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 600.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How a node is probed: GET `path` each `interval` seconds, 200 to 399 is healthy.

    It is down after `unhealthy` failures in a row, up after `healthy` successes.
    """

    path: str = "/health"
    interval: float = 1.0
    timeout: float = 5.0
    healthy: int = 1
    unhealthy: int = 2


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Requests in flight, waiting, and of one client in flight; 0 is no limit."""

    in_flight: int = 0
    queue: int = 0
    queue_timeout: float = 30.0
    per_client: int = 0


@dataclass(slots=True)
class RouteNode:
    """One backend of a route: `backend` is one that the route's device runs.

    Else `prefix`, an address, stands before the request's path and `suffix` after it;
    `match` and `with` rewrite the path first. `id` names what is addressed, the same in
    every table that addresses it.
    """

    id: str = ""
    backend: str = ""
    prefix: str = ""
    suffix: str = ""
    match: Any = None
    replace: str = ""
    weight: float = 1.0
    wallet: str = ""
    models: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    auth: str = "none"
    timeouts: Timeouts = Timeouts()
    health: HealthCheck | None = None

    def target(self, path: str) -> str:
        """The path and query that the backend gets for the request's `path`.

        They begin with a slash, so that no path can add to the prefix's host or port.
        """
        if self.match is not None:
            path = self.match.sub(self.replace, path, count=1)
        return f"{self.prefix}/{path.lstrip('/')}{self.suffix}"

    def describe(self) -> Message:
        """The node's fields as the table has them, of its headers the names."""
        fields = {
            "backend": self.backend,
            "prefix": self.prefix,
            "suffix": self.suffix,
            "match": self.match.pattern if self.match is not None else "",
            "with": self.replace,
            "wallet": self.wallet,
            "models": list(self.models),
            "headers": [name for name, _ in self.headers],
            "auth": "" if self.auth == "none" else self.auth,
            "weight": "" if self.weight == 1.0 else self.weight,
            "health": _public(self.health) if self.health is not None else "",
        }
        return {name: value for name, value in fields.items() if value}


@dataclass(slots=True)
class Route:
    """A rule: paths that `template` matches whole go to `device`, or to one of `nodes`."""

    template: str | Mapping[str, str]
    nodes: list[RouteNode]
    priority: int = 0
    device: str = ""
    timeouts: Timeouts = Timeouts()
    patterns: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    limits: RouteLimits = RouteLimits()
    strategy: str = DEFAULT_STRATEGY
    choose: int = 1
    parallel: bool = False
    responses: int = 1
    stop_after: bool = True
    retries: int = DEFAULT_RETRIES
    idempotent: bool = False
    listed: bool = True
    """Whether the table has `nodes`, or one `node`."""

    def matches(self, path: str, request: Mapping[str, Any]) -> bool:
        """Whether every pattern matches its key whole; the path is taken without its query."""
        for name, pattern in self.patterns.items():
            value = path if name == "path" else request.get(name)
            if not isinstance(value, str) or pattern.fullmatch(value) is None:
                return False
        return True

    def describe(self) -> Message:
        """The route's fields as the table has them, without what it would have anyway."""
        nodes = [self._describe(node) for node in self.nodes]
        message: Message = {
            "template": self.template if isinstance(self.template, str) else dict(self.template),
            **({"nodes": nodes} if self.listed else {"node": nodes[0]}),
        }
        if self.timeouts != Timeouts():
            message["timeout"] = describe_times(self.timeouts)
        for name, value, usual in (
            ("device", self.device, ""),
            ("priority", self.priority, 0),
            ("strategy", self.strategy, DEFAULT_STRATEGY),
            ("retries", self.retries, DEFAULT_RETRIES),
        ):
            if value != usual:
                message[name] = value
        if self.limits != RouteLimits():
            message["limits"] = _public(self.limits)
        if self.choose != 1 or self.responses != 1:
            message["choose"] = self.choose
            message["parallel"] = self.parallel
            message["responses"] = self.responses
            message["stop-after"] = self.stop_after
        if self.idempotent:
            message["idempotent"] = True
        return message

    def _describe(self, node: RouteNode) -> Message:
        message = node.describe()
        if node.timeouts != self.timeouts:
            message["timeout"] = describe_times(node.timeouts)
        return message


class RouteTable:
    """Routes in the order in which they are tried: by priority, then as written."""

    def __init__(self, routes: list[Route], source: str = "", text: str = "") -> None:
        self.routes = sorted(routes, key=lambda route: route.priority)
        self.source = source
        self.text = text
        """The TOML that it was read from."""
        self._by_path = all(set(route.patterns) <= {"path"} for route in self.routes)
        self._found: dict[str, Route | None] = {}

    def nodes(self) -> Iterator[RouteNode]:
        """Every node once, as the first route that has it says."""
        seen = set()
        for route in self.routes:
            for node in route.nodes:
                if node.id not in seen:
                    seen.add(node.id)
                    yield node

    def match(self, path: str, request: Mapping[str, Any]) -> Route | None:
        """The first route for `path`, or None; its query and needless slashes do not count."""
        bare = "/" + path.partition("?")[0].lstrip("/")
        if not self._by_path or len(bare) > _REMEMBERED_LENGTH:
            return self._match(bare, request)
        if bare not in self._found:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[bare] = self._match(bare, request)
        return self._found[bare]

    def _match(self, bare: str, request: Mapping[str, Any]) -> Route | None:
        for tried in (bare, bare.rstrip("/")) if bare.endswith("/") else (bare,):
            for route in self.routes:
                if route.matches(tried, request):
                    return route
        return None

    def require(self, path: str, request: Mapping[str, Any]) -> Route:
        """As `match`. Raises NoRoute that lists the patterns tried."""
        route = self.match(path, request)
        if route is None:
            tried = ", ".join(str(route.template) for route in self.routes) or "none"
            raise NoRoute(path, f"no route for {path[:200]!r}; tried: {tried}")
        return route


def describe_times(times: Timeouts) -> float | Message:
    """As a table has them: one number where that says it all."""
    if times == Timeouts(first_byte=times.idle, idle=times.idle):
        return times.idle
    return _public(times)


def _public(value: Timeouts | HealthCheck | RouteLimits) -> Message:
    return {name.replace("_", "-"): getattr(value, name) for name in value.__slots__}
