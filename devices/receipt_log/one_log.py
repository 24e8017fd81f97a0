"""One log on the disk: appended to while it is the node's, read for ever.

Its folder: `hashes`, `state.json`, `checkpoint` (the last head that was signed), and
`begin.json` (its first leaf, where it took the place of another log).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hyperbeam.home import write_whole
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import jcs, merkle
from hyperbeam.verify.checkpoint import Checkpoint, SignedCheckpoint
from hyperbeam.verify.checks import Malformed

from .hashes import HashFile, count
from .state import Stamp, State

HASHES = "hashes"
STATE = "state.json"
CHECKPOINT = "checkpoint"
BEGIN = "begin.json"


class Signer(Protocol):
    """The keys that the log signs with (`hyperbeam.keys.LiveKeySet`)."""

    @property
    def log_public(self) -> bytes: ...

    def sign_log(self, data: bytes) -> bytes: ...


class Broken(Exception):
    """The log cannot be continued. `reason` is a kebab-case word that goes into the next."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LiveLog:
    """The log that receipts are added to: `begin` or `resume` makes it."""

    def __init__(self, folder: Path, hashes: HashFile, state: State) -> None:
        self.folder = folder
        self.hashes = hashes
        self.origin = state.origin
        self._state = state

    @classmethod
    def begin(cls, folder: Path, origin: str, record: bytes | None) -> LiveLog:
        """A new log in `folder`, which must not be there; `record` is its first leaf.

        Raises OSError.
        """
        folder.mkdir(mode=0o700)
        try:
            if record is not None:
                write_whole(folder / BEGIN, record)
            hashes = HashFile.create(folder / HASHES)
            try:
                log = cls(folder, hashes, State(origin, 0, merkle.EMPTY, Stamp.of(hashes.stat())))
                log.append([] if record is None else [merkle.leaf_hash(record)])
                _sync(folder.parent)
            except BaseException:
                hashes.close()
                raise
        except OSError:
            # Nothing in it was signed.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return log

    @classmethod
    def resume(cls, folder: Path) -> LiveLog:
        """The log as it was left, if nothing at all speaks against it. Raises Broken, OSError."""
        try:
            state = State.load(folder / STATE)
        except FileNotFoundError:
            raise Broken("state-missing") from None
        except Malformed:
            raise Broken("state-damaged") from None
        try:
            hashes = HashFile.open(folder / HASHES, state.size, write=True)
        except FileNotFoundError:
            raise Broken("hashes-missing") from None
        try:
            _check(hashes, state)
        except BaseException:
            hashes.close()
            raise
        return cls(folder, hashes, state)

    @property
    def size(self) -> int:
        """Leaves that are on the disk and said to be so by the state."""
        return self._state.size

    def append(self, leaves: Sequence[bytes]) -> None:
        """Add leaves' hashes, durably.

        Raises OSError, after which nothing may be added any more.
        """
        size, root = self.hashes.append(leaves)
        state = State(self.origin, size, root, Stamp.of(self.hashes.stat()))
        state.save(self.folder / STATE)
        self.hashes.size = size
        self._state = state

    def head(self, signer: Signer, size: int | None = None) -> SignedCheckpoint:
        """The signed head of the first `size` leaves, by default of all."""
        state = self._state
        if size is None or size == state.size:
            checkpoint = Checkpoint(self.origin, state.size, state.root)
        else:
            checkpoint = Checkpoint(self.origin, size, self.hashes.root(size))
        key = notes.VerifierKey(self.origin, notes.ED25519, signer.log_public)
        signature = notes.Signature(key.name, key.id, signer.sign_log(checkpoint.body()))
        return SignedCheckpoint(checkpoint, (signature,))

    def save_head(self, signer: Signer) -> None:
        """Keep the last head: what this log proves once it has ended. Raises OSError."""
        write_whole(self.folder / CHECKPOINT, self.head(signer).text().encode())

    def close(self) -> None:
        """Close the file."""
        self.hashes.close()


class EndedLog:
    """A log that another took the place of: it proves what its last signed head covers."""

    def __init__(self, folder: Path, hashes: HashFile, head: SignedCheckpoint) -> None:
        self.folder = folder
        self.hashes = hashes
        self.signed = head
        self.origin = head.checkpoint.origin
        self.size = head.checkpoint.size

    @classmethod
    def open(cls, folder: Path) -> EndedLog | None:
        """None where nothing was signed, or where head and hashes do not agree (any more)."""
        head = last_head(folder)
        if head is None:
            return None
        try:
            hashes = HashFile.open(folder / HASHES, head.checkpoint.size)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            if hashes.root(hashes.size) == head.checkpoint.root:
                return cls(folder, hashes, head)
        hashes.close()
        return None

    def close(self) -> None:
        """Close the file."""
        self.hashes.close()


def last_head(folder: Path) -> SignedCheckpoint | None:
    """The last head that the log in `folder` signed and kept."""
    try:
        return notes.parse((folder / CHECKPOINT).read_bytes())
    except (OSError, Malformed):
        return None


def begin_record(folder: Path) -> dict[str, object] | None:
    """The record that is the log's first leaf, where it has one."""
    try:
        return jcs.parse((folder / BEGIN).read_bytes())
    except (OSError, Malformed):
        return None


def _check(hashes: HashFile, state: State) -> None:
    stat = hashes.stat()
    length = count(state.size) * merkle.HASH_SIZE
    if stat.st_size != length:
        raise Broken("hashes-ahead" if stat.st_size > length else "hashes-cut")
    now = Stamp.of(stat)
    if (now.dev, now.ino, now.ctime_ns) != (
        state.stamp.dev,
        state.stamp.ino,
        state.stamp.ctime_ns,
    ):
        raise Broken("hashes-replaced")
    if hashes.root(state.size) != state.root:
        raise Broken("root-mismatch")
    if now.boot != state.stamp.boot:
        raise Broken("machine-restarted")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
