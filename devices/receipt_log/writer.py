"""Brings stored receipts into the log, many at a time; again where a log was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from typing import Protocol

from hyperbeam import HyperbeamError
from hyperbeam.verify import merkle

from .logs import Logs

AT_A_TIME = 1000
CHECKED_AT_A_TIME = 10_000
RETRY = 5.0
"""Seconds until what could not be logged is tried again."""

log = logging.getLogger("hyperbeam.receipt_log")


class Receipts(Protocol):
    """Where receipts come from (`hyperbeam.receipts.Receipts`)."""

    stored: asyncio.Event

    async def flush(self) -> None: ...

    def unlogged(self, limit: int) -> list[tuple[str, bytes]]: ...

    def logged(self, places: list[tuple[str, int]]) -> None: ...

    def placed(self, after: int, limit: int) -> list[tuple[int, str, bytes]]: ...

    def log_again(self, ids: list[str]) -> None: ...


class Writer:
    """A task that logs receipts `gather` seconds after they are stored, or at once when asked.

    After its start it also looks, little by little, for receipts that were logged once and that
    no log proves any more, and logs them again.
    """

    def __init__(self, receipts: Receipts, logs: Logs, gather: float) -> None:
        self._receipts = receipts
        self._logs = logs
        self._gather = gather
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._failing = False
        self._closing = False
        self._checked: int | None = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with what an earlier run did not come to."""
        self._receipts.stored.set()
        self._task = asyncio.create_task(self._run(), name="receipt log")

    async def stop(self) -> None:
        """Log what is stored and end."""
        task, self._task = self._task, None
        if task is not None:
            self._closing = True
            self._asked.set()
            await task

    async def flush(self) -> None:
        """Wait until all receipts of before are in the log, or have been tried to."""
        if self._task is None:
            return
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._asked.set()
        await done

    async def again(self, id: str) -> None:
        """Log a receipt that no log has (any more). Raises Unavailable."""
        await asyncio.to_thread(self._receipts.log_again, [id])
        await self.flush()

    async def _run(self) -> None:
        closing = False
        while not closing:
            await self._wait()
            closing = self._closing
            self._asked.clear()
            self._receipts.stored.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self._round()
            finally:
                for each in waiting:
                    if not each.done():
                        each.set_result(None)

    async def _wait(self) -> None:
        if not self._asked.is_set():
            either = [
                asyncio.ensure_future(event.wait())
                for event in (self._asked, self._receipts.stored)
            ]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in either:
                    each.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), self._gather)

    async def _round(self) -> None:
        try:
            await self._receipts.flush()
            await asyncio.to_thread(self._log_all)
            if self._checked is not None:
                self._checked = await asyncio.to_thread(self._check, self._checked)
                self._receipts.stored.set()
        except Exception as error:
            if not self._failing:
                unforeseen = not isinstance(error, OSError | sqlite3.Error | HyperbeamError)
                log.error("receipts are not logged now: %s", error, exc_info=unforeseen)
            self._failing = True
            asyncio.get_running_loop().call_later(RETRY, self._receipts.stored.set)
        else:
            if self._failing:
                log.info("receipts are logged again")
            self._failing = False

    def _log_all(self) -> None:
        while True:
            batch = self._receipts.unlogged(AT_A_TIME)
            places = self._logs.add([merkle.leaf_hash(body) for _, body in batch])
            self._receipts.logged([(id, at) for (id, _), at in zip(batch, places, strict=True)])
            if len(batch) < AT_A_TIME:
                return

    def _check(self, after: int) -> int | None:
        """Have some of the receipts from `after` on logged again where they have to be.

        Gives where to go on; None: there are no more.
        """
        some = self._receipts.placed(after, CHECKED_AT_A_TIME)
        leaves = {id: merkle.leaf_hash(body) for _, id, body in some}
        proven = self._logs.known(list(leaves.values()))
        lost = [id for id, leaf in leaves.items() if leaf not in proven]
        if lost:
            log.warning("%d receipts are in no log that is still here: logged again", len(lost))
            self._receipts.log_again(lost)
        return some[-1][0] if some else None
