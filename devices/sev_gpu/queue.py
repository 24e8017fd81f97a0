"""Who has the hardware's next report: clients in turn, and one turn for all of a batch."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from hyperbeam.verify import batch as batches

from .collect import unavailable

R = TypeVar("R")
Mode = Literal["each", "batch"]

MAX_BATCH = 4096
"""Statements that share one report; those beyond wait for the next."""
_BATCH = ("batch",)
"""The batch's place among the clients: no client's name is a tuple."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[R]):
    """A statement that waits for a report. `answer`: the report, and its place in the batch."""

    lane: Any
    nonce: str
    raw: str | None
    answer: asyncio.Future[tuple[str, dict[str, Any] | None, R]] = field(repr=False)


class Turns(Generic[R]):
    """Lanes served round-robin, each first in first out; the batch is one lane."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Any, deque[Waiting[R]]] = OrderedDict()
        self.count = 0

    def add(self, one: Waiting[R]) -> None:
        """Put `one` behind what waits in its lane; a new lane is the last of the round."""
        self._lanes.setdefault(one.lane, deque()).append(one)
        self.count += 1

    def discard(self, one: Waiting[R]) -> None:
        """Take `one` out, where it still waits."""
        lane = self._lanes.get(one.lane)
        if lane is None or one not in lane:
            return
        lane.remove(one)
        self.count -= 1
        if not lane:
            del self._lanes[one.lane]

    def next(self) -> list[Waiting[R]]:
        """Those whose turn it is: one, or all of the batch; its lane goes to the round's end."""
        if not self._lanes:
            return []
        name, lane = self._lanes.popitem(last=False)
        size = min(len(lane), MAX_BATCH) if name == _BATCH else 1
        taken = [lane.popleft() for _ in range(size)]
        self.count -= size
        if lane:
            self._lanes[name] = lane
        return taken


class ReportQueue(Generic[R]):
    """Gives each caller a report; makes one at a time.

    `make` gives a report over a nonce (hex). What it raises, all who share the report get.
    """

    def __init__(self, make: Callable[[str], Awaitable[R]], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._turns: Turns[R] = Turns()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Callers that wait for their turn."""
        return self._turns.count

    async def each(self, nonce: str, client: str) -> R:
        """A report over `nonce` alone. Callers of one `client` wait for each other."""
        _, _, report = await self._wait(client, nonce, None)
        return report

    async def batch(self, raw: str) -> tuple[str, dict[str, Any] | None, R]:
        """The nonce, the place of `raw` in the batch, and the report that it shares."""
        return await self._wait(_BATCH, "", raw)

    async def aclose(self) -> None:
        """End; whoever waits gets Unavailable."""
        self._closed = True
        while waiting := self._turns.next():
            for one in waiting:
                _refuse(one, unavailable("the node is stopping"))
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _wait(
        self, lane: Any, nonce: str, raw: str | None
    ) -> tuple[str, dict[str, Any] | None, R]:
        if self._closed:
            raise unavailable("the node is stopping")
        if self._turns.count >= self._limit:
            raise unavailable(f"{self._limit} requests wait for a report already; try again later")
        one: Waiting[R] = Waiting(lane, nonce, raw, asyncio.get_running_loop().create_future())
        self._turns.add(one)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="sev_gpu reports")
        try:
            return await one.answer
        finally:
            self._turns.discard(one)

    async def _work(self) -> None:
        while group := self._turns.next():
            await self._serve(group)

    async def _serve(self, group: list[Waiting[R]]) -> None:
        places: list[dict[str, Any] | None] = [None]
        nonce = group[0].nonce
        raws = [one.raw for one in group if one.raw is not None]
        if raws:
            _, found, nonce = batches.tree(raws)
            places = [*found]
        making = asyncio.ensure_future(self._make(nonce))

        def left(_: object) -> None:
            # Nobody waits for it any more: the next turn may begin.
            if all(one.answer.cancelled() for one in group):
                making.cancel()

        for one in group:
            one.answer.add_done_callback(left)
        try:
            await asyncio.wait([making])
        except asyncio.CancelledError:
            making.cancel()
            for one in group:
                _refuse(one, unavailable("the node is stopping"))
            raise
        if making.cancelled():
            return
        error = making.exception()
        for one, place in zip(group, places, strict=True):
            if error is not None:
                _refuse(one, error)
            elif not one.answer.done():
                one.answer.set_result((nonce, place, making.result()))


def _refuse(one: Waiting[Any], error: BaseException) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)
