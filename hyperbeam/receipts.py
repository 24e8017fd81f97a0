"""Receipts: signed and stored off the path of the answers they are for.

`add` only queues. A thread gathers what is queued for a moment, signs it and stores it in
one transaction. What a `kill -9` can take is what was queued.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import Unavailable
from .keys import LiveKeySet
from .receipt_file import ReceiptFile, Row
from .verify import jcs
from .verify.checks import Malformed

GATHER = 0.05
"""Seconds that a queued receipt may wait for others."""
LOG_WITHIN = 24 * 60 * 60 * 1000
"""Milliseconds within which a receipt is in the log."""
RETRY = 5.0
"""Seconds between tries to store what could not be stored."""
PRUNE_SECONDS = 600.0
PRUNE_COUNT = 1000
"""How many more than asked for are kept at most before older ones are dropped; of a small
`keep` a tenth, and at least PRUNE_LEAST."""
PRUNE_LEAST = 10
WAITING_LIMIT = 10_000
"""Receipts that are held in memory while they cannot be stored."""
_ID = re.compile(r"[0-9a-f]{32}\Z")

log = logging.getLogger("hyperbeam.receipts")


class _Batch:
    __slots__ = ("done", "items")

    def __init__(self) -> None:
        self.items: dict[str, tuple[dict[str, Any], LiveKeySet, str]] = {}
        self.done = asyncio.Event()


class Receipts:
    """The receipts in the file `path`: the last `keep` of the last `days`, and those that are
    not in the log yet (of these the last `receipt_file.UNLOGGED_LIMIT`).

    `open` and `close` on the event loop, `add` and the reading methods from any thread.
    `stored` is set whenever receipts have been stored; who waits for it clears it.
    What cannot be stored (a full disk, a locked file) is held in memory and tried again.
    All that read the file raise Unavailable `receipts_unavailable` where it cannot be read.

    Of several processes with one file one is the `keeper`, which drops old receipts and mends
    the file. `elsewhere` and `flush_elsewhere` ask the others for what they hold in memory;
    `on_stored` and `on_damage` are called on the event loop, to tell the keeper.
    """

    def __init__(
        self, path: Path, *, keep: int = 100_000, days: int = 30, keeper: bool = True
    ) -> None:
        self.stored = asyncio.Event()
        self.elsewhere: Callable[[str], Awaitable[tuple[bytes, str] | None]] | None = None
        self.flush_elsewhere: Callable[[], Awaitable[None]] | None = None
        self.on_stored: Callable[[], None] = self.stored.set
        self.on_damage: Callable[[int], None] | None = None
        self._file = ReceiptFile(path, keeper=keeper)
        self._keeper = keeper
        self._to_mend: int | None = None
        self._keep = keep
        self._days = days
        self._lock = threading.Lock()
        self._next = _Batch()
        self._writing = _Batch()
        self._unstored: dict[str, Row] = {}
        self._lost = 0
        self._count = 0
        self._failing = False
        self._prune_count = max(PRUNE_LEAST, min(PRUNE_COUNT, keep // 10))
        self._unpruned = 0
        self._prune_at = 0.0
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Open the file. Raises ConfigError; one that is damaged is moved aside."""
        self._file.open()
        self._loop = asyncio.get_running_loop()
        self._file.on_damage = self._on_damage
        self._closing = False
        self._prune_at = 0.0
        # What an earlier run left, or another `keep`, may be pruned already.
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="receipts", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Store what is queued and close the file."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closing = True
        self._hurry.set()
        self._wake.set()
        await asyncio.to_thread(thread.join)
        self._file.close()
        self._lost += len(self._unstored)
        if self._lost:
            log.error("%d receipts could not be stored and are lost", self._lost)

    @property
    def queued(self) -> int:
        """Receipts that wait to be stored."""
        return len(self._next.items) + len(self._unstored)

    @property
    def count(self) -> int:
        """Receipts that were stored in this run."""
        return self._count

    @property
    def lost(self) -> int:
        """Receipts that could not be stored in this run."""
        return self._lost

    @staticmethod
    def new_id() -> str:
        """A fresh id: 128 random bits in hex."""
        return os.urandom(16).hex()

    def add(self, receipt: dict[str, Any], keyset: LiveKeySet, owner: str = "") -> None:
        """Queue a receipt without `key_id`, `log_by` and `signature`, to be signed by `keyset`.

        `owner`: the id of the API key that made the request.
        It belongs to the store from here on: do not change it.
        """
        with self._lock:
            items = self._next.items
            if len(items) >= WAITING_LIMIT:
                self._lost += 1
                return
            items[receipt["id"]] = (receipt, keyset, owner)
            if len(items) == 1:
                self._wake.set()

    async def get(self, id: str, owner: str | None = None) -> dict[str, Any] | None:
        """The signed receipt `id`, also one that is still queued; None: there is none.

        `owner`: the API key of who asks ("" without one), to whom no other key's receipt is
        there; None asks for the node itself.
        Raises Unavailable `receipt_damaged` where what is stored under `id` is no receipt.
        """
        if not _ID.match(id):
            return None
        found = await self.find(id)
        if found is None and self.elsewhere is not None:
            # Who does not hold it any more has stored it meanwhile.
            found = await self.elsewhere(id) or await self.find(id)
        if found is None:
            return None
        body, whose = found
        return None if owner is not None and whose not in ("", owner) else _read(id, body)

    async def find(self, id: str) -> tuple[bytes, str] | None:
        """What this process has under `id`, in the file or queued: canonical JSON and owner."""
        if not _ID.match(id):
            return None
        with self._lock:
            batches = (self._next, self._writing)
            batch = next((one for one in batches if id in one.items), None)
        if batch is not None:
            self._hurry.set()
            await batch.done.wait()
        row = self._unstored.get(id)
        if row is not None:
            return row[2], row[3]
        with _explained():
            return await asyncio.to_thread(self._file.body, id)

    async def flush(self) -> None:
        """Wait until what is queued now is stored, or has been tried to, in every process."""
        with self._lock:
            batch = self._next if self._next.items else self._writing
        if batch.items:
            self._hurry.set()
            await batch.done.wait()
        if self.flush_elsewhere is not None:
            await self.flush_elsewhere()

    def stored_elsewhere(self) -> None:
        """Another process has stored receipts."""
        self.stored.set()
        if self._file.damaged:
            self.damaged_elsewhere(0)

    def damaged_elsewhere(self, number: int) -> None:
        """The file of this number (inode; 0: whichever it is) is damaged: mend it."""
        self._to_mend = number
        self._hurry.set()
        self._wake.set()

    def unlogged(self, limit: int) -> list[tuple[str, bytes]]:
        """The stored receipts that are not in the log, oldest first: id and canonical JSON."""
        with _explained():
            return self._file.unlogged(limit)

    def logged(self, places: list[tuple[str, int]]) -> None:
        """Keep the places in the log of receipts: id and index."""
        with _explained():
            self._file.set_index(places)
        with self._lock:
            # Only now they may be dropped.
            self._unpruned += len(places)
            if self._unpruned >= self._prune_count:
                self._wake.set()

    def placed(self, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        """Receipts that are said to be in the log, oldest first: number, id, canonical JSON.

        `after` is the number to go on from, 0 at first.
        """
        with _explained():
            return self._file.placed(after, limit)

    def log_again(self, ids: list[str]) -> None:
        """Have receipts in `unlogged` again, as the log that had them is lost."""
        with _explained():
            self._file.log_again(ids)

    def index(self, id: str) -> int | None:
        """The receipt's place in the log; None: not there, or not yet."""
        with _explained():
            return self._file.index(id) if _ID.match(id) else None

    def _run(self) -> None:
        """The writer's thread: a batch, then the next, until `close`."""
        closing = False
        while not closing:
            self._wake.wait(RETRY if self._unstored else PRUNE_SECONDS)
            self._hurry.wait(GATHER)
            with self._lock:
                self._wake.clear()
                self._hurry.clear()
                closing = self._closing
                batch, self._next = self._next, _Batch()
                self._writing = batch
            try:
                self._mend()
                self._sign(batch)
                self._store()
            except Exception:
                log.exception("receipts are not written")
            with self._lock:
                self._writing = _Batch()
            self._tell(batch.done.set)

    def _sign(self, batch: _Batch) -> None:
        for id, (receipt, keyset, owner) in batch.items.items():
            try:
                body = signed(receipt, keyset)
                self._unstored[id] = (bytes.fromhex(id), _now(), body, owner)
            except Exception as error:
                unforeseen = not isinstance(error, TypeError | ValueError)
                log.error("the receipt %s cannot be made: %s", id, error, exc_info=unforeseen)
            # Else answers that are being given wait for the interpreter, up to 5 ms a batch.
            time.sleep(0)

    def _store(self) -> None:
        rows = list(self._unstored.values())
        try:
            if rows:
                self._file.add(rows)
        except Exception as error:
            self._not_stored(error)
            return
        self._unstored = {}
        self._count += len(rows)
        if self._failing:
            self._failing = False
            log.info("receipts are stored again; %d were lost in this run", self._lost)
        if rows:
            self._tell(self.on_stored)
        self._prune(len(rows))

    def _mend(self) -> None:
        number, self._to_mend = self._to_mend, None
        if number is not None:
            self._file.mend(number)

    def _prune(self, more: int) -> None:
        """Drop old receipts, where it is time to or there are `more` than there should be."""
        if not self._keeper:
            return
        with self._lock:
            self._unpruned += more
            if self._unpruned < self._prune_count and time.monotonic() < self._prune_at:
                return
            self._unpruned = 0
        self._prune_at = time.monotonic() + PRUNE_SECONDS
        try:
            self._file.prune(self._keep, _now() - self._days * 86_400_000)
        except Exception as error:
            log.error("old receipts cannot be dropped now: %s", error, exc_info=_unforeseen(error))

    def _not_stored(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.error(
                "receipts cannot be stored (%s): the last %d are held in memory until they can",
                error,
                WAITING_LIMIT,
                exc_info=_unforeseen(error),
            )
        for id in list(self._unstored)[:-WAITING_LIMIT]:
            del self._unstored[id]
            self._lost += 1

    def _on_damage(self, number: int) -> None:
        if self.on_damage is not None:
            self._tell(self.on_damage, number)

    def _tell(self, hear: Callable[..., None], *values: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(hear, *values)
        except RuntimeError:
            log.debug("the loop has ended before its receipts were stored")


def signed(receipt: dict[str, Any], keyset: LiveKeySet) -> bytes:
    """The canonical JSON of a receipt with its `key_id`, `log_by` and `signature`.

    Raises ValueError for what canonical JSON cannot hold.
    """
    whole = {**receipt, "key_id": keyset.receipt_key_id, "log_by": _now() + LOG_WITHIN}
    # The signed text and the one that is kept differ by the signature only: encoded once.
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name, value in whole.items():
        (before if name < "signature" else after)[name] = value
    head, tail = jcs.encode(before)[:-1], jcs.encode(after)[1:]
    _, signature = keyset.sign_receipt(b"%b,%b" % (head, tail))
    return b'%b,"signature":"%b",%b' % (head, signature.encode(), tail)


def _read(id: str, body: bytes) -> dict[str, Any]:
    try:
        found = jcs.parse(body, f"the receipt {id}")
    except Malformed as error:
        log.error("a stored receipt is damaged: %s", error)
        found = {}
    if found.get("id") != id:
        detail = (
            f"what is stored as the receipt {id} is damaged: it can neither be given nor proven"
        )
        raise Unavailable(detail, error="receipt_damaged")
    return found


def _unforeseen(error: Exception) -> bool:
    return not isinstance(error, sqlite3.Error | OSError)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        log.error("receipts cannot be read: %s", error)
        detail = "the receipts cannot be read now; try again, or see the node's log"
        raise Unavailable(detail, error="receipts_unavailable") from None


def _now() -> int:
    return time.time_ns() // 1_000_000
