"""Keys to sign a log with, and what has to be true of all heads that were ever given out."""

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devices.receipt_log.logs import Logs
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import merkle
from hyperbeam.verify.checkpoint import SignedCheckpoint, VerifierKey

# In memory where there is such a place: what these tests end is processes, not machines.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ADDRESS = "a" * 43
ORIGIN = f"hyperbeam/receipts/{ADDRESS}"


class Signer:
    """A log key of its own, as every start of a node has."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.log_public = self._key.public_key().public_bytes_raw()

    def sign_log(self, data: bytes) -> bytes:
        return self._key.sign(data)


def leaf(number: int) -> bytes:
    return merkle.leaf_hash(b"receipt %d" % number)


def opened(folder: Path, *, unused: bool = True, signer: Signer | None = None) -> Logs:
    signer = signer or Signer()
    logs = Logs(folder, ADDRESS, lambda: signer)
    logs.open(unused=unused)
    return logs


def head(logs: Logs) -> SignedCheckpoint:
    """The current head, its signature checked."""
    signed = logs.live.head(logs.signer())
    key = VerifierKey(signed.checkpoint.origin, notes.ED25519, logs.signer().log_public)
    assert notes.verify(signed, key)
    return signed


def proves(logs: Logs, wanted: bytes) -> bool:
    """Whether the log that has a leaf proves it under a head of its own."""
    found = logs.find(wanted)
    if found is None:
        return False
    number, index = found
    with logs.log(number) as log:
        if log is None:
            return False
        path = log.hashes.inclusion(index, log.size)
        root = log.hashes.root(log.size)
        return merkle.verify_inclusion(wanted, index, log.size, path, root)


def check_no_fork(heads: Iterable[SignedCheckpoint]) -> None:
    """No two roots for one size of one log."""
    roots: dict[tuple[str, int], bytes] = {}
    for each in heads:
        found = each.checkpoint
        assert roots.setdefault((found.origin, found.size), found.root) == found.root


def check_growth(heads: Iterable[SignedCheckpoint], logs: Logs) -> None:
    """Every head of the current log continues every smaller one."""
    live = logs.live
    own = {
        h.checkpoint.size: h.checkpoint.root for h in heads if h.checkpoint.origin == live.origin
    }
    for old, old_root in own.items():
        for new, new_root in own.items():
            if old <= new:
                path = live.hashes.consistency(old, new)
                assert merkle.verify_consistency(old, new, old_root, new_root, path)
