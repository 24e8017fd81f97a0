"""A node: devices, store, routes and the server around one resolver.

A node is an object; two with homes of their own can live in one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from . import budget, declared, registry
from .access import Access
from .cache import Cache
from .config import Config
from .device import Device
from .errors import ConfigError, HyperbeamError, NotFound
from .faults import contained
from .front import Front
from .grouping import Groups
from .home import Home, home_of
from .hooks import Hooks
from .http.hosts import is_loopback
from .http.server import Server
from .http.signing import signatures
from .http.target import parse_url
from .http.upstream import Upstream
from .identity import Identity
from .keys import AdoptedKeys, Keys
from .message import Message
from .observe import logging as log_output
from .observe.metrics import Metrics
from .observe.tracing import open_tracing
from .observe.waiting import waiting_for
from .observe.watch import Watch
from .operator import Operator
from .path import parse
from .receipts import Receipts
from .resolver import resolve_steps
from .routing import RouteTable, load_routes, routes_file
from .routing.backends import Backends
from .routing.dispatch import Dispatcher
from .routing.reload import RouteWatcher
from .serve.board import Board
from .serve.counters import Counters, LocalCounters
from .signers import Signer, read_key
from .store import LMDBStore, MemoryStore, Recent, Remotes, Store
from .targets import is_empty

SAVE_USAGE = 10.0
"""Seconds between savings of what API keys have used."""

Role = Literal["single", "supervisor", "worker"]

log = logging.getLogger("hyperbeam.node")


@dataclass(frozen=True, slots=True)
class _Configured:
    config: Any


class Node:
    """A node as `config` has it.

    `start` opens the home and listens, `stop` ends both; `async with Node(config)` does
    the two. Until `start` nothing is opened, and `resolve` works only between the two.

    `role`: `single` does everything in this process; a `supervisor` answers no requests
    itself, its `worker`s do, with `counters` that all share. `home` is the folder where it
    was opened before.
    """

    def __init__(
        self,
        config: Config | None = None,
        role: Role = "single",
        *,
        counters: Counters | None = None,
        home: Home | None = None,
    ) -> None:
        self.config = config or Config()
        self.role = role
        self.board = Board(writable=role != "worker")
        self.counters: Counters = counters or LocalCounters()
        self.home = home_of(self.config)
        self._home = home or Home(self.home)
        self.store: Store = _store(self.config, self.home)
        self.cache = Cache(
            self.store, recent=Recent(self.config.store.recent), results=self.config.store.results
        )
        self.access = Access(self.config.access, self.store, self.counters)
        self.keys = AdoptedKeys(self.home) if role == "worker" else Keys(self.home)
        kept = self.config.receipts
        self.receipts = Receipts(
            self.home / "receipts.sqlite",
            keep=kept.keep,
            days=kept.days,
            keeper=role != "worker",
        )
        self.upstream = Upstream()
        if self.config.store.remotes:
            self.cache.remotes = Remotes(_addresses(self.config.store.remotes), self._get)
        self.backends = Backends()
        self.dispatch = Dispatcher(
            self.upstream, self.counters, self.backends, probing=role != "worker"
        )
        self.devices: dict[str, Device] = {}
        self.groups = Groups()
        self.hooks = Hooks(self, _hooks(self.config))
        self.operator = Operator(self, self.use_config)
        self._front = Front(self)
        self.failures: dict[str, registry.Failure] = {}
        self.routes = RouteTable([])
        self.watcher: RouteWatcher | None = None
        self.metrics = Metrics("node" if role == "single" else role)
        self.dispatch.metrics = self.metrics
        self.tracing = open_tracing(self.config.tracing)
        http = self.config.http
        self.server = Server(
            self,
            host=http.host,
            port=http.port,
            body_limit=http.body_limit,
            header_timeout=http.header_timeout,
            body_timeout=http.body_timeout,
            send_timeout=http.send_timeout,
            keep_alive_comment=http.keep_alive_comment,
            hosts=http.hosts if is_loopback(http.host) else None,
            cors=http.cors,
            proxies=http.trusted_proxies,
            # What one of several processes keeps, the others do not have.
            link=self.cache.keep if role == "single" else None,
            sign=self.sign_reply if self.config.sign_replies else None,
            watch=Watch(self.metrics, access=_access(self.config), tracing=self.tracing),
        )
        self._measure()
        self._usage: asyncio.Task[None] | None = None
        self._found: dict[str, registry.Found] = {}
        self._running: list[Device] = []
        self._started = asyncio.Event()

    @cached_property
    def committer(self) -> Signer:
        """The key that commits messages and signs replies. Raises ConfigError."""
        return read_key(self.config.wallet) if self.config.wallet else self.identity.committer

    @property
    def identity(self) -> Identity:
        """Who this node is, from its start on."""
        return self.keys.identity

    async def start(self) -> None:
        """Load, open, listen, start the devices. Raises ConfigError where it cannot."""
        if self.role != "worker":
            self._home.open()
        try:
            self.store.open()
            if self.role != "worker":
                self._check_open(self.config)
                self.access.restore()
                await self.server.bind()  # before an identity is made for nothing
            self.keys.open()
            if self.role != "worker":
                self.operator.open()
                if self.config.wallet:
                    _ = self.committer  # refused now, not at the first reply
            self.receipts.open()
            self._load_devices()
            if self.role != "worker":
                self.watcher = self._watch_routes()
            self._take_routes(self._read_routes())
            self.check_routes(self.routes)
            self.hooks.check(self.devices)
            self._declare()
            await self._listen()
            self.metrics.start()
            await self._start_devices()
            self._declare()
            await self.dispatch.start()
            if self.role != "worker":
                self._usage = asyncio.create_task(self._keep_usage(), name="usage")
            if self.watcher is not None:
                self.watcher.start()
            if self.role != "worker" and self.hooks.start:
                await self._run_start()
        except BaseException:
            await self.stop()
            raise
        self._started.set()

    async def stop(self, drain: float = 0.0) -> None:
        """Finish running answers for at most `drain` seconds, then end everything."""
        try:
            if self.watcher is not None:
                await self.watcher.stop()
            await self.server.drain(drain)
        finally:
            while self._running:
                device = self._running.pop()
                try:
                    with waiting_for(f"device {device.name} to stop"):
                        await device.stop()
                except BaseException as error:
                    if not isinstance(contained(error, f"{device.name}/stop"), Exception):
                        raise
                    log.exception("device %s did not stop cleanly", device.name)
            self._started.clear()
            self.metrics.stop()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)
            await self.dispatch.stop()
            if self.cache.remotes is not None:
                await self.cache.remotes.close()
            await self.upstream.close()
            if self._usage is not None:
                self._usage.cancel()
                self._save_usage()
                self._usage = None
            try:
                await self.receipts.close()
                self.store.close()
            finally:
                self._home.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def device(self, name: str) -> Device:
        """The device `name`. Raises NotFound, which says so if it is one that did not load."""
        device = self.devices.get(name)
        if device is None:
            # The reason may tell paths, and the reader may be anybody.
            failed = name in self.failures
            detail = f"device {name} did not load: the node's log says why"
            raise NotFound(name, detail if failed else f"no device {name[:200]!r}")
        return device

    async def resolve(self, base: Any, request: Message | str) -> Any:
        """Resolve `request`, a path or a message with one, on `base` (None: the path makes it).

        Gives a value, a message or a Stream. Raises HyperbeamError,
        BadRequest among them for what leads to over a thousand more of these.
        """
        message = {"path": request} if isinstance(request, str) else dict(request)
        path = message.pop("path", "")
        steps = parse(path, message)
        async with budget.spend():
            if base is None:
                return await resolve_steps(self, steps)
            return await resolve_steps(self, steps[1:] if is_empty(steps[0]) else steps, base)

    async def handle(self, request: Message) -> Any:
        """Answer a request from outside: along a route, or by the path's own devices."""
        await self._started.wait()
        with budget.request():
            return await self._front.answer(request)

    def render_error(self, error: HyperbeamError, request: Message) -> Message:
        """The reply for `error`: by the device of the path or its route, else our own shape."""
        return self._front.render_error(error, request)

    async def use_routes(self, table: RouteTable) -> None:
        """Have `table` take the place of the routes, after a key set that says so.

        Raises ConfigError for a route to a device that is not there; then nothing changes.
        """
        self.check_routes(table)
        await asyncio.to_thread(self._declare, table)
        self._take_routes(table)

    def check_config(self, config: Config) -> None:
        """Raises ConfigError for what the node could not start with: a section that its device
        cannot read, topics that nothing logs under, access for anybody by oversight."""
        self._check_open(config)
        log_output.check(config.print)
        for name in self.devices:
            registry.section(config, self._found[name])

    async def sign_reply(self, fields: dict[str, str], tag: str) -> dict[str, str]:
        """`signature` and `signature-input` by the node over header fields of a reply."""
        return await asyncio.to_thread(signatures, fields, tag, self.committer)

    async def use_config(self, config: Config) -> None:
        """Have the settings of `config` that the operator may change count, after a key set that
        says so. Raises ConfigError; then nothing changes."""
        sections = {
            name: registry.section(config, self._found[name])
            for name, device in self.devices.items()
            if device.changeable
        }
        said = {name: _Configured(own) for name, own in sections.items()}
        facts = declared.facts(
            config, self.routes, {**self.devices, **said}, self._found, self.hooks.describe()
        )
        await asyncio.to_thread(self.keys.set_node, facts)
        self.config = config
        for name, own in sections.items():
            self.devices[name].config = own
        self.access.use(config.access)
        self.server.configure(config.http)
        log_output.setup(config.print, config.log)

    def _take_routes(self, table: RouteTable) -> None:
        self.routes = table
        self.dispatch.use(table)

    def _watch_routes(self) -> RouteWatcher:
        def told(error: str) -> None:
            self.board.publish("routes-error", error)

        return RouteWatcher(routes_file(self.config), self.use_routes, told)

    async def _run_start(self) -> None:
        address = self.identity.address
        url = f"http://{self.config.http.host}:{self.server.port}"
        await self.hooks.begin({"body": {"address": address, "url": url}})

    async def _get(
        self, url: str, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """What another node answers to a GET, within the limits that `[store]` has for them."""
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        seconds = self.config.store.remote_timeout
        response = await self.upstream.request(
            url, "GET", sent, b"", connect_timeout=seconds, total_timeout=seconds
        )
        try:
            body = await response.read(self.config.store.remote_limit)
        finally:
            await response.aclose()
        fields = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in response.headers}
        return response.status, fields, body

    def _check_open(self, config: Config) -> None:
        """Refuse to be open to others by oversight."""
        host, access = config.http.host, config.access
        if not (is_loopback(host) or access.open or self.access.requires(access)):
            raise ConfigError(
                f"host {host} can be reached from other machines, and anybody may use this node: "
                "make an API key (`hyperbeam keys add NAME`), or say that this is meant: "
                "--set access.open=true"
            )

    async def _keep_usage(self) -> None:
        while True:
            await asyncio.sleep(SAVE_USAGE)
            self._save_usage()

    def _save_usage(self) -> None:
        try:
            self.access.save()
        except HyperbeamError as error:
            log.warning("what API keys have used is not kept: %s", error.detail)

    def _read_routes(self) -> RouteTable:
        return load_routes(routes_file(self.config))

    async def _listen(self) -> None:
        await self.server.start(self.server.sockets)

    def _measure(self) -> None:
        """Have the metrics read what is counted elsewhere."""
        metrics, receipts = self.metrics, self.receipts
        metrics.gauge("in_flight", lambda: self.server.in_flight)
        metrics.gauge("receipts_queued", lambda: receipts.queued)
        metrics.counter("receipts", ("stored",), lambda: receipts.count)
        metrics.counter("receipts", ("lost",), lambda: receipts.lost)
        metrics.nodes = self.dispatch.nodes
        if isinstance(self.store, LMDBStore):
            self.store.committed = metrics.committed

    async def _start_devices(self) -> None:
        for name, device in list(self.devices.items()):
            try:
                with waiting_for(f"device {name} to start"):
                    await device.start()
            except ConfigError:
                raise
            except BaseException as error:
                error = contained(error, f"{name}/start")
                if not isinstance(error, Exception):
                    raise
                log.exception("device %s does not start", name)
                self._failed(name, error)
            else:
                self._running.append(device)
        self._check_required()

    def _failed(self, name: str, error: Exception) -> None:
        self.devices.pop(name, None)
        self.failures[name] = registry.Failure.of(name, error)

    def _why(self, name: str) -> str:
        """Why the device `name` is not there, for the operator."""
        failure = self.failures.get(name)
        return failure.reason if failure is not None else "there is none of that name"

    def _check_required(self) -> None:
        for name in self.config.required:
            if name not in self.devices:
                raise ConfigError(
                    f"device {name} is required, but does not load: {self._why(name)}"
                )

    def check_routes(self, table: RouteTable) -> None:
        for route in table.routes:
            if route.device and route.device not in self.devices:
                why = self._why(route.device)
                raise ConfigError(
                    f"{table.source}: the route {route.template}: device {route.device}: {why}"
                )

    def _declare(self, table: RouteTable | None = None) -> None:
        """What the key set says of the settings, and of the devices as far as they started."""
        facts = declared.facts(
            self.config, table or self.routes, self.devices, self._found, self.hooks.describe()
        )
        self.keys.set_node(facts)

    def _make(self, device: type[Device], config: Any) -> Device:
        return device(self, config)

    def _load_devices(self) -> None:
        loaded = registry.discover(self.config.device_path, self.config.devices)
        self._found = loaded.devices
        self.failures = loaded.failures
        claimed = set()
        for name, found in loaded.devices.items():
            claimed |= set(registry.section_names(name))
            config = registry.section(self.config, found)
            try:
                self.devices[name] = self._make(found.device, config)
            except ConfigError:
                raise
            except Exception as error:
                log.exception("device %s does not load", name)
                self._failed(name, error)
        self._check_required()
        unknown = sorted(set(self.config.sections) - claimed)
        if unknown:
            source = self.config.file or "the configuration"
            raise ConfigError(f"{source}: no device reads the section [{unknown[0]}]")


def _addresses(nodes: Sequence[str]) -> Sequence[str]:
    for node in nodes:
        try:
            parse_url(node)
        except HyperbeamError as error:
            raise ConfigError(f"[store] remotes: {error.detail}") from None
        if "?" in node:
            raise ConfigError(f"[store] remotes: {node!r} has a query: name the node alone")
    return nodes


def _hooks(config: Config) -> dict[str, Any]:
    both = sorted(config.on.keys() & config.hooks.keys())
    if both:
        raise ConfigError(f"[on] is another name for [hooks], and both have a hook {both[0]!r}")
    return {**config.on, **config.hooks}


def _access(config: Config) -> bool:
    return config.log.access or "access" in config.print


def _store(config: Config, home: Path) -> Store:
    store = config.store
    if store.kind == "memory":
        return MemoryStore()
    return LMDBStore(
        home / "store", map_size=store.map_size, max_readers=store.max_readers, sync=store.sync
    )
