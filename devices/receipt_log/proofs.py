"""The log's answers: heads with what witnesses said of them, and proofs under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hyperbeam import NotFound
from hyperbeam.verify import merkle
from hyperbeam.verify.checkpoint import SignedCheckpoint, VerifierKey

from . import cosignatures
from .cosignatures import Accepted, Cosignatures
from .logs import Logs
from .one_log import EndedLog, LiveLog, begin_record

AnyLog = LiveLog | EndedLog


class Proofs:
    """Reads `logs` for clients. Methods block, are for any thread, and raise NotFound with what
    there is, OSError, sqlite3.Error."""

    def __init__(self, logs: Logs, witnesses: Sequence[VerifierKey]) -> None:
        self._logs = logs
        self._witnesses = witnesses
        self._cosigned = Cosignatures(logs.live.folder, witnesses)

    def head(self, origin: str | None, size: int | None) -> str:
        """A signed head: the current one, or that of another size or log."""
        with self._log(origin) as log:
            signed = self._head(log, size)
            if isinstance(log, LiveLog):
                self._cosignatures(log).shown(signed.checkpoint.size)
            return signed.text()

    def status(self, origin: str | None, size: int | None) -> dict[str, Any]:
        """A head and what is known of its log."""
        with self._log(origin) as log:
            signed = self._head(log, size)
            cosigned = None
            if isinstance(log, LiveLog):
                self._cosignatures(log).shown(signed.checkpoint.size)
                newest = self._cosignatures(log).newest()
                if newest is not None:
                    cosigned = {"size": newest, "checkpoint": self._head(log, newest).text()}
            return {
                "origin": log.origin,
                "size": signed.checkpoint.size,
                "root": signed.checkpoint.root.hex(),
                "checkpoint": signed.text(),
                "begins": begin_record(log.folder),
                "cosigned": cosigned,
                "ended": [{"origin": name, "size": at} for name, at in self._logs.ended()],
            }

    def inclusion_of(self, leaf: bytes, size: int | None) -> dict[str, Any] | None:
        """The proof of the leaf with this hash, in whichever log has it; None: none proves it."""
        found = self._logs.find(leaf)
        if found is None:
            return None
        number, index = found
        with self._logs.log(number) as log:
            if log is None or log.size <= index:
                return None
            try:
                if log.hashes.leaf(index) != leaf:
                    return None
                return self._inclusion(log, index, size)
            except OSError:
                # What an ended log does not prove can be logged again.
                if isinstance(log, EndedLog):
                    return None
                raise

    def inclusion_at(self, origin: str | None, index: int, size: int | None) -> dict[str, Any]:
        """The proof of a leaf by its place."""
        with self._log(origin) as log:
            return self._inclusion(log, index, size)

    def consistency(self, origin: str | None, old: int, new: int | None) -> dict[str, Any]:
        """The proof that a head continues an older one."""
        with self._log(origin) as log:
            signed = self._head(log, new)
            size = signed.checkpoint.size
            if old > size:
                raise NotFound(str(old), f"the log has {size} leaves, fewer than {old}")
            path = log.hashes.consistency(old, size)
            roots = log.hashes.root(old), signed.checkpoint.root
            if not merkle.verify_consistency(old, size, *roots, path):
                raise _damaged(log)
            return {
                "v": "hyperbeam.consistency/1",
                "old": old,
                "new": size,
                "path": [item.hex() for item in path],
                "checkpoint": signed.text(),
            }

    def cosign(self, text: bytes) -> tuple[Accepted, str]:
        """Take witnesses' cosignatures; gives also the head with all that it has now."""
        live = self._logs.live
        accepted = self._cosignatures(live).take(text, live)
        return accepted, self._head(live, accepted.size).text()

    @contextmanager
    def _log(self, origin: str | None) -> Iterator[AnyLog]:
        number = None if origin is None else self._logs.numbered(origin)
        if origin is None:
            yield self._logs.live
            return
        if number is not None:
            with self._logs.log(number) as log:
                if log is not None:
                    yield log
                    return
        known = ", ".join([self._logs.live.origin, *(name for name, _ in self._logs.ended())])
        raise NotFound(origin, f"no log {origin[:200]!r}; there is: {known}")

    def _head(self, log: AnyLog, size: int | None) -> SignedCheckpoint:
        if isinstance(log, EndedLog):
            if size not in (None, log.size):
                raise NotFound(
                    str(size),
                    f"the log {log.origin} has ended: only its head of {log.size} is kept",
                )
            kept = cosignatures.read(log.folder).get(log.size, ())
            return replace(log.signed, signatures=(*log.signed.signatures, *kept))
        if size is not None and size > log.size:
            raise NotFound(str(size), f"the log has {log.size} leaves, fewer than {size}")
        signed = log.head(self._logs.signer(), size)
        kept = self._cosignatures(log).of(signed.checkpoint.size)
        return replace(signed, signatures=(*signed.signatures, *kept))

    def _inclusion(self, log: AnyLog, index: int, size: int | None) -> dict[str, Any]:
        if size is None and isinstance(log, LiveLog):
            # A head that a witness has seen is worth more than the newest.
            newest = self._cosignatures(log).newest()
            size = newest if newest is not None and index < newest <= log.size else None
        signed = self._head(log, size)
        size = signed.checkpoint.size
        if index >= size:
            raise NotFound(str(index), f"no leaf {index}: the head has {size} leaves, from 0 on")
        leaf, path = log.hashes.leaf(index), log.hashes.inclusion(index, size)
        if not merkle.verify_inclusion(leaf, index, size, path, signed.checkpoint.root):
            raise _damaged(log)
        return {
            "v": "hyperbeam.inclusion/1",
            "index": index,
            "size": size,
            "path": [item.hex() for item in path],
            "checkpoint": signed.text(),
            "leaf": leaf.hex(),
        }

    def _cosignatures(self, live: LiveLog) -> Cosignatures:
        if self._cosigned.folder != live.folder:
            self._cosigned = Cosignatures(live.folder, self._witnesses)
        return self._cosigned


def _damaged(log: AnyLog) -> OSError:
    return OSError(f"the hashes in {log.folder} do not prove its head: the file is damaged")
