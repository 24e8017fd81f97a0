"""The process that holds a node together while its workers answer.

It has the port, the home, the identity and the keys, runs the backend and the devices of
which there is one, watches the routes, probes the nodes and writes the log of receipts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .. import declared, registry
from ..config import Config
from ..errors import ConfigError, HyperbeamError, Unavailable
from ..home import Home, home_of
from ..keys import LiveKeySet
from ..message import Message
from ..node import Node
from ..observe import logging as log_output
from ..routing import RouteTable, load_routes, routes_file
from .counters import SharedCounters
from .crew import Crew, Given
from .proxy import CALL, DESCRIBE, answer_call, answer_describe
from .settings import merged

COUNTERS = "counters"
LOOK_AT_KEYS = 10.0
"""Seconds between two looks at whether the key set is about to end."""

log = logging.getLogger("hyperbeam.node")


@dataclass(frozen=True, slots=True)
class Configured:
    """A device's section, as its workers have it."""

    config: Any


class SupervisorNode(Node):
    """The node as the supervisor has it: it takes the port, and its workers answer there.

    `on_bound` is called with the listening sockets, `on_routes` when the routes are others.
    """

    def __init__(
        self,
        config: Config,
        counters: SharedCounters,
        home: Home,
        on_bound: Callable[[Sequence[socket.socket]], Awaitable[None]],
        on_routes: Callable[[], None],
    ) -> None:
        super().__init__(config, "supervisor", counters=counters, home=home)
        self._on_bound = on_bound
        self._on_routes = on_routes
        self._in_workers: dict[str, Configured] = {}

    @property
    def fixed_sections(self) -> set[str]:
        """Those that count as they were when the node started."""
        return {
            name.partition("@")[0]
            for name, found in self._found.items()
            if found.device.single or found.device.fixed
        }

    @property
    def single_failures(self) -> dict[str, list[str]]:
        """Why single devices do not work, as a worker's `Failure(*...)`."""
        single = {name for name, found in self._found.items() if found.device.single}
        return {
            name: [why.name, why.reason, why.public]
            for name, why in self.failures.items()
            if name in single
        }

    def sections(self, config: Config) -> dict[str, Configured]:
        """What the workers' own devices read of `config`. Raises ConfigError."""
        fixed = self.fixed_sections
        return {
            name: Configured(registry.section(config, self._found[name]))
            for name in self.devices
            if name.partition("@")[0] not in fixed
        }

    def facts(
        self, config: Config, table: RouteTable, in_workers: Mapping[str, Configured]
    ) -> dict[str, Any]:
        """What key sets say of a node with these settings and routes."""
        devices: dict[str, declared.Configured] = {**self.devices, **in_workers}
        return declared.facts(config, table, devices, self._found, self.hooks.describe())

    def take(self, config: Config, table: RouteTable, in_workers: dict[str, Configured]) -> None:
        """Have new settings and routes count, after a key set that says so."""
        self._in_workers = in_workers
        self.config = config
        self._declare(table)
        self._take_routes(table)

    def _declare(self, table: RouteTable | None = None) -> None:
        facts = self.facts(self.config, table or self.routes, self._in_workers)
        self.keys.set_node(facts)

    def _take_routes(self, table: RouteTable) -> None:
        super()._take_routes(table)
        self._on_routes()

    async def _listen(self) -> None:
        await self._on_bound(self.server.sockets)


