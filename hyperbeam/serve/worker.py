"""A worker: one of the processes that answer a node's requests.

`python -P -m hyperbeam.serve.worker FD`, FD being its end of the channel to the supervisor,
over which it is given all that it needs: settings, sockets, keys, routes. End of file there
means that the supervisor has gone: the worker finishes what it can in a moment, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from ..config import Config
from ..device import Device
from ..errors import HyperbeamError
from ..keys import AdoptedKeys, LiveKeySet
from ..node import Node
from ..observe import logging as log_output
from ..observe.snapshot import Snapshot
from ..registry import Failure
from ..routing import RouteTable, parse_routes
from .channel import Answer, Channel, Hear
from .counters import SharedCounters
from .lending import Lender
from .proxy import proxy
from .values import describe_error

ORPHANED = 5.0
"""Seconds that running answers may take once the supervisor has gone."""

log = logging.getLogger("hyperbeam.node")


@dataclass(frozen=True, slots=True)
class Order:
    """End within `seconds`, or in the answers' own time.

    `replaced`: others go on, so that whoever is still connected here is answered until then.
    """

    seconds: float | None
    replaced: bool = False


class WorkerNode(Node):
    """The node as a worker has it: its key sets, routes and single devices are the supervisor's."""

    def __init__(self, given: dict[str, Any], channel: Channel) -> None:
        self._channel = channel
        self._given = given
        self.shared = SharedCounters(Path(given["counters"]), given["row"], given["rows"])
        config = msgspec.convert(given["config"], Config)
        super().__init__(config, "worker", counters=self.shared)
        self.metrics.role = f"worker {given['number']}"
        self.receipts.elsewhere = lambda id: channel.call("receipt", id)
        self.operator.elsewhere = lambda asked: channel.call("operator", asked)
        self.receipts.on_stored = lambda: channel.tell("stored")
        self.receipts.on_damage = lambda number: channel.tell("damaged", number)
        for name, value in given["board"].items():
            self.board.show(name, value)
        self.adopt(given["state"])

    def adopt(self, state: dict[str, Any]) -> None:
        """Take a key set, or routes, or both at once: no request sees the one without the other."""
        keyset, routes = state.get("keyset"), state.get("routes")
        table = None if routes is None else parse_routes(routes["text"], routes["source"])
        if keyset is not None:
            assert isinstance(self.keys, AdoptedKeys)
            self.keys.adopt(LiveKeySet.adopt(keyset))
        if table is not None:
            self._take_routes(table)

    async def _listen(self) -> None:
        sockets = [socket.socket(fileno=number) for number in self._given["sockets"]]
        for sock in sockets:
            sock.setblocking(False)
        if streams := self._given["streams"]:
            self.server.lend = Lender(socket.socket(fileno=streams[0]), streams[1]).lend
        await self.server.start(sockets)

    async def sign_reply(self, fields: dict[str, str], tag: str) -> dict[str, str]:
        """The supervisor does: the key is there."""
        signed: dict[str, str] = await self._channel.call("sign-reply", [fields, tag])
        return signed

    def _read_routes(self) -> RouteTable:
        return self.routes

    def _declare(self, table: RouteTable | None = None) -> None:
        """The supervisor does."""

    def _load_devices(self) -> None:
        super()._load_devices()
        for name, failure in self._given["failures"].items():
            self.devices.pop(name, None)
            self.failures[name] = Failure(*failure)

    def _make(self, device: type[Device], config: Any) -> Device:
        made = proxy(device, self._channel.call) if device.single else device
        return super()._make(made, config)


