"""Merkle trees with SHA-256: roots, inclusion and consistency proofs, and their checks.

A tree is named by its size; a proof is a list of 32-byte hashes. `inclusion_ranges` and
`consistency_ranges` say which parts of a tree a proof is made of, as (from, to) of leaves,
for logs that keep the hashes of inner nodes. Source: RFC 9162, 2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HASH_SIZE = 32
EMPTY = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf that holds `data`."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of the node over two hashes."""
    return hashlib.sha256(b"\1" + left + right).digest()


def root(hashes: Sequence[bytes]) -> bytes:
    """The root over leaves' hashes, in order (RFC 9162, 2.1.1)."""
    if not hashes:
        return EMPTY
    # Pairs from the left, an odd one goes up as it is: the same tree as by halves.
    level = list(hashes)
    while len(level) > 1:
        above = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0]


def inclusion(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """The proof that leaf `index` is in the tree over `hashes`. Raises ValueError."""
    return [root(hashes[low:high]) for low, high in inclusion_ranges(index, len(hashes))]


def consistency(hashes: Sequence[bytes], old: int) -> list[bytes]:
    """The proof that the tree over `hashes` begins with the one of size `old`.

    Raises ValueError.
    """
    return [root(hashes[low:high]) for low, high in consistency_ranges(old, len(hashes))]


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """The subtrees whose hashes are the proof of leaf `index` (RFC 9162, 2.1.3.1)."""
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    low, high = 0, size
    ranges = []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            ranges.append((middle, high))
            high = middle
        else:
            ranges.append((low, middle))
            low = middle
    return ranges[::-1]


def consistency_ranges(old: int, new: int) -> list[tuple[int, int]]:
    """The subtrees whose hashes prove size `new` to follow `old` (RFC 9162, 2.1.4.1).

    None for the empty tree, which every tree follows.
    """
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} does not follow one of {old}")
    if old == 0:
        return []
    low, high = 0, new
    ranges = []
    while old != high:
        middle = low + _split(high - low)
        if old <= middle:
            ranges.append((middle, high))
            high = middle
        else:
            ranges.append((low, middle))
            low = middle
    if low:
        ranges.append((low, high))
    return ranges[::-1]


def verify_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes
) -> bool:
    """Whether `path` proves the leaf with the hash `leaf` to be at `index` (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or not _are_hashes(leaf, root, *path):
        return False
    at, last, found = index, size - 1, leaf
    for item in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = node_hash(item, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = node_hash(found, item)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def verify_consistency(
    old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]
) -> bool:
    """Whether `path` proves that the tree of `new` leaves begins with that of `old`
    (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new or not _are_hashes(old_root, new_root, *path):
        return False
    if old == new:
        return not path and old_root == new_root
    if old == 0:
        return not path and old_root == EMPTY
    proof = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not path:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = proof[0]
    for item in proof[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first = node_hash(item, first)
            second = node_hash(item, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, item)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _are_hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_SIZE for value in values)