class Supervisor:
    """A node of `config.workers` worker processes. `reread` reads the configuration anew."""

    def __init__(self, config: Config, reread: Callable[[], Config]) -> None:
        self._reread = reread
        home = Home(home_of(config))
        home.open()
        self._crew = Crew(
            config.workers,
            self._given,
            {
                CALL: lambda asked: answer_call(self.node, asked),
                DESCRIBE: lambda name: answer_describe(self.node, name),
                "sign-reply": lambda asked: self.node.sign_reply(*asked),
                "operator": lambda asked: self.node.operator.answer(asked),
            },
            {
                "stored": lambda _: self.node.receipts.stored_elsewhere(),
                "damaged": lambda number: self.node.receipts.damaged_elsewhere(number),
            },
            self._on_ended,
            self._last_words,
        )
        self._path = home.path / COUNTERS
        try:
            self._counters = SharedCounters(self._path, 0, self._crew.rows, fresh=True)
        except OSError as error:
            home.close()
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from None
        self.node = SupervisorNode(
            config, self._counters, home, self._crew.spawn, self._routes_changed
        )
        self._keyset: LiveKeySet | None = None
        self._routes: RouteTable | None = None
        self._looking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Start what is single, then the workers; returns when all serve. Raises ConfigError."""
        node, crew = self.node, self._crew
        node.keys.changed = self._keys_changed
        node.board.subscribe_all(self._board_changed)
        node.receipts.elsewhere = crew.receipt
        node.receipts.flush_elsewhere = crew.flush
        node.receipts.on_damage = node.receipts.damaged_elsewhere
        node.metrics.others = crew.snapshots
        node.operator.apply = self._change
        try:
            try:
                await node.start()
                await crew.start()
            except OSError as error:
                raise ConfigError(f"no worker can be started: {error.strerror}") from error
        except BaseException:
            await self.stop(0)
            raise
        self._looking = asyncio.create_task(self._look_at_keys())

    async def stop(self, seconds: float) -> None:
        """Have the workers finish running answers for at most `seconds`, then end everything."""
        if self._looking is not None:
            self._looking.cancel()
        try:
            # The workers have let go of the port at once, and so does this process.
            ending = asyncio.create_task(self._crew.end(seconds))
            await self.node.server.drain(0)
            await ending
            await self.node.stop()
        finally:
            self._counters.close()

    async def cut(self) -> None:
        """Do not wait any longer for running answers."""
        self._crew.hurry()

    def kill(self) -> None:
        """End the workers at once."""
        self._crew.kill()

    async def running(self) -> int:
        """Requests that are being answered."""
        return await self._crew.running()

    async def reload(self) -> None:
        """Take new settings and routes: workers that have them take the places of the others.

        What is wrong is refused with a line in the log, and all stays as it was.
        """
        try:
            later = await self._renew(self._reread())
        except HyperbeamError as error:
            log.error("not reloaded, all goes on as it was: %s", error.detail)
            return
        if later:
            log.warning("not reloaded, as it needs a restart: %s", ", ".join(later))
        await self._crew.follow()
        log.info("reloaded: %d workers serve by the new settings", self.node.config.workers)

    async def _change(self, config: Config) -> None:
        """Settings that the operator has changed. Raises HyperbeamError; then all is as it was."""
        await self._renew(config)
        await self._crew.follow()

    async def _renew(self, wanted: Config) -> list[str]:
        """The names of new settings that need a restart. Raises HyperbeamError."""
        node = self.node
        config, later = merged(node.config, wanted, node.fixed_sections)
        in_workers = node.sections(config)
        table = await asyncio.to_thread(load_routes, routes_file(config))
        node.check_routes(table)
        facts = await asyncio.to_thread(node.facts, config, table, in_workers)
        live = await asyncio.to_thread(node.keys.prepare, facts)
        await self._crew.renew(self._given_with(config, live, table))
        node.take(config, table, in_workers)
        log_output.setup(config.print, config.log)
        return later

    def _given(self) -> Given:
        return self._given_with(self.node.config, self.node.keys.current, self.node.routes)

    def _given_with(self, config: Config, live: LiveKeySet, table: RouteTable) -> Given:
        return {
            "config": msgspec.to_builtins(config),
            "counters": str(self._path),
            "sockets": [sock.fileno() for sock in self.node.server.sockets],
            "failures": self.node.single_failures,
            "board": self.node.board.values(),
            "state": {"keyset": live.handed(), "routes": _routes(table)},
        }

    def _keys_changed(self, live: LiveKeySet) -> None:
        """On any thread: the workers have the key set before what it is for."""
        self._keyset = live
        self._loop.call_soon_threadsafe(self._tell_state)

    def _routes_changed(self) -> None:
        self._routes = self.node.routes
        self._tell_state()

    def _board_changed(self, name: str, value: Any) -> None:
        self._tell_state()
        self._crew.tell_all("board", [name, value])

    def _tell_state(self) -> None:
        """Tell the workers of a key set and routes together."""
        keyset, self._keyset = self._keyset, None
        routes, self._routes = self._routes, None
        state: dict[str, Any] = {}
        if keyset is not None:
            state["keyset"] = keyset.handed()
        if routes is not None:
            state["routes"] = _routes(routes)
        if state:
            self._crew.tell_current("state", state)

    async def _look_at_keys(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AT_KEYS)
            _ = self.node.keys.current

    def _last_words(self, path: bytes) -> bytes:
        error = Unavailable("the process that answered was killed; try again", error="worker_died")
        request: Message = {"method": "POST", "path": path.decode("ascii", "replace"), "priv": {}}
        return self.node.server.error_event(error, request)

    def _on_ended(self, row: int) -> None:
        self._counters.clear_row(row)
        # It may have stored receipts that it had no time to tell of.
        self.node.receipts.stored_elsewhere()


def _routes(table: RouteTable) -> dict[str, str]:
    return {"source": table.source, "text": table.text}
