"""A program that is asked once: its output within a time limit, and nothing of it left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence

from .collect import unavailable

MAX_OUTPUT = 8 * 1024 * 1024
_SHOWN = 300
_CHUNK = 64 * 1024


async def ask(
    command: Sequence[str], data: bytes = b"", *, name: str, limit: float
) -> tuple[int, bytes, str]:
    """Run `command` in an empty folder with `data` as its input; gives status, output, last words.

    Its whole process group ends with it, after `limit` seconds at the latest. Raises
    Unavailable, naming `name`, where it cannot be started, is too slow or says too much.
    """
    with tempfile.TemporaryDirectory(prefix="hb-gpu-", ignore_cleanup_errors=True) as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise unavailable(f"{name} cannot be started: {error.strerror or error}", 60) from None
        try:
            async with asyncio.timeout(limit):
                _, output, words = await asyncio.gather(
                    _give(process, data), _read(process.stdout, name), _read(process.stderr, name)
                )
                status = await process.wait()
        except TimeoutError:
            raise unavailable(f"{name} gave no evidence within {limit:g} s") from None
        finally:
            await _end(process)
        return status, output, words.decode("utf-8", "replace").strip()[-_SHOWN:]


async def _give(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None, name: str) -> bytes:
    assert stream is not None
    found = bytearray()
    while chunk := await stream.read(_CHUNK):
        found += chunk
        if len(found) > MAX_OUTPUT:
            raise unavailable(f"{name} said over {MAX_OUTPUT // 2**20} MiB; that is no evidence")
    return bytes(found)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
