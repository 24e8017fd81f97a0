"""routes.toml, read: what is wrong is refused with its line and what to do."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import re2
from msgspec import Meta

from ..config import Positive, Seconds
from ..errors import ConfigError
from ..message import is_device_name, is_id
from . import secrets
from .places import Places
from .strategy import STRATEGIES
from .table import (
    DEFAULT_RETRIES,
    DEFAULT_STRATEGY,
    LOCAL,
    HealthCheck,
    Route,
    RouteLimits,
    RouteNode,
    RouteTable,
    Timeouts,
)

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Text = Annotated[str, Meta(max_length=4096)]
MAX_PATTERN_MEMORY = 8 * 1024 * 1024
"""Bytes that a compiled pattern may take."""

_FIELDS: Mapping[str, Any] = {"forbid_unknown_fields": True, "rename": "kebab"}
_URL = re.compile(r"[!-~]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_PLACE = re.compile(r" - at `\$((?:\.[\w-]+|\[(?:\d+|\.\.\.)\])*)`")
_OWN_HEADERS = frozenset({"connection", "content-length", "host", "te", "transfer-encoding"})

T = TypeVar("T", Timeouts, HealthCheck, RouteLimits)


class _Times(msgspec.Struct, **_FIELDS):
    connect: Seconds | None = None
    first_byte: Seconds | None = None
    idle: Seconds | None = None
    total: Annotated[float, Meta(ge=0)] | None = None


class _Health(msgspec.Struct, **_FIELDS):
    path: Annotated[str, Meta(pattern=r"^/[!-~]*$")] | None = None
    interval: Annotated[float, Meta(ge=0.1, le=3600)] | None = None
    timeout: Seconds | None = None
    healthy: Positive | None = None
    unhealthy: Positive | None = None


class _Limits(msgspec.Struct, **_FIELDS):
    in_flight: Count | None = None
    queue: Count | None = None
    queue_timeout: Seconds | None = None
    per_client: Count | None = None


class _Options(msgspec.Struct, **_FIELDS):
    timeout: Seconds | _Times | None = None
    health: Text | _Health | None = None
    headers: dict[str, Text] = {}
    auth: Text = ""


class _NodeFields(_Options, **_FIELDS):
    backend: Text = ""
    prefix: Text = ""
    suffix: Text = ""
    match: Text = ""
    replace: Text = msgspec.field(default="", name="with")
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    wallet: Text = ""
    models: list[Text] = []
    opts: _Options | None = None


class _RouteFields(msgspec.Struct, **_FIELDS):
    template: Text | dict[str, Text]
    node: Text | _NodeFields | None = None
    nodes: list[Text | _NodeFields] = []
    priority: int = 0
    device: Text = ""
    strategy: Text = DEFAULT_STRATEGY
    models: list[Text] = []
    timeout: Seconds | _Times | None = None
    health: Text | _Health | None = None
    limits: _Limits | None = None
    retries: Annotated[int, Meta(ge=0, le=100)] = DEFAULT_RETRIES
    idempotent: bool = False
    choose: Annotated[int, Meta(ge=1, le=100)] = 1
    parallel: bool = False
    responses: Annotated[int, Meta(ge=1, le=100)] = 1
    stop_after: bool = True


class _TableFields(msgspec.Struct, forbid_unknown_fields=True):
    routes: list[_RouteFields] = []


def load_routes(path: Path) -> RouteTable:
    """Read the table `path`. Raises ConfigError: file, line, what is wrong and what to do."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return parse_routes(text, str(path))


