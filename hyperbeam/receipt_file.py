"""The file that receipts are kept in: SQLite, one row a receipt, in the order they came."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import ConfigError

Row = tuple[bytes, int, bytes, str]
"""A receipt's id, when it was stored (ms since 1970), its canonical JSON, whose it is."""

SCHEMA = 2
BUSY = 2.0
"""Seconds that a write waits for another program that has the file locked."""
_TABLES = """
CREATE TABLE receipts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    stored INTEGER NOT NULL,
    body BLOB NOT NULL,
    log_index INTEGER,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX unlogged ON receipts (seq) WHERE log_index IS NULL;
"""
_FROM_1 = "ALTER TABLE receipts ADD COLUMN owner TEXT NOT NULL DEFAULT '';"
UNLOGGED_LIMIT = 10_000
"""Receipts that are kept whatever else is asked for, while no log has them."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

log = logging.getLogger("hyperbeam.receipts")


class ReceiptFile:
    """Receipts in `path`. Every method from any thread; errors are sqlite3.Error.

    A file found damaged is moved aside and an empty one takes its place. Of several processes
    that have the file open one is its `keeper`, which does that; the others go on with the
    new file, and tell `on_damage` of damage, with the number (inode) of the file.
    """

    def __init__(self, path: Path, *, keeper: bool = True) -> None:
        self.path = path
        self.on_damage: Callable[[int], None] | None = None
        self._keeper = keeper
        self._number = 0
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._damaged = False

    def open(self) -> None:
        """Open the file, made if there is none.

        Raises ConfigError for one that cannot be opened, or is another program's or a later
        version's.
        """
        try:
            try:
                self._connect()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error) or not self._keeper:
                    raise
                self._move_aside()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise ConfigError(f"the receipts in {self.path} cannot be opened: {error}") from None
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._write_lock, self._read_lock:
            self._disconnect()

    def add(self, rows: Sequence[Row]) -> None:
        """Store receipts in one transaction: all are on the disk when it returns."""
        insert = "INSERT OR IGNORE INTO receipts (id, stored, body, owner) VALUES (?, ?, ?, ?)"
        self._write(insert, rows)

    def set_index(self, places: Sequence[tuple[str, int]]) -> None:
        """Note receipts' places in the log."""
        rows = [(index, bytes.fromhex(id)) for id, index in places]
        self._write("UPDATE receipts SET log_index = ? WHERE id = ?", rows)

    def log_again(self, ids: Sequence[str]) -> None:
        """Forget receipts' places in the log: `unlogged` gives them again."""
        rows = [(bytes.fromhex(id),) for id in ids]
        self._write("UPDATE receipts SET log_index = NULL WHERE id = ?", rows)

    def prune(self, keep: int, oldest: int) -> None:
        """Drop all but the last `keep` receipts, and those stored before `oldest` (ms).

        The last UNLOGGED_LIMIT that are not in the log stay.
        """
        spared = (
            " AND (log_index IS NOT NULL OR seq <= coalesce((SELECT seq FROM receipts"
            " WHERE log_index IS NULL ORDER BY seq DESC LIMIT 1 OFFSET ?), 0))"
        )
        self._write(
            f"DELETE FROM receipts WHERE seq <= (SELECT max(seq) FROM receipts) - ?{spared}",
            [(keep, UNLOGGED_LIMIT)],
        )
        self._write(
            "DELETE FROM receipts WHERE seq < coalesce((SELECT seq FROM receipts WHERE stored >= ?"
            f" ORDER BY seq LIMIT 1), (SELECT max(seq) + 1 FROM receipts)){spared}",
            [(oldest, UNLOGGED_LIMIT)],
        )

    def body(self, id: str) -> tuple[bytes, str] | None:
        """A receipt's canonical JSON, and whose it is."""
        query = "SELECT CAST(body AS BLOB), CAST(owner AS TEXT) FROM receipts WHERE id = ?"
        rows = self._read(query, bytes.fromhex(id))
        return (rows[0][0], rows[0][1]) if rows else None

    def index(self, id: str) -> int | None:
        """A receipt's place in the log."""
        rows = self._read("SELECT log_index FROM receipts WHERE id = ?", bytes.fromhex(id))
        return rows[0][0] if rows else None

    def unlogged(self, limit: int) -> list[tuple[str, bytes]]:
        """Receipts without a place in the log, the oldest first."""
        rows = self._read(
            "SELECT id, CAST(body AS BLOB) FROM receipts WHERE log_index IS NULL"
            " ORDER BY seq LIMIT ?",
            limit,
        )
        return [(id.hex(), body) for id, body in rows]

    def placed(self, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        """Receipts with a place in the log, the oldest first, from past number `after` on."""
        rows = self._read(
            "SELECT seq, id, CAST(body AS BLOB) FROM receipts"
            " WHERE log_index IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?",
            after,
            limit,
        )
        return [(seq, id.hex(), body) for seq, id, body in rows]

    @property
    def damaged(self) -> bool:
        """Whether damage was found that is not mended yet."""
        return self._damaged

    def mend(self, number: int) -> None:
        """Replace the file where it still has this number (inode), as it is damaged."""
        with self._write_lock:
            if number in (0, self._number):
                self._replace()

    def _read(self, query: str, *values: Any) -> list[Any]:
        self._follow()
        with self._read_lock:
            if self._reader is None:
                raise sqlite3.ProgrammingError("the receipts are closed")
            try:
                return self._reader.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if _is_damage(error):
                    self._found_damage()
                raise

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._follow()
        with self._write_lock:
            if self._damaged and self._keeper:
                self._replace()
            try:
                self._transact(statement, rows)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._found_damage()
                if not self._keeper:
                    raise
                self._replace()
                self._transact(statement, rows)

    def _found_damage(self) -> None:
        self._damaged = True
        if self.on_damage is not None:
            self.on_damage(self._number)

    def _follow(self) -> None:
        """Go on with the file that the keeper put in the place of this one."""
        if self._keeper or self._writer is None or self._is_in_place():
            return
        with self._write_lock, self._read_lock:
            if self._writer is not None and not self._is_in_place():
                self._disconnect()
                self._connect()
                self._damaged = False

    def _is_in_place(self) -> bool:
        try:
            return self.path.stat().st_ino == self._number
        except OSError as error:
            raise sqlite3.OperationalError(f"{self.path}: {error.strerror}") from None

    def _transact(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._writer is None:
            raise sqlite3.ProgrammingError("the receipts are closed")
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany(statement, rows)
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.rollback()
            raise

    def _replace(self) -> None:
        with self._read_lock:
            self._move_aside()
            self._damaged = False

    def _connect(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = os.fstat(file).st_ino
        os.close(file)
        self._writer = self._connection()
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")
        self._writer.execute("PRAGMA journal_size_limit = 16777216")
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        (tables,) = self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if version == 0 and not tables:
            self._writer.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        elif version == 1:
            self._writer.executescript(f"BEGIN; {_FROM_1} PRAGMA user_version = {SCHEMA}; COMMIT;")
        elif version != SCHEMA:
            raise ConfigError(
                f"the receipts in {self.path} have schema version {version}, this program reads "
                f"version {SCHEMA}: use the version that wrote them, or move the file away"
            )
        self._reader = self._connection()
        self._reader.execute("SELECT seq FROM receipts LIMIT 1")

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=BUSY, isolation_level=None, check_same_thread=False
        )

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def _move_aside(self) -> None:
        self._disconnect()
        aside = f"{self.path}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        for end in ("-wal", "-shm", ""):
            part = Path(f"{self.path}{end}")
            if part.exists():
                part.rename(f"{aside}{end}")
        log.error(
            "the receipts in %s are damaged: the file is now %s, and new receipts go into an "
            "empty one",
            self.path,
            aside,
        )
        self._connect()


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
