"""A store in an LMDB file, shared by all processes that open its folder.

Writes are gathered for a few milliseconds and committed together by one thread (group
commit), so that neither the event loop nor a reader ever waits for the disk; until then
they are read from memory. Layout: records in the named database `data`, the schema
version under `schema` in the main one. http://www.lmdb.tech/doc/
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import lmdb

from ..errors import ConfigError, TooLarge, Unavailable
from .lmdb_file import grow, open_environment
from .paths import GROUP, PathStore
from .protocol import MAX_KEY

T = TypeVar("T")

DEFAULT_MAP_SIZE = 1024**3
DEFAULT_MAX_READERS = 512
COMMIT_INTERVAL = 0.003
RETRY_INTERVAL = 1.0
READER_CHECK_INTERVAL = 30.0
MAX_PENDING = 256 * 1024 * 1024


@dataclass(slots=True)
class _Batch:
    records: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    waiters: list[Future[None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.waiters)

    def settle(self, error: Unavailable | None = None) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.set_running_or_notify_cancel():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


class LMDBStore(PathStore):
    """A store in the folder `path`.

    `map_size`: bytes of address space to begin with; it grows as needed and costs no
    memory or disk. `max_readers`: processes that may have the file open at once (the
    first to open it decides); places of processes that were killed are freed at each
    open and every half minute. `sync`: a commit waits for the disk; without it a crash of
    the machine, not of the process, may lose or damage what was written since the last
    `flush`. While commits fail (full disk) reads go on, writes raise `Unavailable`, and
    what was accepted before is kept and tried again.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        map_size: int = DEFAULT_MAP_SIZE,
        max_readers: int = DEFAULT_MAX_READERS,
        sync: bool = True,
        max_pending: int = MAX_PENDING,
    ) -> None:
        if map_size < 1024**2:
            raise ConfigError(f"store map_size is {map_size}: give at least 1048576 (1 MiB)")
        if max_readers < 1:
            raise ConfigError(f"store max_readers is {max_readers}: give at least 1")
        self.path = Path(path)
        self.map_size = map_size
        self.max_readers = max_readers
        self.sync = sync
        self.max_pending = max_pending
        self.committed: Callable[[float], None] | None = None
        """Told how many seconds each commit took, on the committing thread."""
        self._environment: lmdb.Environment | None = None
        self._records: lmdb._Database | None = None
        self._pending = _Batch()
        self._committing = _Batch()
        self._failure: Unavailable | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        # The map may be resized only while this process has no transaction: resizing
        # takes both locks, in this order.
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()

    def open(self) -> None:
        """Open or make the file and start the committing thread. Call after any fork."""
        if self._environment is not None:
            return
        self._environment, self._records = open_environment(
            self.path, map_size=self.map_size, max_readers=self.max_readers, sync=self.sync
        )
        self._closing = False
        self._thread = threading.Thread(
            target=self._run, name=f"store {self.path.name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Commit what is pending and close the file; `Unavailable` if that was not possible."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        with self._write_lock, self._read_lock:
            if self._environment is not None:
                self._environment.close()
            self._environment = self._records = None
        failure, self._failure = self._failure, None
        lost = len(self._committing.records) + len(self._pending.records)
        self._pending, self._committing = _Batch(), _Batch()
        if failure is not None and lost:
            raise Unavailable(f"{lost} writes were lost: {failure.detail}", error=failure.error)

    async def flush(self) -> None:
        """Return when all earlier writes are on the disk, whatever `sync` says."""
        waiter: Future[None] = Future()
        with self._changed:
            self._check_open()
            if self.sync and not self._pending and not self._committing.records:
                return
            self._pending.waiters.append(waiter)
            self._changed.notify_all()
        await asyncio.wrap_future(waiter)

    def _get(self, key: bytes) -> bytes | None:
        record = self._pending.records.get(key)
        if record is None:
            record = self._committing.records.get(key)
        return self._view(lambda txn: txn.get(key)) if record is None else record

    def _put(self, key: bytes, record: bytes) -> None:
        if len(record) > self.max_pending:
            raise TooLarge(
                f"a value of {len(record)} bytes; the store takes at most {self.max_pending}"
            )
        with self._changed:
            self._check_open()
            if self._failure is not None:
                raise Unavailable(self._failure.detail, error=self._failure.error)
            batch = self._pending
            if batch.size + len(record) > self.max_pending:
                raise Unavailable(
                    f"{batch.size} bytes wait to be written to {self.path}: the disk is too slow",
                    error="store_busy",
                )
            if not batch:
                self._changed.notify_all()
            batch.records[key] = record
            batch.size += len(key) + len(record)

    def _names(self, prefix: bytes) -> set[bytes]:
        start = len(prefix)
        names = {
            key[start:].partition(b"/")[0] for key in self._overlay() if key.startswith(prefix)
        }

        def scan(txn: lmdb.Transaction[bytes]) -> None:
            with txn.cursor() as cursor:
                found = cursor.set_range(prefix) if prefix else cursor.first()
                while found and (key := cursor.key()).startswith(prefix):
                    name, slash, _ = key[start:].partition(b"/")
                    names.add(name)
                    # "0" follows "/": one seek leads past everything inside `name`.
                    found = cursor.set_range(prefix + name + b"0") if slash else cursor.next()

        if start < MAX_KEY:
            self._view(scan)
        return names

    def _any(self, prefix: bytes) -> bool:
        def probe(txn: lmdb.Transaction[bytes]) -> bool:
            with txn.cursor() as cursor:
                return cursor.set_range(prefix) and cursor.key().startswith(prefix)

        if any(key.startswith(prefix) for key in self._overlay()):
            return True
        return len(prefix) < MAX_KEY and self._view(probe)

    def _overlay(self) -> list[bytes]:
        with self._changed:
            return [*self._pending.records, *self._committing.records]

    def _check_open(self) -> lmdb.Environment:
        if self._environment is None:
            raise Unavailable(f"the store {self.path} is not open", error="store_closed")
        return self._environment

    def _view(self, use: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """What `use` makes of a read transaction."""
        while True:
            try:
                with self._read_lock, self._check_open().begin(db=self._records) as txn:
                    return use(txn)
            except lmdb.MapResizedError:
                with self._write_lock, self._read_lock:
                    self._check_open().set_mapsize(0)
            except lmdb.Error as error:
                raise Unavailable(
                    f"cannot read the store {self.path}: {error}", error="store_failed"
                ) from error

    def _run(self) -> None:
        """The committing thread."""
        while True:
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._pending or self._closing, READER_CHECK_INTERVAL
                ):
                    with suppress(lmdb.Error):
                        self._check_open().reader_check()
                    continue
                if not self._pending:
                    return
                self._changed.wait_for(
                    lambda: self._pending.waiters or self._closing, COMMIT_INTERVAL
                )
                # Readers look at pending first: a batch must never be in neither.
                self._committing = self._pending
                self._pending = _Batch()
            if not self._commit_until_done():
                return

    def _commit_until_done(self) -> bool:
        """Whether the batch got to the disk; it is not when the store closes before it can."""
        while True:
            began = perf_counter()
            try:
                self._commit(self._committing)
            except Exception as error:  # whoever waits for this batch has to hear of it
                failure = Unavailable(
                    f"cannot write to the store {self.path}: {error}", error="store_failed"
                )
                with self._changed:
                    self._failure = failure
                    self._committing.settle(failure)
                    self._pending.settle(failure)
                    if self._closing:
                        return False
                    self._changed.wait_for(
                        lambda: self._pending.waiters or self._closing, RETRY_INTERVAL
                    )
            else:
                with self._changed:
                    self._failure = None
                    done, self._committing = self._committing, _Batch()
                done.settle()
                if self.committed is not None:
                    self.committed(perf_counter() - began)
                return True

    def _commit(self, batch: _Batch) -> None:
        environment = self._check_open()
        with self._write_lock:
            while batch.records:
                try:
                    with environment.begin(db=self._records, write=True) as txn:
                        for key, record in batch.records.items():
                            txn.put(key, record, overwrite=record != GROUP)
                    break
                except lmdb.MapFullError:
                    with self._read_lock:
                        grow(environment, batch.size)
                except lmdb.MapResizedError:
                    with self._read_lock:
                        environment.set_mapsize(0)
            if batch.waiters and not self.sync:
                environment.sync(True)
