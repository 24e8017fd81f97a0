"""The process between the node and a child: it outlives the node just long enough to clean up.

`python shim.py FOLDER COMMAND...`, with one end of a socket pair as standard input.
Lines of JSON go over it: the shim writes `{"pid": N}` or `{"error": TEXT}`, later
`{"exit": CODE}` (negative: the signal); the node writes `{"stop": SECONDS}`. End of
file means that the node is gone, however it died: the whole process group gets TERM,
then KILL, and FOLDER is removed. Uses the standard library only: it runs by path, isolated.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

ORPHANED_GRACE = 2.0
"""Seconds between TERM and KILL when the node is gone or the command's leader died."""
KILL_WAIT = 5.0
"""Seconds to wait for killed processes to be gone."""
POLL = 0.05
_PR_SET_CHILD_SUBREAPER = 36


class Shim:
    """One run of one command in a process group of its own."""

    def __init__(self, control: socket.socket, wakeup: int) -> None:
        self._control = control
        self._wakeup = wakeup
        self._buffer = b""
        self._pid = 0
        self._exit: int | None = None

    def run(self, command: Sequence[str]) -> bool:
        """Run `command` to its end. Whether the node was there to the last."""
        try:
            self._pid = _spawn(command)
        except OSError as error:
            self._tell({"error": f"cannot run {command[0]}: {error.strerror}"})
            return True
        self._tell({"pid": self._pid})
        grace = self._wait()
        self._end(ORPHANED_GRACE if grace is None else grace)
        return self._tell({"exit": self._exit})

    def _wait(self) -> float | None:
        """Seconds of grace once told to stop; None when the command or the node ended."""
        control = self._control.fileno()
        while True:
            readable = select.select([control, self._wakeup], [], [])[0]
            if self._wakeup in readable and signal.SIGTERM in os.read(self._wakeup, 512):
                return ORPHANED_GRACE
            if self._reap() or self._exit is not None:
                return None
            if control in readable:
                data = self._control.recv(4096)
                if not data:
                    return None
                self._buffer += data
                if b"\n" in self._buffer:
                    return float(json.loads(self._buffer.partition(b"\n")[0])["stop"])

    def _end(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        self._signal(signal.SIGTERM)
        while not self._gone() and time.monotonic() < deadline:
            self._pause()
        deadline = time.monotonic() + KILL_WAIT
        while not self._gone() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._pause()

    def _pause(self) -> None:
        if select.select([self._wakeup], [], [], POLL)[0]:
            os.read(self._wakeup, 512)

    def _gone(self) -> bool:
        if self._reap():
            return True
        return sys.platform != "linux" and not self._signal(0)

    def _reap(self) -> bool:
        """Collect what has ended; whether no child is left, adopted ones included."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self._pid:
                    self._exit = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return True

    def _signal(self, number: int) -> bool:
        """Signal the group; whether it has any process."""
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # macOS says so when only zombies are left
            return False
        return True

    def _tell(self, words: dict[str, object]) -> bool:
        try:
            self._control.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            return False
        return True


def _spawn(command: Sequence[str]) -> int:
    return os.posix_spawnp(
        command[0],
        list(command),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setpgroup=0,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ],
    )


def _adopt_orphans() -> None:
    """On Linux, become the parent of descendants whose parent dies, so that none escapes."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                os.rmdir(entry.path)  # noqa: PTH106
            else:
                os.unlink(entry.path)  # noqa: PTH108


def main(arguments: Sequence[str]) -> None:
    folder, *command = arguments
    control = socket.socket(fileno=os.dup(0))
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    _adopt_orphans()
    node_is_there = Shim(control, readable).run(command)
    _empty(folder)
    if not node_is_there:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


if __name__ == "__main__":
    main(sys.argv[1:])
