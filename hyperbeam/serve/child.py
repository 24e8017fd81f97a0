"""A supervised child process: started under a shim, logged, restarted, and never left behind.

The shim (shim.py) holds one end of a socket pair. When the node ends, however it
ends, the shim sees end of file and takes down the child's whole process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["stopped", "starting", "running", "restarting", "failed"]

FOLDER_VARIABLE = "HYPERBEAM_RUN_FOLDER"
"""The child finds here the path of its private folder (0700), for sockets: it is short."""
GIVE_UP = os.EX_CONFIG
"""Exit status (78) by which a child says that to start it again is useless."""
STARTS = 5
"""Deaths in a row after which a child that never was ready is given up."""
SETTLED = 60.0
"""Seconds of being ready after which a death counts as the first."""
LAST_LINES = 50
_LINE_LIMIT = 8192
_SHIM_MARGIN = 8.0
_SHIM = Path(__file__).with_name("shim.py")
_POINTLESS = frozenset({GIVE_UP, -signal.SIGILL})


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run of the child ended: `code` as `subprocess` gives it (negative: the signal)."""

    code: int | None
    reason: str

    @property
    def final(self) -> bool:
        """Whether another start would end the same way."""
        return self.code in _POINTLESS


class Child:
    """Runs `command` until stopped, starting it again with growing delays when it dies.

    Whoever owns the child calls `ready()` when it serves. Before it ever did, five deaths
    in a row, exit status 78 or SIGILL make the state `failed`; later it is started again
    without end, `backoff` = (first, longest) seconds apart. A child that is not ready
    `start_timeout` seconds after its start is ended, which counts as a death.

    `on_line(line)` gets every line of its output, which also goes to the logger
    `hyperbeam.backend.<name>`, without `secrets`. `on_state(state)` is called at each change, with
    `starting` before the child runs, when its folder is there. `env` is added to the environment.
    `leader`: TERM goes to the command alone, which ends its own children; KILL goes to all.
    `shared_memory`: what it leaves in /dev/shm is removed. Needs the event loop that `start` was
    called in.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        on_state: Callable[[State], None] | None = None,
        backoff: tuple[float, float] = (0.5, 30.0),
        start_timeout: float | None = None,
        secrets: Sequence[str] = (),
        leader: bool = False,
        shared_memory: bool = False,
    ) -> None:
        self.name = name
        self.state: State = "stopped"
        self.pid: int | None = None
        self.restarts = 0
        self.folder: Path | None = None
        self.last_exit: Exit | None = None
        self._command = list(command)
        self._env = dict(env or {})
        self._on_line = on_line
        self._on_state = on_state
        self._backoff = backoff
        self._start_timeout = start_timeout
        self._secrets = tuple(secrets)
        chosen = {"--leader": leader, "--shared-memory": shared_memory}
        self._shim_options = [option for option, on in chosen.items() if on]
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log = logging.getLogger(f"hyperbeam.backend.{name}")
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._grace = 0.0

    @property
    def last_lines(self) -> list[str]:
        """The last lines of output while it started, 50 at most, this time and before."""
        return list(self._lines)

    async def start(self) -> None:
        """Start the child and return at once. Does nothing when it is started already."""
        if self._task is not None and not self._task.done():
            return
        self._stop.clear()
        self.restarts = 0
        self.last_exit = None
        self.folder = Path(tempfile.mkdtemp(prefix="hb-", dir=_short_folder()))
        self._set("starting")
        self._task = asyncio.create_task(self._supervise(), name=f"child {self.name}")

    def ready(self) -> None:
        """Say that the child serves: the state becomes `running`."""
        if self.state == "starting":
            self._is_ready.set()
            self._set("running")

    async def stop(self, grace: float) -> None:
        """TERM, up to `grace` seconds, KILL; returns when nothing of the child is left.

        A caller that is cancelled leaves the stopping to go on by itself.
        """
        if self._task is None:
            return
        self._grace = grace
        self._stop.set()
        await asyncio.wait([self._task])

    async def _supervise(self) -> None:
        was_ready, deaths = False, 0
        try:
            while True:
                run = _Run(self)
                end, served = await run.to_its_end()
                if self._stop.is_set():
                    self._set("stopped")
                    return
                self.last_exit = end
                was_ready = was_ready or served is not None
                deaths = 1 if served is not None and served >= SETTLED else deaths + 1
                if not was_ready and (end.final or deaths >= STARTS):
                    self._log.error("%s: %s; not started again", self.name, end.reason)
                    self._set("failed")
                    return
                delay = min(self._backoff[0] * 2 ** min(deaths - 1, 30), self._backoff[1])
                self._log.warning("%s: %s; starts again in %g s", self.name, end.reason, delay)
                self._set("restarting")
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay)
                    self._set("stopped")
                    return
                self.restarts += 1
                self._set("starting")
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            self.pid = None
            if self.state not in ("stopped", "failed"):
                self._set("stopped")

    def _set(self, state: State) -> None:
        if state == "starting":
            self._is_ready.clear()
        self.state = state
        if self._on_state is not None:
            self._on_state(state)

    def _line(self, line: str) -> None:
        # What a serving child says may quote requests: only its start is for everybody's eyes.
        for secret in self._secrets:
            line = line.replace(secret, "***")
        starting = self.state == "starting"
        if starting:
            self._lines.append(line)
        shown = "".join(char if char.isprintable() else "\ufffd" for char in line)
        self._log.log(logging.INFO if starting else logging.DEBUG, "%s", shown)
        if self._on_line is not None:
            self._on_line(line)


class _Run:
    """One life of the child, from spawn to the last of its group."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._code: int | None = None
        self._error = ""
        self._served_since: float | None = None

    async def to_its_end(self) -> tuple[Exit, float | None]:
        """How it ended, and the seconds it served (None: it never was ready)."""
        child = self._child
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        pipes: list[asyncio.ReadTransport] = []
        shim: subprocess.Popen[bytes] | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            try:
                shim = self._spawn(theirs)
            except OSError as error:
                return Exit(None, f"cannot start a process: {error.strerror}"), None
            finally:
                theirs.close()
            closed = []
            for pipe in (shim.stdout, shim.stderr):
                transport, lines = await loop.connect_read_pipe(self._lines, pipe)
                pipes.append(transport)
                closed.append(lines.closed)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            await self._watch(reader, writer)
            await asyncio.wait(closed, timeout=0.5)
            served = None if self._served_since is None else loop.time() - self._served_since
            return Exit(self._code, self._reason()), served
        finally:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            if shim is not None:
                self._reap(shim)
            child.pid = None
            for transport in pipes:
                transport.close()
            if writer is not None:
                writer.close()
            else:
                ours.close()

    def _lines(self) -> _Lines:
        return _Lines(self._child._line)

    def _spawn(self, control: socket.socket) -> subprocess.Popen[bytes]:
        child = self._child
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(_SHIM), *child._shim_options),
                *(str(child.folder), *child._command),
            ],
            stdin=control.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **child._env, FOLDER_VARIABLE: str(child.folder)},
            start_new_session=True,
        )

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Follow the shim to its end, passing on the wish to stop."""
        child = self._child
        news = asyncio.create_task(self._read(reader))
        stop = asyncio.create_task(child._stop.wait())
        ready = asyncio.create_task(self._await_ready())
        try:
            await asyncio.wait({news, stop, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ready.result():
                self._error = f"was not ready within {child._start_timeout:g} s"
                grace = 0.0
            else:
                await asyncio.wait({news, stop}, return_when=asyncio.FIRST_COMPLETED)
                grace = child._grace
            if not news.done():
                writer.write(json.dumps({"stop": grace}).encode() + b"\n")
                await asyncio.wait({news}, timeout=grace + _SHIM_MARGIN)
        finally:
            for task in (news, stop, ready):
                task.cancel()
            await asyncio.gather(news, stop, ready, return_exceptions=True)

    async def _await_ready(self) -> bool:
        try:
            await asyncio.wait_for(self._child._is_ready.wait(), self._child._start_timeout)
        except TimeoutError:
            return False
        self._served_since = asyncio.get_running_loop().time()
        return True

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            async for line in reader:
                words = json.loads(line)
                if "pid" in words:
                    self._child.pid = words["pid"]
                self._code = words.get("exit", self._code)
                self._error = words.get("error", self._error)
                if "error" in words:
                    self._code = GIVE_UP

    def _reap(self, shim: subprocess.Popen[bytes]) -> None:
        """Collect the shim; when it did not end by itself, end the child's group in its place."""
        if self._code is None and self._child.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
        try:
            shim.wait(timeout=_SHIM_MARGIN)
        except subprocess.TimeoutExpired:
            shim.kill()
            shim.wait()

    def _reason(self) -> str:
        if self._error:
            return self._error
        if self._code is None:
            return "its shim was killed"
        if self._code < 0:
            return f"was ended by {signal.Signals(-self._code).name}"
        return f"ended with status {self._code}"


class _Lines(asyncio.Protocol):
    """Cuts a pipe into lines; progress bars' carriage returns end a line too."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_line = on_line
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._give(line)
        if len(self._rest) > _LINE_LIMIT:
            self._give(self._rest)
            self._rest = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._give(self._rest)
        self._rest = b""
        if not self.closed.done():
            self.closed.set_result(None)

    def _give(self, line: bytes) -> None:
        text = line[:_LINE_LIMIT].decode("utf-8", "replace").rstrip()
        if text:
            self._on_line(text)


def _short_folder() -> str:
    """Where private folders go: a socket's path has room for about 100 bytes."""
    folder = tempfile.gettempdir()
    return folder if len(folder.encode()) <= 60 else "/tmp"
