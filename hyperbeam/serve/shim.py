"""The process between the node and a child: it outlives the node just long enough to clean up.

`python shim.py [--leader] [--shared-memory] FOLDER COMMAND...`, with one end of a socket
pair as standard input. Lines of JSON go over it: the shim writes `{"pid": N}` or
`{"error": TEXT}`, later `{"exit": CODE}` (negative: the signal); the node writes
`{"stop": SECONDS}`. End of file means that the node is gone, however it died: the whole
process group gets TERM, then KILL, and FOLDER is removed. `--leader`: TERM goes to the
command alone, which ends its own children; `--shared-memory`: what they leave in /dev/shm
is removed. Uses the standard library only: it runs by path, isolated.
"""

from __future__ import annotations

import contextlib
import itertools
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
SHM = "/dev/shm"
SHM_INTERVAL = 5.0
SHM_LOOKS = 2
"""So often is looked who has a new file open."""
_PR_SET_CHILD_SUBREAPER = 36


class Shim:
    """One run of one command in a process group of its own."""

    def __init__(
        self,
        control: socket.socket,
        wakeup: int,
        *,
        leader: bool = False,
        shared: SharedMemory | None = None,
    ) -> None:
        self._control = control
        self._wakeup = wakeup
        self._leader = leader
        self._shared = shared
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
        if self._shared is not None:
            self._shared.sweep()
        return self._tell({"exit": self._exit})

    def _wait(self) -> float | None:
        """Seconds of grace once told to stop; None when the command or the node ended."""
        control = self._control.fileno()
        while True:
            interval = None if self._shared is None else SHM_INTERVAL
            readable = select.select([control, self._wakeup], [], [], interval)[0]
            if self._shared is not None:
                self._shared.look()
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
        if self._shared is not None:
            self._shared.look(last=True)
        if self._leader and self._exit is None:
            self._signal_leader(signal.SIGTERM)
        else:
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

    def _signal_leader(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, number)

    def _tell(self, words: dict[str, object]) -> bool:
        try:
            self._control.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            return False
        return True


class SharedMemory:
    """The files in /dev/shm that this process's descendants made: known by their inodes, as
    names tell nothing, and noted while somebody has them open."""

    def __init__(self, folder: str = SHM) -> None:
        self._folder = folder
        self._foreign = set(self._files())
        self._ours: set[tuple[str, int]] = set()
        self._looks: dict[tuple[str, int], int] = {}

    def look(self, last: bool = False) -> None:
        """Note new files; `last`: also those that nobody of ours had when they were new."""
        files = set(self._files())
        self._ours &= files
        looks = {file: self._looks.get(file, 0) for file in files - self._foreign - self._ours}
        new = [file for file, times in looks.items() if last or times < SHM_LOOKS]
        opened = _opened(self._folder) if new else set()
        for file in new:
            looks[file] += 1
            if file[1] in opened:
                self._ours.add(file)
        self._looks = looks

    def sweep(self) -> None:
        """Remove what was noted and is still there."""
        for name, _ in self._ours.intersection(self._files()):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108

    def _files(self) -> list[tuple[str, int]]:
        try:
            return [(entry.name, entry.inode()) for entry in os.scandir(self._folder)]
        except OSError:
            return []


def _opened(folder: str) -> set[int]:
    """Inodes of the files in `folder` that descendants of this process map or have open."""
    found = set()
    start = f"{folder}/"
    for pid in _descendants():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:  # noqa: PTH123
            found |= {int(line.split(None, 5)[4]) for line in file if start in line}
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith(start):  # noqa: PTH115
                        found.add(os.stat(entry.path).st_ino)  # noqa: PTH116
    return found


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/stat") as file:  # noqa: PTH123
                parent = int(file.read().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = list(parents.get(os.getpid(), ()))
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


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
    options = set(itertools.takewhile(lambda word: word.startswith("--"), arguments))
    folder, *command = arguments[len(options) :]
    control = socket.socket(fileno=os.dup(0))
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    _adopt_orphans()
    shared = SharedMemory() if "--shared-memory" in options else None
    shim = Shim(control, readable, leader="--leader" in options, shared=shared)
    node_is_there = shim.run(command)
    _empty(folder)
    if not node_is_there:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


if __name__ == "__main__":
    main(sys.argv[1:])
