"""The workers of a supervisor: as many as there should be, whatever happens to one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ..errors import HyperbeamError, Unavailable
from ..observe.snapshot import Snapshot
from .channel import Answer, Hear
from .lending import Holder, streams_for
from .process import WorkerProcess

BACKOFF = (0.5, 30.0)
"""Seconds before a worker that died again is replaced: the first delay, and the longest."""
SETTLED = 60.0
"""Seconds of serving after which a worker's death is again the first."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a worker has to say something about itself."""
SPARE = 3
"""Workers for each one that may still finish their answers after a reload."""

Given = Mapping[str, Any]
"""What a worker needs to serve, but for its number and row."""

log = logging.getLogger("hyperbeam.node")


class Crew:
    """Workers 1 to `count`; `given` gives what a new one needs by the current settings.

    Each has a row of the shared counters: 1 and up, `rows` with the supervisor's. `on_ended`
    is called with the row of one that has ended, before another takes it. `answers` and `news`
    are what workers may ask and tell. `last_words` makes the last event of a stream that was
    cut because its worker was killed, for the path of its request.
    """

    def __init__(
        self,
        count: int,
        given: Callable[[], Given],
        answers: Mapping[str, Answer],
        news: Mapping[str, Hear],
        on_ended: Callable[[int], None],
        last_words: Callable[[bytes], bytes],
    ) -> None:
        self.count = count
        self.rows = 1 + count * (1 + SPARE)
        self._given = given
        self._answers = answers
        self._news = {**news, "farewell": self._farewell}
        self._on_ended = on_ended
        self._last_words = last_words
        self._streams = streams_for(count)
        self._free = list(range(self.rows - 1, 0, -1))
        self._sockets: Sequence[socket.socket] = ()
        self._generation = 0
        self._all: set[WorkerProcess] = set()
        self._current: dict[int, WorkerProcess] = {}
        self._locks = {number: asyncio.Lock() for number in self._numbers}
        self._deaths = dict.fromkeys(self._numbers, 0)
        self._farewells: list[Snapshot] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    @property
    def _numbers(self) -> range:
        return range(1, self.count + 1)

    async def spawn(self, sockets: Sequence[socket.socket]) -> None:
        """Start the processes, which load while the supervisor itself starts. Raises OSError."""
        self._sockets = sockets
        for number in self._numbers:
            self._current[number] = await self._spawn(number, self._generation)

    async def start(self) -> None:
        """Have them all serve. Raises what the first says that does not."""
        await asyncio.gather(*(self._start(one, self._given()) for one in self._current.values()))

    async def renew(self, given: Given) -> None:
        """Have worker 1 serve by new settings, for `follow` to go on with.

        Raises what it says against them; then everything is as it was.
        """
        if len(self._free) < self.count:
            raise Unavailable(
                "workers of earlier reloads still finish their answers: try again later"
            )
        async with self._locks[1]:
            new = await self._spawn(1, self._generation + 1)
            try:
                await self._start(new, given)
            except BaseException:
                new.end(0)
                raise
            self._generation += 1
            self._replace(new)

    async def follow(self) -> None:
        """Replace one worker after the other by one of the current settings."""
        for number in self._numbers:
            async with self._locks[number]:
                if self._current[number].generation != self._generation:
                    self._replace(await self._launch(number))

    def tell_current(self, name: str, value: Any) -> None:
        """Tell the workers of the current settings."""
        for worker in self._all:
            if worker.given and worker.generation == self._generation:
                worker.channel.tell(name, value)

    def tell_all(self, name: str, value: Any) -> None:
        """Tell every worker, also those that finish after a reload."""
        for worker in self._all:
            if worker.given:
                worker.channel.tell(name, value)

    async def end(self, seconds: float) -> None:
        """Have all finish their answers within `seconds`, and end."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ended = [worker.ended.wait() for worker in self._all]
        self.hurry(seconds)
        await asyncio.gather(*ended)

    def hurry(self, seconds: float = 0.0) -> None:
        """Shorten the time of `end`."""
        for worker in self._all:
            worker.end(seconds)

    def kill(self) -> None:
        """End them all at once, whatever they do."""
        for worker in self._all:
            worker.kill()

    async def running(self) -> int:
        """Requests that are being answered."""
        return sum(await self._ask_all("running"))

    async def snapshots(self) -> list[Snapshot]:
        """What each worker counts, and what those counted that have ended since the last call."""
        farewells, self._farewells = self._farewells, []
        return [*await self._ask_all("metrics"), *farewells]

    async def flush(self) -> None:
        """Have every worker store the receipts that it holds."""
        await self._ask_all("flush")

    async def receipt(
        self, id: str, asker: WorkerProcess | None = None
    ) -> tuple[bytes, str] | None:
        """A receipt that a worker other than `asker` holds."""
        found = await self._ask_all("receipt", id, asker)
        return next((tuple(each) for each in found if each is not None), None)

    async def _ask_all(
        self, name: str, value: Any = None, but: WorkerProcess | None = None
    ) -> list[Any]:
        """The answers of all workers that answer in time."""

        async def ask(worker: WorkerProcess) -> list[Any]:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    return [await worker.channel.call(name, value)]
            except (HyperbeamError, TimeoutError) as error:
                log.debug("worker %d does not answer %s: %s", worker.number, name, error)
                return []

        asked = [one for one in self._all if one.served_since and one is not but]
        answers = await asyncio.gather(*map(ask, asked))
        return [answer for some in answers for answer in some]

    async def _spawn(self, number: int, generation: int) -> WorkerProcess:
        while not self._free:
            # A place has to be kept for answers to new requests.
            oldest = min(self._all - set(self._current.values()), key=lambda one: one.served_since)
            log.warning("a worker of an earlier reload is cut: too many still finish their answers")
            oldest.end(0)
            await oldest.ended.wait()

        async def receipt(id: str) -> tuple[bytes, str] | None:
            return await self.receipt(id, worker)

        answers = {**self._answers, "receipt": receipt}
        row = self._free.pop()
        holder = Holder(self._streams, self._last_words) if self._streams else None
        worker: WorkerProcess = WorkerProcess(
            number, generation, row, answers, self._news, self._on_left, self._bury, holder
        )
        try:
            await worker.spawn(self._sockets)
        except OSError:
            self._free.append(row)
            raise
        self._all.add(worker)
        return worker

    async def _start(self, worker: WorkerProcess, given: Given) -> None:
        own = {"number": worker.number, "row": worker.row, "streams": worker.stream_files}
        await worker.start({**given, **own, "rows": self.rows})

    async def _launch(self, number: int) -> WorkerProcess:
        """A new worker that serves, tried until one does."""
        while True:
            deaths = self._deaths[number]
            if deaths > 1:
                await asyncio.sleep(min(BACKOFF[0] * 2 ** min(deaths - 2, 30), BACKOFF[1]))
            try:
                worker = await self._spawn(number, self._generation)
            except OSError as error:
                log.error("worker %d cannot be started: %s", number, error.strerror)
            else:
                try:
                    await self._start(worker, self._given())
                    return worker
                except HyperbeamError as error:
                    worker.end(0)
                    log.error("worker %d does not start: %s", number, error.detail)
                except BaseException:
                    worker.end(0)
                    raise
            self._deaths[number] += 1

    def _replace(self, new: WorkerProcess) -> None:
        old, self._current[new.number] = self._current[new.number], new
        old.retire()

    def _on_left(self, worker: WorkerProcess) -> None:
        """It leaves, or is dead, and nobody told it to."""
        number = worker.number
        if self._ending or self._current.get(number) is not worker or not worker.served_since:
            return
        lived = asyncio.get_running_loop().time() - worker.served_since
        self._deaths[number] = 1 if lived >= SETTLED else self._deaths[number] + 1
        self._task(self._mend(worker))

    async def _mend(self, worker: WorkerProcess) -> None:
        async with self._locks[worker.number]:
            if self._current[worker.number] is worker:
                self._current[worker.number] = await self._launch(worker.number)
                log.info("worker %d serves again", worker.number)

    def _bury(self, worker: WorkerProcess) -> None:
        self._all.discard(worker)
        self._on_ended(worker.row)
        self._free.append(worker.row)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _farewell(self, snapshot: Snapshot) -> None:
        self._farewells.append(snapshot)
