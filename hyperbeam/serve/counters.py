"""Counts that several processes keep together, without a message between them.

`LocalCounters` is for a node of one process. `SharedCounters` is one mapped file in which
every process has a row of cells of its own: a cell has one writer, a reader adds a name's
cells up. Nothing is locked but the entry of a new name.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from ..errors import Unavailable

MAX_NAMES = 65_536
"""Names that one set of counters takes; a name is never given back."""
MAX_ROWS = 1024

_WORD = 8
_MAGIC = 0x4842_434E_5400_0001
_HEAD_WORDS = 8
_MADE, _OF_ROWS, _ENTERED = range(3)
_KEY_WORDS = 2
_FIRST_SLOTS = 128
_COUNT, _WINDOW = b"c", b"w"
_COUNT_BITS = 32
_COUNT_MASK = (1 << _COUNT_BITS) - 1


class CountersFull(Unavailable):
    """503: there is no room for one more name."""

    error = "counters_full"


class Counters(Protocol):
    """Whole numbers under names; any str is a name. What was never written is 0.

    The three kinds, `add`, `window_add` and `set`, do not share numbers: one name may be in
    all of them. Called from one thread of a process. A new name beyond MAX_NAMES raises
    CountersFull; reading never does.
    """

    def add(self, name: str, delta: int = 1) -> None:
        """Add to this process's share of a count."""

    def own(self, name: str) -> int:
        """This process's share of a count."""

    def total(self, name: str) -> int:
        """A count over all processes."""

    def window_add(self, name: str, window: int, delta: int = 1) -> None:
        """Add to a count that restarts whenever `window` is another than the last time.

        A process's share of it is held between 0 and 2**32 - 1. `window` counts modulo 2**32.
        """

    def window_total(self, name: str, window: int) -> int:
        """What all processes together added in `window`; 0 for any but the latest of each."""

    def set(self, name: str, value: int) -> None:
        """Write a number (64 bits, signed) that all processes share; the last writer wins."""

    def value(self, name: str) -> int:
        """What `set` wrote last, in whichever process; 0 where nothing was."""

    def remaining(self) -> int:
        """How many new names there is room for."""


def _in_window(cell: int, window: int) -> int:
    return cell & _COUNT_MASK if cell >> _COUNT_BITS == window & _COUNT_MASK else 0


def _window_cell(cell: int, window: int, delta: int) -> int:
    window &= _COUNT_MASK
    count = delta if cell >> _COUNT_BITS != window else (cell & _COUNT_MASK) + delta
    if count < 0 or count > _COUNT_MASK:
        count = 0 if count < 0 else _COUNT_MASK
    return window << _COUNT_BITS | count