def parse_routes(text: str, source: str) -> RouteTable:
    """Read a table's text; `source` names it in errors. Raises ConfigError."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: {error}") from None
    try:
        read = msgspec.convert(values, _TableFields)
    except msgspec.ValidationError as error:
        raise _refused(str(error), source, Places(text), values) from None
    table = _Table(source, Places(text))
    routes = [table.route(number, each) for number, each in enumerate(read.routes, 1)]
    table.check_reachable(routes)
    return RouteTable(routes, source, text)


class _Table:
    """Makes routes of what was read, and knows where that stood."""

    def __init__(self, source: str, places: Places) -> None:
        self._source = source
        self._places = places
        self._number = 0

    def fail(self, detail: str, field: str = "", number: int = 0) -> ConfigError:
        number = number or self._number
        line = self._places.field(number, field)
        place = f"{self._source}:{line}" if line else self._source
        return ConfigError(f"{place}: route {number}: {detail}")

    def route(self, number: int, fields: _RouteFields) -> Route:
        self._number = number
        template = fields.template
        patterns = {"path": template} if isinstance(template, str) else dict(template)
        if not patterns or not all(patterns.values()):
            raise self.fail("an empty template matches nothing; name a path", "template")
        compiled = {name: self._regex(text, "template") for name, text in patterns.items()}
        if fields.strategy not in STRATEGIES:
            raise self.fail(
                f"strategy {fields.strategy!r}{_near(fields.strategy, STRATEGIES)}", "strategy"
            )
        if fields.device and not is_device_name(fields.device):
            raise self.fail(
                f"device {fields.device!r} is not a name such as inference@1.0", "device"
            )
        times = self._times(fields.timeout, Timeouts())
        health = self._health(fields.health, None)
        nodes = self._nodes(fields, times, health)
        if fields.responses > len(nodes):
            raise self.fail(
                f"responses = {fields.responses}, but it has {len(nodes)} nodes", "responses"
            )
        if fields.device and fields.responses > 1:
            raise self.fail(
                "responses: a device gives one answer; leave `device` out to gather several",
                "responses",
            )
        if fields.strategy == "Nearest":
            for node in nodes:
                if not is_id(node.wallet):
                    raise self.fail("strategy Nearest needs the wallet of every node", "nodes")
        return Route(
            template,
            nodes,
            fields.priority,
            fields.device,
            times,
            compiled,
            id=f"{fields.priority} {_spelled(template)}",
            limits=_with(RouteLimits(), fields.limits),
            strategy=fields.strategy,
            choose=max(fields.choose, fields.responses),
            parallel=fields.parallel,
            responses=fields.responses,
            stop_after=fields.stop_after,
            retries=fields.retries,
            idempotent=fields.idempotent,
            listed=fields.node is None,
        )

    def check_reachable(self, routes: list[Route]) -> None:
        """Refuse a route that another one with the same template always stands before."""
        seen: dict[str, int] = {}
        for number, route in enumerate(routes, 1):
            first = seen.setdefault(route.id, number)
            if first != number:
                raise self.fail(
                    f"it has the template and the priority of route {first}, which is always "
                    "taken first: put their nodes into one route",
                    "template",
                    number,
                )

    def _nodes(
        self, fields: _RouteFields, times: Timeouts, health: HealthCheck | None
    ) -> list[RouteNode]:
        if fields.node is not None and fields.nodes:
            raise self.fail("it has both node and nodes; write them all into nodes", "node")
        written = [fields.node] if fields.node is not None else fields.nodes
        if not written:
            raise self.fail('it has no nodes; write nodes = [{ backend = "local" }]')
        nodes = []
        for each in written:
            node = _NodeFields(prefix=each) if isinstance(each, str) else self._flat(each)
            nodes.append(self._node(node, fields, times, health))
        if not fields.device and any(node.backend for node in nodes):
            raise self.fail(
                'backend = "local" is reached by a device only; add device = "inference@1.0"',
                "backend",
            )
        ids = [node.id for node in nodes]
        for name in ids:
            if ids.count(name) > 1:
                raise self.fail(
                    f"{name} stands twice among its nodes; to send more there give it a weight",
                    name.partition(" ")[0],
                )
        return nodes

    def _flat(self, fields: _NodeFields) -> _NodeFields:
        """A node whose `opts` are among its own fields."""
        if fields.opts is None:
            return fields
        named = {
            field.name: value
            for field in msgspec.structs.fields(_Options)
            if (value := getattr(fields.opts, field.name))
        }
        for name in named:
            if getattr(fields, name):
                raise self.fail(f"a node says {name} twice, by itself and in opts", "opts")
        return msgspec.structs.replace(fields, opts=None, **named)

    def _node(
        self,
        fields: _NodeFields,
        route: _RouteFields,
        times: Timeouts,
        health: HealthCheck | None,
    ) -> RouteNode:
        if bool(fields.backend) == bool(fields.prefix):
            raise self.fail('a node has either backend = "local" or prefix = "http://..."', "node")
        if fields.backend and fields.backend != LOCAL:
            raise self.fail(f'backend {fields.backend!r}: there is only "{LOCAL}"', "backend")
        if fields.backend and (fields.headers or fields.auth or fields.health):
            raise self.fail(
                'backend = "local" has no headers, auth or health: the node looks after it itself',
                "backend",
            )
        if fields.prefix:
            self._check_url(fields.prefix)
        match = self._regex(fields.match, "match") if fields.match else None
        self._check_replacement(match, fields.replace)
        for text in (fields.suffix, fields.replace):
            if secrets.looks_secret(text):
                raise self._secret("suffix" if text == fields.suffix else "with")
        prefix = fields.prefix.rstrip("/")
        words = (fields.backend, prefix, fields.suffix, fields.match, fields.replace)
        return RouteNode(
            id=" ".join(word for word in words if word),
            backend=fields.backend,
            prefix=prefix,
            suffix=fields.suffix,
            match=match,
            replace=fields.replace,
            weight=fields.weight,
            wallet=fields.wallet,
            models=tuple(fields.models or route.models),
            headers=self._headers(fields.headers),
            auth=self._auth(fields.auth or "none"),
            timeouts=self._times(fields.timeout, times),
            health=None if fields.backend else self._health(fields.health, health),
        )

    def _check_replacement(self, match: Any, replacement: str) -> None:
        if match is None:
            if replacement:
                raise self.fail(f"with = {replacement!r} stands without a match", "with")
            return
        groups = [int(number) for number in re.findall(r"\\(\d)", replacement)]
        if groups and max(groups) > match.groups:
            raise self.fail(
                f"with = {replacement!r} names group {max(groups)}, but match has {match.groups}",
                "with",
            )

    def _times(self, written: float | _Times | None, base: Timeouts) -> Timeouts:
        if isinstance(written, int | float):
            return replace(base, first_byte=float(written), idle=float(written))
        return _with(base, written)

    def _health(
        self, written: str | _Health | None, base: HealthCheck | None
    ) -> HealthCheck | None:
        if written is None:
            return base
        if isinstance(written, str):
            if written == "none":
                return None
            if not written.startswith("/") or not _URL.fullmatch(written):
                raise self.fail(f'health {written!r} is not a path such as "/health"', "health")
            return replace(base or HealthCheck(), path=written)
        return _with(base or HealthCheck(), written)

    def _headers(self, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        for name, value in headers.items():
            if name.lower() in secrets.HEADERS or secrets.looks_secret(value):
                raise self._secret(name)
            if not _HEADER_NAME.match(name) or name.lower() in _OWN_HEADERS:
                raise self.fail(f"headers: {name!r} cannot be set here", "headers")
            if not value.isprintable() or not value.isascii():
                raise self.fail(f"headers: the value of {name!r} is not plain ASCII", "headers")
        return tuple((name.lower(), value) for name, value in headers.items())

    def _auth(self, auth: str) -> str:
        kind, _, name = auth.partition(":")
        if auth in ("none", "forward"):
            return auth
        if kind == "env" and _VARIABLE.match(name):
            if not os.environ.get(name):
                raise self.fail(
                    f"auth: the variable {name} is not set; set it for the node", "auth"
                )
            return auth
        if kind == "file" and name:
            try:
                Path(name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise self.fail(f"auth: the file cannot be read: {error}", "auth") from None
            return auth
        raise self.fail(
            'auth is "none", "forward", "env:NAME" or "file:PATH", never the secret itself', "auth"
        )

    def _check_url(self, prefix: str) -> None:
        try:
            parts = urlsplit(prefix if _URL.fullmatch(prefix) else "")
            port_is_sound = parts.port is None or parts.port > 0
        except ValueError:
            port_is_sound = False
            parts = urlsplit("")
        if parts.username or parts.password or secrets.looks_secret(parts.query):
            raise self._secret("prefix")
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_sound:
            raise self.fail(
                f"prefix {prefix!r} is not a URL such as http://127.0.0.1:8000 "
                "(ports are 1 to 65535)",
                prefix,
            )
        if parts.query or parts.fragment:
            raise self.fail(f"prefix {prefix!r} has a query; that is what suffix is for", prefix)

    def _secret(self, field: str) -> ConfigError:
        return self.fail(
            f"{field}: a secret does not belong into the table, which anybody can read; "
            f"{secrets.INSTEAD}",
            field,
        )

    def _regex(self, text: str, field: str) -> Any:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MAX_PATTERN_MEMORY
        try:
            return re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            hint = ""
            if re.search(r"\(\?[=!<]|\\[1-9]", text):
                hint = "; RE2 has no lookaround and no backreference, so that no pattern can hang"
            raise self.fail(f"{field} {text!r} is no pattern: {said}{hint}", field) from None


def _spelled(template: str | Mapping[str, str]) -> str:
    if isinstance(template, str):
        return template
    return ", ".join(f"{name} {pattern}" for name, pattern in sorted(template.items()))


def _with(base: T, written: msgspec.Struct | None) -> T:
    """`base` with what was written in place of its own."""
    if written is None:
        return base
    said = {
        field.name: value
        for field in fields_of(base)
        if (value := getattr(written, field.name)) is not None
    }
    return replace(base, **said)


def _refused(detail: str, source: str, places: Places, values: Mapping[str, Any]) -> ConfigError:
    """What msgspec found wrong, with the route, its line, and the field that was meant."""
    place = _PLACE.search(detail)
    path = place[1] if place else ""
    said = detail[: place.start()] if place else detail
    found = re.match(r"\.routes\[(\d+)\]", path)
    number = int(found[1]) + 1 if found else 0
    unknown = _UNKNOWN.search(said)
    inner = path.removeprefix(found[0] if found else "").strip(".")
    if unknown:
        known = _known(path)
        said = f"unknown field {unknown[1]!r}{_near(unknown[1], known)}"
        field = unknown[1]
    else:
        field = re.sub(r"\[.*?\]", "", inner).rpartition(".")[2]
        said = f"{inner}: {said}" if inner else said
    if not number:
        return ConfigError(f"{source}: {said}")
    return ConfigError(f"{source}:{places.field(number, field)}: route {number}: {said}")


def _known(path: str) -> list[str]:
    """The fields that stand where a path of msgspec's leads."""
    if not path:
        return ["routes"]
    struct: type[msgspec.Struct] = _RouteFields
    for word, types in (
        (".node", _NodeFields),
        (".opts", _Options),
        (".timeout", _Times),
        (".health", _Health),
        (".limits", _Limits),
    ):
        if word in path:
            struct = types
    return [field.encode_name for field in msgspec.structs.fields(struct)]


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; there is: {', '.join(names)}"
