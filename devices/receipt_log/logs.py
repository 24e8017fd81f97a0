"""The node's logs: the one that grows now, and those that ended before it.

A log is continued only where its own file is known to be untouched since its last head.
Anything else begins another log, of another origin, whose first leaf names the one before
and says why: two histories under one name are impossible, a visible break is not.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hyperbeam import ConfigError
from hyperbeam.verify import jcs

from .leaves import Leaves
from .one_log import Broken, EndedLog, LiveLog, Signer, last_head

V = "hyperbeam.log/1"
T = TypeVar("T")
ORIGIN = "hyperbeam/receipts/"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z")

_WHY = {
    "hashes-ahead": "the node ended in the middle of a write, or the state is an older one",
    "hashes-cut": "the file of hashes was cut, or is an older one",
    "hashes-missing": "the file of hashes is gone",
    "hashes-replaced": "the file of hashes is a copy, or its owner, mode or times were changed",
    "log-missing": "the node's key may have signed a log that is not here",
    "machine-restarted": "the disk may have been set back while the machine was off",
    "other-node": "the log here is of another key",
    "root-mismatch": "the file of hashes is damaged",
    "state-damaged": "the log's state cannot be read",
    "state-missing": "the log's state is gone",
    "write-failed": "the disk was full or failed",
}
"""Reasons for another log, and what they mean for the operator."""

log = logging.getLogger("hyperbeam.receipt_log")


class Logs:
    """All logs in `folder`, for one process at a time. `address` is the node's, `signer` gives
    the keys to sign with now. Between `open` and `close` every method is for any thread.
    """

    def __init__(self, folder: Path, address: str, signer: Callable[[], Signer]) -> None:
        self._folder = folder
        self._origin = ORIGIN + address
        self.signer = signer
        self._lock: int | None = None
        self._live: LiveLog | None = None
        self._leaves: Leaves | None = None
        self._writing = threading.RLock()
        self._failed = ""
        self._kept: int | None = None
        self._old: list[LiveLog] = []

    @property
    def live(self) -> LiveLog:
        """The log that grows."""
        if self._live is None:
            raise RuntimeError("the log is not open")
        return self._live

    def open(self, *, unused: bool) -> None:
        """Continue the log or begin another. `unused`: it is certain that no log of this address
        was ever begun. Raises ConfigError."""
        try:
            self._open(unused)
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise ConfigError(
                f"the log of receipts in {self._folder} cannot be opened: {error}; see to what is "
                "there, or move the folder away: the node then begins another log"
            ) from None
        except BaseException:
            self.close()
            raise

    def _open(self, unused: bool) -> None:
        fresh = not self._folder.exists()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = _lock(self._folder / "lock")
        for each in self._folder.iterdir():
            if each.name.isdecimal() and not (_NUMBER.match(each.name) and each.is_dir()):
                raise NotADirectoryError(f"{each.name} is not the folder of a log")
        self._live = self._resume(unused and fresh)
        self._leaves = Leaves(self._folder / "leaves.sqlite")
        self._mended(self._index)
        head = last_head(self.live.folder)
        self._kept = head.checkpoint.size if head is not None else None

    def close(self) -> None:
        """Close all files."""
        for each in (*self._old, self._live, self._leaves):
            if each is not None:
                each.close()
        self._old, self._live, self._leaves = [], None, None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def add(self, leaves: Sequence[bytes]) -> list[int]:
        """Have leaves in the log; gives the index of each in the log that has it.

        When it returns they are on the disk under a signed head. Raises OSError, sqlite3.Error,
        after which it may be tried again: no leaf is added twice.
        """
        with self._writing:
            if self._failed:
                self._begin_next(self._failed)
                self._failed = ""
            self._mended(self._index)
            found = self._mended(lambda: self._find(leaves))
            places = {leaf: index for leaf, (_, index) in found.items()}
            new = [leaf for leaf in dict.fromkeys(leaves) if leaf not in places]
            first = self._append(new)
            self._index()
            places |= {leaf: first + number for number, leaf in enumerate(new)}
            return [places[leaf] for leaf in leaves]

    def find(self, leaf: bytes) -> tuple[int, int] | None:
        """The number of the log and the leaf's index in it; None: no log proves it."""
        return self._mended(lambda: self._find([leaf])).get(leaf)

    def known(self, leaves: Sequence[bytes]) -> set[bytes]:
        """Those of the leaves that a log has."""
        return set(self._mended(lambda: self._find(leaves)))

    def forget(self, leaf: bytes) -> None:
        """Have a leaf that its log does not prove in none, so that it can be added again."""
        with self._writing:
            leaves = self._leaves
            assert leaves is not None
            self._mended(lambda: leaves.drop(leaf))

    @contextmanager
    def log(self, number: int) -> Iterator[LiveLog | EndedLog | None]:
        """A log by its number; None where it cannot be read any more."""
        if number == _number(self.live.folder):
            yield self.live
            return
        ended = EndedLog.open(self._folder / str(number))
        try:
            yield ended
        finally:
            if ended is not None:
                ended.close()

    def numbered(self, origin: str) -> int | None:
        """The number of the log with this origin."""
        if origin == self.live.origin:
            return _number(self.live.folder)
        for folder in reversed(self._folders()):
            head = last_head(folder)
            if head is not None and head.checkpoint.origin == origin:
                return _number(folder)
        return None

    def ended(self) -> list[tuple[str, int]]:
        """Origin and size of the last signed head of each log before this one."""
        heads = [last_head(each) for each in self._folders() if each != self.live.folder]
        return [(h.checkpoint.origin, h.checkpoint.size) for h in heads if h is not None]

    def _append(self, leaves: Sequence[bytes]) -> int:
        """Add leaves and keep the head over them; gives the first one's index."""
        live = self.live
        first = live.size
        try:
            if leaves:
                live.append(leaves)
            if self._kept != live.size:
                live.save_head(self.signer())
                self._kept = live.size
        except OSError as error:
            self._failed = "write-failed"
            log.error(
                "the log of receipts in %s cannot be written (%s): another is begun when it can",
                live.folder,
                error.strerror or error,
            )
            raise
        return first

    def _resume(self, unused: bool) -> LiveLog:
        folders = self._folders()
        if not folders:
            if unused:
                return LiveLog.begin(self._folder / "1", self._origin, None)
            return self._begin("log-missing", folders)
        try:
            found = LiveLog.resume(folders[-1])
        except Broken as error:
            return self._begin(error.reason, folders)
        if found.origin.split("/")[:3] != self._origin.split("/"):
            found.close()
            return self._begin("other-node", folders)
        return found

    def _begin_next(self, reason: str) -> None:
        begun = self._begin(reason, self._folders())
        self._old.append(self.live)
        self._live = begun
        self._kept = None
        assert self._leaves is not None
        self._leaves.complete = False

    def _begin(self, reason: str, folders: Sequence[Path]) -> LiveLog:
        heads = (last_head(folder) for folder in reversed(folders))
        previous = next((head.text() for head in heads if head is not None), None)
        record = jcs.encode({"v": V, "previous": previous, "reason": reason})
        number = _number(folders[-1]) + 1 if folders else 1
        while os.path.lexists(self._folder / str(number)):
            number += 1
        origin = f"{self._origin}/{secrets.token_hex(8)}"
        begun = LiveLog.begin(self._folder / str(number), origin, record)
        log.warning(
            "the log of receipts begins anew as %s: %s (%s); what was logged before stays in %s",
            origin,
            _WHY[reason],
            reason,
            self._folder,
        )
        return begun

    def _index(self) -> None:
        """Have every leaf that can be proven in the table, and no other."""
        assert self._leaves is not None
        if not self._leaves.complete:
            readable = [_number(self.live.folder)]
            for folder in self._folders():
                if folder != self.live.folder and (ended := EndedLog.open(folder)):
                    try:
                        self._leaves.fill(_number(folder), ended.origin, ended.hashes, ended.size)
                    finally:
                        ended.close()
                    readable.append(_number(folder))
            self._leaves.keep(readable)
            self._leaves.complete = True
        live = self.live
        self._leaves.fill(_number(live.folder), live.origin, live.hashes, live.size)

    def _find(self, leaves: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
        assert self._leaves is not None
        if not self._leaves.complete:
            with self._writing:
                self._index()
        return self._leaves.find(leaves)

    def _mended(self, work: Callable[[], T]) -> T:
        """Do `work`, and once more where that found the table damaged and made it anew."""
        try:
            return work()
        except sqlite3.DatabaseError:
            if self._leaves is None or self._leaves.complete:
                raise
        log.warning("the table of leaves in %s was damaged: it is made anew", self._folder)
        return work()

    def _folders(self) -> list[Path]:
        """The logs' folders, in the order in which they were begun."""
        found = [
            each for each in self._folder.iterdir() if _NUMBER.match(each.name) and each.is_dir()
        ]
        return sorted(found, key=_number)


def _number(folder: Path) -> int:
    return int(folder.name)


def _lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"{path}: another process writes this log of receipts") from None
    return lock
