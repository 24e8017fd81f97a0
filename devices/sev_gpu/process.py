"""A program that is asked once: its answer within a time limit, and nothing of it left over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hyperbeam import Unavailable

from .collect import may_pass, never, unavailable
from .output import last_object, words

MAX_OUTPUT = 4 * 1024 * 1024
GRACE = 1.0
"""Seconds in which the output of a program that has ended may still come to its end."""
TRIAL_LIMIT = 5.0
TRIAL_AGAIN = 60.0
_OUT, _ERRORS = 1, 2

log = logging.getLogger("hyperbeam.sev_gpu")


@dataclass(frozen=True, slots=True)
class Ended:
    """`answer`: the JSON object at its output's end. `words`: its last ones, for the log only."""

    status: int
    answer: dict[str, Any] | None
    words: str


async def ask(command: Sequence[str], data: bytes = b"", *, name: str, limit: float) -> Ended:
    """Run `command` in an empty folder with `data` as its input.

    Its whole process group ends with it, after `limit` seconds at the latest. Raises
    Unavailable, naming `name`, where it cannot be started, is too slow or says too much.
    """
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="hb-gpu-", ignore_cleanup_errors=True) as folder:
        try:
            transport, program = await loop.subprocess_exec(
                lambda: _Program(loop, min(GRACE, limit / 4)),
                *command,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise never(f"{name} cannot be started: {error.strerror or error}") from None
        answer = None
        try:
            program.give(transport, data)
            async with asyncio.timeout(limit):
                await program.finished
                # Reading it takes a while, and the event loop serves everybody.
                answer = await asyncio.to_thread(last_object, bytes(program.said[_OUT]))
        except TimeoutError:
            _log_words(name, program)
            raise unavailable(f"{name} gave no answer within {limit:g} s") from None
        except OverflowError:
            size = MAX_OUTPUT // 2**20
            _log_words(name, program)
            raise unavailable(f"{name} said over {size} MiB; that is no evidence") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            transport.close()
            await program.exited
        return Ended(transport.get_returncode() or 0, answer, words(bytes(program.said[_ERRORS])))


class Trial:
    """Whether a program works: tried at the first question, and remembered.

    A failure is tried again after `again` seconds, as somebody may have mended it.
    """

    def __init__(self, run: Callable[[float], Awaitable[str]], again: float = TRIAL_AGAIN) -> None:
        self._run = run
        self._again = again
        self._lock = asyncio.Lock()
        self._problem: str | None = None
        self._passing = False
        self._until = 0.0

    async def problem(self) -> str:
        """Why it does not work; "" where it does. Raises Unavailable where that may pass."""
        async with self._lock:
            now = asyncio.get_running_loop().time
            if self._problem is None or (self._problem and now() >= self._until):
                self._passing = False
                try:
                    self._problem = await self._run(TRIAL_LIMIT)
                except Unavailable as error:
                    self._problem, self._passing = error.detail, may_pass(error)
                self._until = now() + self._again
        if self._problem and self._passing:
            raise unavailable(self._problem)
        return self._problem


def _log_words(name: str, program: _Program) -> None:
    log.warning("%s was ended; its last words: %s", name, words(bytes(program.said[_ERRORS])))


class _Program(asyncio.SubprocessProtocol):
    """Gathers what a program says.

    `finished`: it ended, and its output did or had `grace` seconds for it: a child that it
    left behind may hold the output open for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, grace: float) -> None:
        self.said = {_OUT: bytearray(), _ERRORS: bytearray()}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._grace = grace
        self._open = {_OUT, _ERRORS}

    def give(self, transport: asyncio.SubprocessTransport, data: bytes) -> None:
        pipe = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        pipe.write(data)
        pipe.close()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        said = self.said[fd]
        if len(said) + len(data) > MAX_OUTPUT:
            if not self.finished.done():
                self.finished.set_exception(OverflowError())
            return
        said += data.encode() if isinstance(data, str) else data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if self.exited.done() and not self._open:
            self._finish()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
        if self._open:
            self._loop.call_later(self._grace, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)
