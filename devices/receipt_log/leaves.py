"""Where in which log a leaf is: a table made from the logs' own files.

It is made again from them where it is missing, damaged, or about other logs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from .hashes import HashFile

_TABLES = """
CREATE TABLE IF NOT EXISTS leaves (
    leaf BLOB PRIMARY KEY, log INTEGER NOT NULL, place INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    log INTEGER PRIMARY KEY, origin TEXT NOT NULL, size INTEGER NOT NULL
);
"""
_AT_A_TIME = 500
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Leaves:
    """The table in the file `path`. Every method from any thread; errors are sqlite3.Error.

    `complete` is False until the caller, who has filled in all logs, sets it; and again after
    damage, when the table has to be filled anew.
    """

    def __init__(self, path: Path) -> None:
        self.complete = False
        self._path = path
        self._lock = threading.Lock()
        try:
            self._table = self._connect()
        except sqlite3.DatabaseError:
            self._remove()
            self._table = self._connect()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._table.close()

    def fill(self, log: int, origin: str, hashes: HashFile, size: int) -> None:
        """Have the first `size` leaves of a log in the table, and no others of it.

        A leaf that is in several logs is found in the one that was filled in last.
        """
        with self._lock:
            try:
                self._fill(log, origin, hashes, size)
            except sqlite3.DatabaseError as error:
                self._renew(error)
                raise

    def keep(self, logs: Iterable[int]) -> None:
        """Drop all logs but these."""
        known = ", ".join(str(int(each)) for each in logs)
        with self._lock:
            try:
                for table in ("leaves", "logs"):
                    self._table.execute(f"DELETE FROM {table} WHERE log NOT IN ({known})")
            except sqlite3.DatabaseError as error:
                self._renew(error)
                raise

    def find(self, leaves: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
        """The log and the index of each leaf, by its hash, that any log has."""
        found: dict[bytes, tuple[int, int]] = {}
        with self._lock:
            try:
                for start in range(0, len(leaves), _AT_A_TIME):
                    some = leaves[start : start + _AT_A_TIME]
                    marks = ", ".join("?" * len(some))
                    query = f"SELECT leaf, log, place FROM leaves WHERE leaf IN ({marks})"
                    rows = self._table.execute(query, some)
                    found |= {leaf: (log, place) for leaf, log, place in rows}
            except sqlite3.DatabaseError as error:
                self._renew(error)
                raise
        return found

    def drop(self, leaf: bytes) -> None:
        """Have a leaf in no log."""
        with self._lock:
            try:
                self._table.execute("DELETE FROM leaves WHERE leaf = ?", (leaf,))
            except sqlite3.DatabaseError as error:
                self._renew(error)
                raise

    def _fill(self, log: int, origin: str, hashes: HashFile, size: int) -> None:
        row = self._table.execute("SELECT origin, size FROM logs WHERE log = ?", (log,)).fetchone()
        known = row[1] if row and row[0] == origin else 0
        if row and (known, size) == (row[1], row[1]):
            return
        keep = min(known, size)
        self._table.execute("BEGIN IMMEDIATE")
        with self._table:
            if row and keep < row[1]:
                self._table.execute("DELETE FROM leaves WHERE log = ? AND place >= ?", (log, keep))
            self._table.executemany(
                "INSERT OR REPLACE INTO leaves VALUES (?, ?, ?)",
                (
                    (leaf, log, index)
                    for index, leaf in enumerate(hashes.leaves(keep, size), start=keep)
                ),
            )
            self._table.execute("INSERT OR REPLACE INTO logs VALUES (?, ?, ?)", (log, origin, size))

    def _connect(self) -> sqlite3.Connection:
        # SQLite gives its other files the mode of this one, but for those that are there.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{end}").chmod(0o600)
        table = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            table.execute("PRAGMA journal_mode = WAL")
            table.execute("PRAGMA synchronous = NORMAL")
            table.executescript(_TABLES)
        except BaseException:
            table.close()
            raise
        return table

    def _renew(self, error: sqlite3.DatabaseError) -> None:
        """Begin with an empty table where this one is damaged."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            self.complete = False
            self._table.close()
            self._remove()
            self._table = self._connect()

    def _remove(self) -> None:
        for end in ("-wal", "-shm", ""):
            Path(f"{self._path}{end}").unlink(missing_ok=True)
