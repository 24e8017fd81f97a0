"""One worker as the supervisor sees it: its process, its end of the channel, how it stands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import HyperbeamError
from .channel import Answer, Channel, Hear
from .lending import Holder
from .values import error_of

START_TIMEOUT = 120.0
MARGIN = 10.0
"""Seconds past its time after which a worker that does not end is killed."""

log = logging.getLogger("hyperbeam.node")


class WorkerProcess:
    """Worker `number`, of the settings of `generation`, with a row of the shared counters.

    `answers` and `news` are what it may ask and tell; `on_left` is called once, when it says
    that it leaves or is found dead, unless it was told to; `on_ended` when nothing is left of it.
    `holder` takes the sockets of its streams.
    """

    def __init__(
        self,
        number: int,
        generation: int,
        row: int,
        answers: Mapping[str, Answer],
        news: Mapping[str, Hear],
        on_left: Callable[[WorkerProcess], None],
        on_ended: Callable[[WorkerProcess], None],
        holder: Holder | None,
    ) -> None:
        self.number = number
        self.generation = generation
        self.row = row
        self.given = False
        self.served_since = 0.0
        self.pid = 0
        self.ended = asyncio.Event()
        self._on_left: Callable[[WorkerProcess], None] | None = on_left
        self._on_ended = on_ended
        self._holder = holder
        self._told_to_end = False
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody waits for the start of one that is told to end before.
        self._started.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._control, self._theirs = socket.socketpair()
        own_news: dict[str, Hear] = {
            "serving": lambda _: self._serves(),
            "leaving": lambda _: self._says_that_it_leaves(),
        }
        self.channel = Channel(
            self._control, {**answers, "failed": self._failed}, {**news, **own_news}
        )
        self._deadline: asyncio.TimerHandle | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def stream_files(self) -> tuple[int, ...]:
        """What the worker inherits to lend its streams' sockets, by its numbers."""
        return () if self._holder is None else self._holder.files

    async def spawn(self, sockets: Sequence[socket.socket]) -> None:
        """Start the process, which inherits `sockets` and waits for `start`. Raises OSError."""
        try:
            process = self._process = _popen(self._theirs, sockets, self.stream_files)
        except OSError:
            self._control.close()
            if self._holder is not None:
                self._holder.close()
            raise
        finally:
            self._theirs.close()
        if self._holder is not None:
            self._holder.start()
        self.pid = process.pid
        await self.channel.open()
        self._watch = asyncio.create_task(self._to_its_end(process), name=f"worker {self.number}")

    async def start(self, given: Mapping[str, Any]) -> None:
        """Give it what it needs; returns when it serves. Raises what it says against it."""
        self.channel.tell("start", given)
        self.given = True
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self._started
        except TimeoutError:
            self.kill()
            raise HyperbeamError(
                f"worker {self.number} does not serve within {START_TIMEOUT:g} s"
            ) from None

    def retire(self) -> None:
        """Have it finish its answers in their own time, and end, as another has its place."""
        if self._on_left is not None:
            self._told_to_end, self._on_left = True, None
            self.channel.tell("retire")

    def end(self, seconds: float) -> None:
        """Have it finish its answers within `seconds`, and end. A later call may shorten that."""
        self._told_to_end, self._on_left = True, None
        self.channel.tell("end", seconds)
        self._kill_in(seconds + MARGIN)

    def kill(self) -> None:
        """End the process whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _kill_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._deadline is None or self._deadline.when() > at:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = loop.call_at(at, self.kill)

    async def _to_its_end(self, process: subprocess.Popen[bytes]) -> None:
        await self.channel.ended.wait()
        self._kill_in(MARGIN)
        code = await asyncio.to_thread(process.wait)
        if self._deadline is not None:
            self._deadline.cancel()
        await self.channel.close()
        if not self._started.done():
            self._started.set_exception(HyperbeamError(f"worker {self.number} {_how(code)}"))
        elif code != 0 or not self._told_to_end:
            log.error("worker %d (process %d) %s", self.number, self.pid, _how(code))
        self._leaves()
        self._on_ended(self)
        self.ended.set()

    def _serves(self) -> None:
        self.served_since = asyncio.get_running_loop().time()
        if not self._started.done():
            self._started.set_result(None)

    def _says_that_it_leaves(self) -> None:
        if not self._told_to_end:
            log.warning("worker %d (process %d) was told to end by a signal", self.number, self.pid)
        self._told_to_end = True
        self._leaves()

    def _leaves(self) -> None:
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left(self)

    async def _failed(self, said: Mapping[str, Any]) -> None:
        if not self._started.done():
            self._started.set_exception(error_of(said))


def _popen(
    control: socket.socket, sockets: Sequence[socket.socket], files: Sequence[int]
) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C in a terminal is for the supervisor, which tells it."""
    number = control.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hyperbeam.serve.worker", str(number)],
        stdin=subprocess.DEVNULL,
        pass_fds=[number, *(sock.fileno() for sock in sockets), *files],
        start_new_session=True,
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