class LocalCounters:
    """Counters of one process: dicts."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._windows: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def add(self, name: str, delta: int = 1) -> None:
        counts = self._counts
        if name in counts:
            counts[name] += delta
        else:
            self._room()
            counts[name] = delta

    def own(self, name: str) -> int:
        return self._counts.get(name, 0)

    def total(self, name: str) -> int:
        return self._counts.get(name, 0)

    def window_add(self, name: str, window: int, delta: int = 1) -> None:
        cell = self._windows.get(name)
        if cell is None:
            self._room()
            cell = 0
        self._windows[name] = _window_cell(cell, window, delta)

    def window_total(self, name: str, window: int) -> int:
        return _in_window(self._windows.get(name, 0), window)

    def set(self, name: str, value: int) -> None:
        if name not in self._values:
            self._room()
        self._values[name] = value

    def value(self, name: str) -> int:
        return self._values.get(name, 0)

    def remaining(self) -> int:
        return max(0, MAX_NAMES - len(self._counts) - len(self._windows) - len(self._values))

    def _room(self) -> None:
        if not self.remaining():
            raise _full()


class SharedCounters:
    """Counters of `rows` processes over one file; this process writes row `row`.

    With `fresh` an older file at `path` is replaced: for the process that makes the file,
    before it starts the others. A process that takes over the row of one that died goes on
    with what it finds there; `clear_row` comes before.
    Raises ValueError for a row that is not there, or a file that other rows were made with.
    """

    def __init__(self, path: Path, row: int, rows: int, *, fresh: bool = False) -> None:
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"counters have 1 to {MAX_ROWS} rows, not {rows}")
        if not 0 <= row < rows:
            raise ValueError(f"row {row} is not one of the {rows} rows of {path}")
        self._path = path
        self._row = row
        self._rows = rows
        # A slot: the name's key, a cell a row, and the cell that `set` writes.
        self._slot_words = _KEY_WORDS + rows + 1
        self._by_key: dict[bytes, int] = {}
        self._counts: dict[str, int] = {}
        self._windows: dict[str, int] = {}
        if fresh:
            path.unlink(missing_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self._locked():
                self._open()
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Let go of the file; what was counted stays in it."""
        if self._file >= 0:
            self._signed.release()
            self._unsigned.release()
            os.close(self._file)
            self._file = -1

    def add(self, name: str, delta: int = 1) -> None:
        first = self._counts.get(name)
        if first is None:
            first = self._enter(_COUNT, name, self._counts)
        self._signed[first + self._row] += delta

    def own(self, name: str) -> int:
        first = self._counts.get(name)
        if first is None and (first := self._find(_COUNT, name, self._counts)) is None:
            return 0
        return self._signed[first + self._row]

    def total(self, name: str) -> int:
        first = self._counts.get(name)
        if first is None and (first := self._find(_COUNT, name, self._counts)) is None:
            return 0
        return sum(self._signed[first : first + self._rows])

    def window_add(self, name: str, window: int, delta: int = 1) -> None:
        first = self._windows.get(name)
        if first is None:
            first = self._enter(_WINDOW, name, self._windows)
        at = first + self._row
        self._unsigned[at] = _window_cell(self._unsigned[at], window, delta)

    def window_total(self, name: str, window: int) -> int:
        first = self._windows.get(name)
        if first is None and (first := self._find(_WINDOW, name, self._windows)) is None:
            return 0
        window &= _COUNT_MASK
        total = 0
        for cell in self._unsigned[first : first + self._rows]:
            if cell >> _COUNT_BITS == window:
                total += cell & _COUNT_MASK
        return total

    def set(self, name: str, value: int) -> None:
        first = self._counts.get(name)
        if first is None:
            first = self._enter(_COUNT, name, self._counts)
        self._signed[first + self._rows] = value

    def value(self, name: str) -> int:
        first = self._counts.get(name)
        if first is None and (first := self._find(_COUNT, name, self._counts)) is None:
            return 0
        return self._signed[first + self._rows]

    def remaining(self) -> int:
        return MAX_NAMES - self._entered()

    def clear_row(self, row: int) -> None:
        """Zero the counts of a process that died, before another takes its row.

        What it used of a window stays used.
        """
        if not 0 <= row < self._rows:
            raise ValueError(f"row {row} is not one of the {self._rows} rows of {self._path}")
        with self._locked():
            self._read_names()
            for key, first in self._by_key.items():
                if key.startswith(_COUNT):
                    self._signed[first + row] = 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _open(self) -> None:
        size = os.fstat(self._file).st_size
        made = size == 0
        if made:
            self._extend(0, self._size(_FIRST_SLOTS))
        elif size % _WORD or size < self._size(0):
            raise ValueError(f"{self._path} is not a file of counters")
        self._remap()
        if made:
            self._signed[_OF_ROWS] = self._rows
            self._signed[_MADE] = _MAGIC
        elif self._signed[_MADE] != _MAGIC or self._signed[_OF_ROWS] != self._rows:
            raise ValueError(f"{self._path} was not made for {self._rows} rows of counters")
        self._read_names()

    def _size(self, slots: int) -> int:
        return (_HEAD_WORDS + slots * self._slot_words) * _WORD

    def _extend(self, size: int, wanted: int) -> None:
        # Written, not only made longer: a full disk is then an error here, not a SIGBUS later.
        try:
            data = memoryview(bytes(wanted - size))
            at = size
            while data:
                written = os.pwrite(self._file, data, at)
                at += written
                data = data[written:]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _remap(self) -> None:
        # The older map, where there is one, ends with its views: both are of the same file.
        self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        whole = memoryview(self._map)
        self._signed = whole.cast("q")
        self._unsigned = whole.cast("Q")

    def _entered(self) -> int:
        return self._signed[_ENTERED]

    def _find(self, kind: bytes, name: str, found: dict[str, int]) -> int | None:
        """Where the slot of `name` has its cells, if any process has entered it."""
        if self._entered() != len(self._by_key):
            with self._locked():
                self._read_names()
        first = self._by_key.get(_key(kind, name))
        if first is not None:
            found[name] = first
        return first

    def _enter(self, kind: bytes, name: str, found: dict[str, int]) -> int:
        """Where the slot of `name` has its cells; it is made where there is none."""
        key = _key(kind, name)
        with self._locked():
            self._read_names()
            first = self._by_key.get(key)
            if first is None:
                first = self._append(key)
        found[name] = first
        return first

    def _append(self, key: bytes) -> int:
        slot = len(self._by_key)
        if slot >= MAX_NAMES:
            raise _full()
        if self._size(slot + 1) > len(self._map):
            self._extend(len(self._map), self._size(min(2 * slot, MAX_NAMES)))
            self._remap()
        at = self._size(slot)
        self._map[at : at + len(key)] = key
        # Last, so that a process which dies before this has entered nothing.
        self._signed[_ENTERED] = slot + 1
        first = self._by_key[key] = at // _WORD + _KEY_WORDS
        return first

    def _read_names(self) -> None:
        entered = self._entered()
        if self._size(entered) > len(self._map):
            self._remap()
        for slot in range(len(self._by_key), entered):
            at = self._size(slot)
            key = self._map[at : at + _KEY_WORDS * _WORD]
            self._by_key[key] = at // _WORD + _KEY_WORDS


def _key(kind: bytes, name: str) -> bytes:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_KEY_WORDS * _WORD - 1)
    return kind + digest.digest()


def _full() -> CountersFull:
    return CountersFull(
        f"the node counts under {MAX_NAMES} names already and has no room for one more; "
        "restart it to forget those of routes, keys and clients that are gone"
    )
