"""Calls into the kernel that may never return: in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .collect import unavailable

T = TypeVar("T")


class Lane:
    """One call at a time. A call that is late keeps the lane until it returns, if it does."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def call(self, function: Callable[[], T], limit: float) -> T:
        """What `function` gives. Raises Unavailable after `limit` seconds, waiting included."""
        try:
            async with asyncio.timeout(limit):
                await self._lock.acquire()
                return await asyncio.shield(self._start(function))
        except TimeoutError:
            raise unavailable(f"the CPU did not answer within {limit:g} s") from None

    def _start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        running: asyncio.Future[T] = loop.create_future()
        running.add_done_callback(self._returned)

        def run() -> None:
            # A loop that is closed has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                try:
                    value = function()
                except Exception as error:
                    loop.call_soon_threadsafe(running.set_exception, error)
                else:
                    loop.call_soon_threadsafe(running.set_result, value)

        try:
            threading.Thread(target=run, daemon=True, name="snp").start()
        except RuntimeError as error:
            running.set_exception(error)
        return running

    def _returned(self, running: asyncio.Future[Any]) -> None:
        self._lock.release()
        if not running.cancelled():
            running.exception()
