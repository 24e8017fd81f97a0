"""What witnesses say of a log's heads: taken where they are known and right, kept, shown."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperbeam import BadRequest, Forbidden, HyperbeamError
from hyperbeam.home import write_whole
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify.checkpoint import Checkpoint, Signature, VerifierKey
from hyperbeam.verify.checks import Malformed

from .one_log import LiveLog

FILE = "cosignatures.json"
KEPT = 32
"""Heads, the largest, whose cosignatures are kept."""
RECENT = 8
"""Heads that bare signature lines may be over."""
AHEAD = 300
"""Seconds that a witness's clock may be ahead of this one."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Cosignatures that were taken: the head's size, and each witness's name and time (s)."""

    size: int
    witnesses: tuple[tuple[str, int], ...]


class Cosignatures:
    """Those on the heads of the log in `folder`, by the witnesses that the config names.

    Methods are for any thread.
    """

    def __init__(self, folder: Path, witnesses: Sequence[VerifierKey]) -> None:
        self.folder = folder
        self._witnesses = {(each.name, each.id): each for each in witnesses}
        self._lock = threading.Lock()
        self._shown: deque[int] = deque(maxlen=RECENT)
        self._by_size = self._load()

    def shown(self, size: int) -> None:
        """Note that the head of this size went out."""
        if size not in self._shown:
            self._shown.append(size)

    def of(self, size: int) -> tuple[Signature, ...]:
        """The cosignatures on the head of this size."""
        return tuple(self._by_size.get(size, {}).values())

    def newest(self) -> int | None:
        """The size of the largest head that has one."""
        return max(self._by_size, default=None)

    def take(self, text: bytes, live: LiveLog) -> Accepted:
        """Take a cosigned checkpoint, or bare signature lines over a head that was shown lately.

        Raises Malformed, BadRequest; Forbidden where no line is by a known witness; 409 where
        the head is none of this log's.
        """
        if b"\n\n" in text:
            signed = notes.parse(text)
            known = self._known(signed.signatures)
            _check_head(signed.checkpoint, live)
            accepted = [(each, _time(signed.checkpoint, each, key)) for each, key in known]
            return self._keep(signed.checkpoint.size, accepted)
        known = self._known(notes.parse_signatures(text))
        for size in reversed([*self._shown]):
            head = Checkpoint(live.origin, size, live.hashes.root(size))
            if all(notes.cosigned_at(head, each, key) is not None for each, key in known):
                return self._keep(size, [(each, _time(head, each, key)) for each, key in known])
        raise _conflict(
            "the cosignature is over none of the last heads: post the whole cosigned checkpoint"
        )

    def _known(self, signatures: Sequence[Signature]) -> list[tuple[Signature, VerifierKey]]:
        """The first signature of each known witness."""
        found: dict[str, tuple[Signature, VerifierKey]] = {}
        for each in signatures:
            key = self._witnesses.get((each.name, each.key_id))
            if key is not None:
                found.setdefault(key.name, (each, key))
        if not found:
            raise Forbidden("no line is by a witness that this log knows", error="witness_unknown")
        return list(found.values())

    def _keep(self, size: int, accepted: Sequence[tuple[Signature, int]]) -> Accepted:
        with self._lock:
            by_size = dict(self._by_size)
            kept = dict(by_size.get(size, {}))
            for signature, at in accepted:
                before = kept.get(signature.name)
                if before is None or at >= int.from_bytes(before.value[:8], "big"):
                    kept[signature.name] = signature
            by_size[size] = kept
            self._by_size = {each: by_size[each] for each in sorted(by_size)[-KEPT:]}
            self._save()
        return Accepted(size, tuple((each.name, at) for each, at in accepted))

    def _save(self) -> None:
        value = {
            str(size): "".join(each.line() for each in signatures.values())
            for size, signatures in self._by_size.items()
        }
        write_whole(self.folder / FILE, json.dumps(value).encode())

    def _load(self) -> dict[int, dict[str, Signature]]:
        """Those of witnesses that are still known; nothing where the file cannot be read."""
        found: dict[int, dict[str, Signature]] = {}
        for size, signatures in read(self.folder).items():
            known = {s.name: s for s in signatures if (s.name, s.key_id) in self._witnesses}
            if known:
                found[size] = known
        return found


def read(folder: Path) -> dict[int, tuple[Signature, ...]]:
    """The cosignatures that were kept of the log in `folder`, by the heads' sizes."""
    try:
        value: Any = json.loads((folder / FILE).read_bytes())
        return {int(size): notes.parse_signatures(lines) for size, lines in value.items()}
    except (OSError, ValueError, AttributeError, TypeError, Malformed):
        return {}


def _check_head(head: Checkpoint, live: LiveLog) -> None:
    if head.origin != live.origin:
        raise _conflict(f"the checkpoint is of another log; this one is {live.origin}")
    if head.size > live.size:
        raise _conflict(f"the checkpoint has {head.size} leaves, this log has {live.size}")
    if head.root != live.hashes.root(head.size):
        raise _conflict(f"this log has another root at {head.size} leaves: keep that checkpoint")


def _time(head: Checkpoint, signature: Signature, witness: VerifierKey) -> int:
    at = notes.cosigned_at(head, signature, witness)
    if at is None:
        raise BadRequest(
            f"the cosignature of {witness.name} is not over this checkpoint",
            error="cosignature_invalid",
        )
    if at > time.time() + AHEAD:
        raise BadRequest(
            f"the cosignature of {witness.name} is from the future: set its clock",
            error="cosignature_invalid",
        )
    return at


def _conflict(detail: str) -> HyperbeamError:
    return HyperbeamError(detail, status=409, error="head_unknown")
