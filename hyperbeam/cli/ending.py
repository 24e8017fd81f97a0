"""The signals that end a node."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from hyperbeam.observe.waiting import waited_for

APART = 0.5
"""Seconds between two signals that somebody means: some programs pass on what a terminal sends
to all."""
LAST = 3.0
"""Seconds that threads have which keys still run in when all else has ended."""


class Ending:
    """Ctrl-C or SIGTERM: the first sets `asked`, the second `hurried`, the third ends the process.

    So does the second where the node has not `started`, or where something holds up the event loop,
    which then has not seen the first. `kill` ends what would go on without this process.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self.started = False
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._last = 0.0

    def listen(self) -> None:
        """Take the signals from now on. They interrupt the main thread, whatever it does."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def ask(self) -> None:
        """As one signal, on the event loop."""
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._count and now - self._last < APART:
            return
        self._last = now
        self._count += 1
        if self._count > (2 if self.started and self.asked.is_set() else 1):
            self._end(number)
        self._loop.call_soon_threadsafe(self.ask)

    def _end(self, number: int) -> None:
        what = waited_for()
        click.echo(f"ended at once{what and f', while it waited for {what}'}", err=True)
        self._kill()
        os._exit(128 + number)


@contextmanager
def left_behind() -> Iterator[None]:
    """What is done inside waits for threads, which nothing can end: after `LAST` the process does,
    as if they had."""
    timer = threading.Timer(LAST, _leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave() -> None:
    click.echo("a key still ran, and is cut", err=True)
    os._exit(0)
