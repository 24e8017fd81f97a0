"""The file of a log's hashes: it only grows, and every proof reads a few of them.

Each leaf's hash is followed by those of the subtrees that it completes, so none is ever
changed. Source: the stored hashes of Go's sumdb/tlog; proofs by RFC 9162.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hyperbeam.verify import merkle

_SIZE = merkle.HASH_SIZE
_AT_A_TIME = 4096


def count(size: int) -> int:
    """Hashes in the file of a log of `size` leaves."""
    return 2 * size - size.bit_count()


def place(level: int, number: int) -> int:
    """Where the `number`th subtree of 2^`level` leaves has its hash in the file."""
    return count(((number + 1) << level) - 1) + level


class HashFile:
    """The hashes of a log of `size` leaves. Any thread may read while one appends."""

    def __init__(self, path: Path, size: int, flags: int) -> None:
        self.size = size
        self._file = os.fdopen(os.open(path, flags | os.O_CLOEXEC, 0o600), "rb", buffering=0)

    @classmethod
    def create(cls, path: Path) -> HashFile:
        """An empty file. Raises FileExistsError, OSError."""
        return cls(path, 0, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    @classmethod
    def open(cls, path: Path, size: int, *, write: bool = False) -> HashFile:
        """The file of a log of `size` leaves; what is past them is not looked at.

        Raises OSError.
        """
        return cls(path, size, os.O_RDWR if write else os.O_RDONLY)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def stat(self) -> os.stat_result:
        """What the system says of the file."""
        return os.fstat(self._file.fileno())

    def append(self, leaves: Sequence[bytes]) -> tuple[int, bytes]:
        """Add leaves' hashes; they are on the disk when it gives the new size and root.

        `size` is as before: the caller sets it once the log's state says the same.
        Raises OSError, after which the file's end is not known.
        """
        edge = self._edge(self.size)
        new = bytearray()
        size = self.size
        for leaf in leaves:
            found, at = leaf, size
            new += found
            while at & 1:
                found = merkle.node_hash(edge.pop(), found)
                new += found
                at >>= 1
            edge.append(found)
            size += 1
        self._write(new, count(self.size) * _SIZE)
        os.fsync(self._file.fileno())
        return size, _fold(edge)

    def root(self, size: int) -> bytes:
        """The root of the log's first `size` leaves."""
        return _fold(self._edge(size))

    def leaf(self, index: int) -> bytes:
        """The hash of a leaf."""
        return self._read(place(0, index))

    def leaves(self, low: int, high: int) -> Iterator[bytes]:
        """The hashes of leaves from `low` up to `high`."""
        for start in range(low, high, _AT_A_TIME):
            end = min(start + _AT_A_TIME, high)
            first = place(0, start)
            data = os.pread(
                self._file.fileno(), (place(0, end - 1) + 1 - first) * _SIZE, first * _SIZE
            )
            for index in range(start, end):
                at = (place(0, index) - first) * _SIZE
                yield _whole(data[at : at + _SIZE])

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof of a leaf in the log's first `size` leaves. Raises ValueError."""
        return [self._subtree(*each) for each in merkle.inclusion_ranges(index, size)]

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the first `new` leaves begin with the first `old`. Raises ValueError."""
        return [self._subtree(*each) for each in merkle.consistency_ranges(old, new)]

    def _edge(self, size: int) -> list[bytes]:
        return self._complete(0, size)

    def _subtree(self, low: int, high: int) -> bytes:
        return _fold(self._complete(low, high))

    def _complete(self, low: int, high: int) -> list[bytes]:
        """The hashes of the complete subtrees that leaves from `low` to `high` are made of."""
        found = []
        while low < high:
            level = (high - low).bit_length() - 1
            found.append(self._read(place(level, low >> level)))
            low += 1 << level
        return found

    def _read(self, number: int) -> bytes:
        return _whole(os.pread(self._file.fileno(), _SIZE, number * _SIZE))

    def _write(self, data: bytes | bytearray, at: int) -> None:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(self._file.fileno(), rest, at)
            rest, at = rest[done:], at + done


def _whole(data: bytes) -> bytes:
    if len(data) != _SIZE:
        raise OSError("the file of the log's hashes is shorter than the log")
    return data


def _fold(edge: Sequence[bytes]) -> bytes:
    if not edge:
        return merkle.EMPTY
    found = edge[-1]
    for item in reversed(edge[:-1]):
        found = merkle.node_hash(item, found)
    return found