class Worker:
    """One life of a worker. `control` is its end of the channel to the supervisor."""

    def __init__(self, control: socket.socket) -> None:
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        answers: dict[str, Answer] = {
            "receipt": self._receipt,
            "flush": self._flush,
            "metrics": self._metrics,
            "running": self._running,
        }
        news: dict[str, Hear] = {
            "start": self._start,
            "state": lambda state: self._begun().adopt(state),
            "board": lambda said: self._begun().board.show(*said),
            "end": lambda seconds: self._orders.put_nowait(Order(seconds)),
            "retire": lambda _: self._orders.put_nowait(Order(None, replaced=True)),
        }
        self._channel = Channel(control, answers, news)
        self._given = asyncio.Event()
        self._node: WorkerNode | None = None
        self._refused: Exception | None = None
        self._leaving = False

    async def run(self) -> int:
        """Serve until told to end. The exit status."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(64, "key"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        await self._channel.open()
        orphaned = asyncio.create_task(self._orphaned())
        try:
            await _first(self._given.wait(), orphaned, self._told())
            return await self._serve() if self._given.is_set() else 0
        finally:
            orphaned.cancel()
            await self._channel.close()

    async def _serve(self) -> int:
        try:
            if self._refused is not None:
                raise self._refused
            node = self._begun()
            if not await self._starts(node):
                return 0
        except Exception as error:
            if not isinstance(error, HyperbeamError):
                log.exception("a worker does not start")
                error = HyperbeamError(f"a worker does not start: {type(error).__name__}: {error}")
            with contextlib.suppress(HyperbeamError):
                await self._channel.call("failed", describe_error(error))
            return 0
        try:
            self._channel.tell("serving")
            order = await self._orders.get()
            if order.replaced:
                order = await self._retire(node, order)
        except BaseException:
            await node.stop()
            raise
        await self._end(node, order.seconds or 0.0)
        return 0

    async def _starts(self, node: WorkerNode) -> bool:
        """Whether the node has started; False where it was told to end before."""
        starting = asyncio.create_task(node.start())
        await _first(starting, self._told())
        if starting.done():
            await starting
            return True
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False

    async def _told(self) -> None:
        """Return once there is an order, which stays to be followed."""
        order = await self._orders.get()
        self._orders.put_nowait(order)

    async def _retire(self, node: WorkerNode, order: Order) -> Order:
        """Answer what the connections ask that there are, until they are gone or time is up.

        Gives the order to end by.
        """
        later = asyncio.ensure_future(self._orders.get())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(order.seconds):
                await _first(node.server.retire(), later)
        if later.done():
            return later.result()
        later.cancel()
        return Order(0.0)

    async def _end(self, node: WorkerNode, seconds: float) -> None:
        ending = asyncio.create_task(node.stop(seconds))
        while not ending.done():
            order = asyncio.ensure_future(self._orders.get())
            await _first(ending, order)
            shorter = order.result().seconds if order.done() else None
            if shorter is not None and not ending.done():
                await node.server.drain(shorter)
            order.cancel()
        await ending
        self._channel.tell("farewell", node.metrics.snapshot())

    async def _orphaned(self) -> None:
        await self._channel.ended.wait()
        log.error("the supervisor has gone: its worker %d ends too", os.getpid())
        self._orders.put_nowait(Order(ORPHANED))

    def _on_signal(self) -> None:
        """Leave: the supervisor starts another in its place meanwhile. The second time at once."""
        if self._node is None:
            sys.exit(1)
        if self._leaving:
            self._orders.put_nowait(Order(0.0))
            return
        self._leaving = True
        self._channel.tell("leaving")
        self._orders.put_nowait(Order(self._node.config.http.drain, replaced=True))

    def _start(self, given: dict[str, Any]) -> None:
        try:
            self._node = WorkerNode(given, self._channel)
            log_output.setup(self._node.config.print, self._node.config.log)
        except Exception as error:
            self._refused = error
        self._given.set()

    def _begun(self) -> WorkerNode:
        assert self._node is not None
        return self._node

    async def _receipt(self, id: str) -> tuple[bytes, str] | None:
        return await self._begun().receipts.find(id)

    async def _flush(self, _: None) -> None:
        await self._begun().receipts.flush()

    async def _metrics(self, _: None) -> Snapshot:
        return self._begun().metrics.snapshot()

    async def _running(self, _: None) -> int:
        return self._begun().server.in_flight


async def _first(*waiting: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Wait until one of them is done; coroutines of which another was first are given up."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, one in zip(tasks, waiting, strict=True):
            if task is not one:
                task.cancel()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(Worker(control).run()))


if __name__ == "__main__":
    main()
