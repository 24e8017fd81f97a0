"""A program that is asked once: its output within a time limit, and nothing of it left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence
from typing import cast

from .collect import never, unavailable

MAX_OUTPUT = 8 * 1024 * 1024
_SHOWN = 300
_OUT, _ERRORS = 1, 2


async def ask(
    command: Sequence[str], data: bytes = b"", *, name: str, limit: float
) -> tuple[int, bytes, str]:
    """Run `command` in an empty folder with `data` as its input; gives status, output, last words.

    Its whole process group ends with it, after `limit` seconds at the latest. Raises
    Unavailable, naming `name`, where it cannot be started, is too slow or says too much.
    """
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="hb-gpu-", ignore_cleanup_errors=True) as folder:
        try:
            transport, program = await loop.subprocess_exec(
                lambda: _Program(loop), *command, cwd=folder, start_new_session=True
            )
        except OSError as error:
            raise never(f"{name} cannot be started: {error.strerror or error}") from None
        try:
            program.give(transport, data)
            async with asyncio.timeout(limit):
                await program.finished
        except TimeoutError:
            raise unavailable(f"{name} gave no evidence within {limit:g} s") from None
        except OverflowError:
            size = MAX_OUTPUT // 2**20
            raise unavailable(f"{name} said over {size} MiB; that is no evidence") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            transport.close()
            await program.exited
        words = program.said[_ERRORS].decode("utf-8", "replace").strip()[-_SHOWN:]
        return transport.get_returncode() or 0, bytes(program.said[_OUT]), words


class _Program(asyncio.SubprocessProtocol):
    """Gathers what a program says. `finished`: it ended and its output was read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.said = {_OUT: bytearray(), _ERRORS: bytearray()}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
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
        self._try_finish()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
        self._try_finish()

    def _try_finish(self) -> None:
        if self.exited.done() and not self._open and not self.finished.done():
            self.finished.set_result(None)
