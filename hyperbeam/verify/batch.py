"""Batches: one hardware report over several statements, each with its inclusion proof.

Shape: {v, size, root, index, path: [hex]}. A leaf is SHA-256(0x00 || SHA-256(raw)); the
hardware's nonce is SHA-256 of the JCS of {v, root, size}: without the size in it one proof
would verify for several places. Source: RFC 9162, 2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import jcs, merkle, shape
from .checks import Malformed

V = "hyperbeam.batch/1"
MALFORMED = "batch-malformed"
MAX_SIZE = 1 << 20

_SHAPE = shape.record(
    v=shape.constant(V),
    size=shape.natural,
    root=shape.digest,
    index=shape.natural,
    path=shape.listing(shape.digest, most=20),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A statement's place in a batch of `size`, and its path to `root`."""

    size: int
    root: bytes
    index: int
    path: tuple[bytes, ...]


def parse(value: Any) -> Batch:
    """Read a batch. Raises Malformed `batch-malformed`."""
    shape.check(value, _SHAPE, "the batch", MALFORMED)
    if not 0 < value["size"] <= MAX_SIZE or value["index"] >= value["size"]:
        raise Malformed("the batch has no place for its index", MALFORMED)
    path = tuple(bytes.fromhex(item) for item in value["path"])
    return Batch(value["size"], bytes.fromhex(value["root"]), value["index"], path)


def verify(batch: Batch, raw: str, nonce: str) -> bool:
    """Whether `raw` is in the batch and `nonce` (hex) is the batch's."""
    if nonce != batch_nonce(batch.root, batch.size):
        return False
    path = list(batch.path)
    return merkle.verify_inclusion(_leaf(raw), batch.index, batch.size, path, batch.root)


def batch_nonce(root: bytes, size: int) -> str:
    """What the hardware signs for a batch, in hex."""
    return jcs.digest({"v": V, "root": root.hex(), "size": size})


def tree(raws: Sequence[str]) -> tuple[bytes, list[dict[str, Any]], str]:
    """The root over `raws`, the batch of each in order, and the hardware's nonce (hex)."""
    leaves = [_leaf(raw) for raw in raws]
    root = merkle.root(leaves)
    batches = [
        {
            "v": V,
            "size": len(leaves),
            "root": root.hex(),
            "index": index,
            "path": [item.hex() for item in merkle.inclusion(leaves, index)],
        }
        for index in range(len(leaves))
    ]
    return root, batches, batch_nonce(root, len(leaves))


def _leaf(raw: str) -> bytes:
    return merkle.leaf_hash(hashlib.sha256(raw.encode()).digest())
