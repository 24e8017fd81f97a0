"""The route table: read from routes.toml, matched for every path that names no device.

Field names are upstream's (dev_router), so that an operator's table carries over.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import re2

from ..config import Seconds, convert
from ..errors import ConfigError, NoRoute
from ..message import Message, is_device_name

_LOCAL = "local"
_URL = re.compile(r"[!-~]+")


class _NodeFields(msgspec.Struct, forbid_unknown_fields=True):
    backend: str = ""
    prefix: str = ""
    suffix: str = ""
    match: str = ""
    replace: str = msgspec.field(default="", name="with")


class _RouteFields(msgspec.Struct, forbid_unknown_fields=True):
    template: str | dict[str, str]
    node: str | _NodeFields | None = None
    nodes: list[str | _NodeFields] = []
    priority: int = 0
    device: str = ""
    timeout: Seconds = 600.0


class _TableFields(msgspec.Struct, forbid_unknown_fields=True):
    routes: list[_RouteFields] = []


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
        """The node's fields as the table has them."""
        fields = {
            "backend": self.backend,
            "prefix": self.prefix,
            "suffix": self.suffix,
            "match": self.match.pattern if self.match is not None else "",
            "with": self.replace,
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
    strategy: str = "Least-Loaded"
    choose: int = 1
    parallel: bool = False
    responses: int = 1
    stop_after: bool = True
    retries: int = 2
    idempotent: bool = False

    def matches(self, path: str, request: Mapping[str, Any]) -> bool:
        """Whether every pattern matches its key whole; the path is taken without its query."""
        for name, pattern in self.patterns.items():
            value = path if name == "path" else request.get(name)
            if not isinstance(value, str) or pattern.fullmatch(value) is None:
                return False
        return True

    def describe(self) -> Message:
        """The route's fields as the table has them."""
        message: Message = {
            "template": self.template if isinstance(self.template, str) else dict(self.template),
            "nodes": [node.describe() for node in self.nodes],
            "priority": self.priority,
            "timeout": self.timeouts.first_byte,
        }
        if self.device:
            message["device"] = self.device
        return message


class RouteTable:
    """Routes in the order in which they are tried: by priority, then as written."""

    def __init__(self, routes: list[Route], source: str = "") -> None:
        self.routes = sorted(routes, key=lambda route: route.priority)
        self.source = source

    def match(self, path: str, request: Mapping[str, Any]) -> Route | None:
        """The first route for `path`, or None; its query and needless slashes do not count."""
        bare = "/" + path.partition("?")[0].lstrip("/")
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


def load_routes(path: Path) -> RouteTable:
    """Read a table. Raises ConfigError with the file, the route and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    fields = convert(values, _TableFields, str(path))
    routes = [_route(each, f"{path}: route {n}") for n, each in enumerate(fields.routes, 1)]
    return RouteTable(routes, str(path))


def _route(fields: _RouteFields, where: str) -> Route:
    template = fields.template
    patterns = {"path": template} if isinstance(template, str) else dict(template)
    if not patterns:
        raise ConfigError(f"{where}: an empty template matches nothing; name a path")
    compiled = {name: _regex(text, f"{where}: template") for name, text in patterns.items()}
    if fields.node is not None and fields.nodes:
        raise ConfigError(f"{where}: it has both node and nodes; write them all into nodes")
    written = [fields.node] if fields.node is not None else fields.nodes
    nodes = [_node(each, where) for each in written]
    if not nodes:
        raise ConfigError(f'{where}: it has no nodes; write nodes = [{{ backend = "local" }}]')
    if fields.device:
        if not is_device_name(fields.device):
            raise ConfigError(
                f"{where}: device {fields.device!r} is not a name such as inference@1.0"
            )
        if any(not node.backend for node in nodes):
            raise ConfigError(
                f"{where}: a route with a device takes nodes with a backend only; "
                "leave `device` out to relay to other nodes"
            )
    elif any(node.backend for node in nodes):
        raise ConfigError(
            f'{where}: backend = "local" is reached by a device only; add device = "inference@1.0"'
        )
    timeouts = Timeouts(first_byte=fields.timeout, idle=fields.timeout)
    for node in nodes:
        node.timeouts = timeouts
    name = f"{fields.priority} {template}"
    return Route(template, nodes, fields.priority, fields.device, timeouts, compiled, name)


def _node(written: str | _NodeFields, where: str) -> RouteNode:
    fields = _NodeFields(prefix=written) if isinstance(written, str) else written
    if bool(fields.backend) == bool(fields.prefix):
        raise ConfigError(f'{where}: a node has either backend = "local" or prefix = "http://..."')
    if fields.backend and fields.backend != _LOCAL:
        raise ConfigError(f'{where}: backend {fields.backend!r}: there is only "local"')
    if fields.prefix:
        _check_url(fields.prefix, where)
    match = _regex(fields.match, f"{where}: match") if fields.match else None
    if match is None and fields.replace:
        raise ConfigError(f"{where}: with = {fields.replace!r} stands without a match")
    groups = [int(number) for number in re.findall(r"\\(\d)", fields.replace)]
    if match is not None and groups and max(groups) > match.groups:
        raise ConfigError(
            f"{where}: with = {fields.replace!r} names group {max(groups)}, "
            f"but match has {match.groups}"
        )
    prefix = fields.prefix.rstrip("/")
    name = " ".join(filter(None, (fields.backend, prefix, fields.suffix, fields.match)))
    return RouteNode(name, fields.backend, prefix, fields.suffix, match, fields.replace)


def _check_url(prefix: str, where: str) -> None:
    try:
        parts = urlsplit(prefix if _URL.fullmatch(prefix) else "")
        port_is_sound = parts.port is None or parts.port > 0
    except ValueError:
        port_is_sound = False
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_sound:
        raise ConfigError(f"{where}: prefix {prefix!r} is not a URL such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ConfigError(f"{where}: prefix {prefix!r} has a query; that is what suffix is for")
    if parts.username or parts.password:
        raise ConfigError(
            f"{where}: a secret does not belong into the table: take it out of the URL"
        )


def _regex(text: str, where: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ConfigError(f"{where}: {text!r} is no pattern: {_text(error)}") from None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
