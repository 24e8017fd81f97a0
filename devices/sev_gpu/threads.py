"""Calls into a driver that may never return: each in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hyperbeam import Unavailable

from .collect import unavailable

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run `function` in a daemon thread; it goes on when the future is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def returned(value: T) -> None:
        if not done.done():
            done.set_result(value)

    def raised(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            try:
                value = function()
            except BaseException as error:
                loop.call_soon_threadsafe(raised, error)
            else:
                loop.call_soon_threadsafe(returned, value)

    threading.Thread(target=run, daemon=True, name="sev_gpu").start()
    return done


class Lane:
    """One call at a time to what `name` names (`GPU 1`).

    A call that takes longer than its limit keeps this lane busy until it returns, if it
    ever does: others get Unavailable at once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = asyncio.Lock()
        self._late_since: float | None = None

    def problem(self) -> str:
        """Why the lane is of no use now; "" where it is."""
        if self._late_since is None:
            return ""
        return f"{self.name} has not answered for {time.monotonic() - self._late_since:.0f} s"

    async def call(self, function: Callable[[], T], limit: float) -> T:
        """What `function` gives. Raises Unavailable after `limit` seconds, waiting included."""
        if self._late_since is not None:
            raise unavailable(self.problem())
        asked = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                await self._lock.acquire()
        except TimeoutError:
            raise unavailable(f"{self.name} was busy for {limit:g} s") from None
        running = in_thread(function)
        running.add_done_callback(self._returned)
        left = max(0.0, limit - (time.monotonic() - asked))
        done, _ = await asyncio.wait([running], timeout=left)
        if not done:
            self._late_since = asked
            raise unavailable(f"{self.name} did not answer within {limit:g} s")
        return running.result()

    def _returned(self, running: asyncio.Future[T]) -> None:
        self._late_since = None
        self._lock.release()
        if not running.cancelled():
            running.exception()


class Slots:
    """Runs calls in threads, `count` at a time; `waiting` more may wait for their turn.

    A caller that leaves does not stop its call, which holds its slot until it returns.
    """

    def __init__(self, count: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._most = waiting
        self._waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` gives. Raises Unavailable `busy` where too many wait."""
        if self._waiting >= self._most and self._free.locked():
            raise Unavailable("too many verifications are under way; try again", error="busy")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        running = in_thread(function)
        running.add_done_callback(lambda _: self._free.release())
        await asyncio.wait([running])
        return running.result()
