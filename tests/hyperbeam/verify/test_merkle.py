from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymerkle import InmemoryTree
from pymerkle import verify_consistency as pymerkle_consistency
from pymerkle import verify_inclusion as pymerkle_inclusion

from hyperbeam.verify import merkle

# Leaves and roots that implementations of certificate transparency test each other with.
LEAVES = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
HASHES = [merkle.leaf_hash(b"%d" % number) for number in range(130)]
sizes = st.integers(1, len(HASHES))


def by_halves(hashes: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, 2.1.1, as it is written there."""
    if not hashes:
        return merkle.EMPTY
    if len(hashes) == 1:
        return hashes[0]
    half = 1
    while half * 2 < len(hashes):
        half *= 2
    return merkle.node_hash(by_halves(hashes[:half]), by_halves(hashes[half:]))


def path_by_halves(index: int, hashes: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 9162, 2.1.3.1."""
    if len(hashes) == 1:
        return []
    half = 1
    while half * 2 < len(hashes):
        half *= 2
    if index < half:
        return [*path_by_halves(index, hashes[:half]), by_halves(hashes[half:])]
    return [*path_by_halves(index - half, hashes[half:]), by_halves(hashes[:half])]


def proof_by_halves(old: int, hashes: Sequence[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 9162, 2.1.4.1."""
    if old == len(hashes):
        return [] if whole else [by_halves(hashes)]
    half = 1
    while half * 2 < len(hashes):
        half *= 2
    if old <= half:
        return [*proof_by_halves(old, hashes[:half], whole), by_halves(hashes[half:])]
    return [*proof_by_halves(old - half, hashes[half:], False), by_halves(hashes[:half])]


def changed(path: list[bytes], at: int) -> list[bytes]:
    flipped = bytes([path[at][0] ^ 1]) + path[at][1:]
    return [*path[:at], flipped, *path[at + 1 :]]


@pytest.mark.parametrize("size", range(len(ROOTS)))
def test_roots_that_others_have(size: int) -> None:
    hashes = [merkle.leaf_hash(bytes.fromhex(leaf)) for leaf in LEAVES[:size]]
    assert merkle.root(hashes).hex() == ROOTS[size]


@given(sizes)
def test_roots_as_in_the_rfc(size: int) -> None:
    assert merkle.root(HASHES[:size]) == by_halves(HASHES[:size])


@given(sizes, st.data())
def test_inclusion(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    root = merkle.root(HASHES[:size])
    path = merkle.inclusion(HASHES[:size], index)
    assert path == path_by_halves(index, HASHES[:size])
    assert merkle.verify_inclusion(HASHES[index], index, size, path, root)
    assert not merkle.verify_inclusion(HASHES[index], index, size, [*path, HASHES[0]], root)
    assert not merkle.verify_inclusion(HASHES[index], index, size, path, HASHES[-1])
    other = data.draw(st.integers(0, size - 1).filter(lambda each: each != index) | st.just(size))
    assert not merkle.verify_inclusion(HASHES[index], other, size, path, root)
    if path:
        assert not merkle.verify_inclusion(HASHES[index], index, size, path[:-1], root)
        at = data.draw(st.integers(0, len(path) - 1))
        assert not merkle.verify_inclusion(HASHES[index], index, size, changed(path, at), root)


@given(sizes, st.data())
def test_consistency(new: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, new))
    roots = merkle.root(HASHES[:old]), merkle.root(HASHES[:new])
    path = merkle.consistency(HASHES[:new], old)
    assert path == proof_by_halves(old, HASHES[:new])
    assert merkle.verify_consistency(old, new, *roots, path)
    assert not merkle.verify_consistency(old, new, *roots, [*path, HASHES[0]])
    assert not merkle.verify_consistency(old, new, HASHES[-1], roots[1], path)
    assert not merkle.verify_consistency(old, new, roots[0], HASHES[-1], path)
    if path:
        assert not merkle.verify_consistency(old, new, *roots, path[:-1])
        at = data.draw(st.integers(0, len(path) - 1))
        assert not merkle.verify_consistency(old, new, *roots, changed(path, at))


@given(st.integers(1, 40), st.data())
def test_another_program_agrees(size: int, data: st.DataObject) -> None:
    tree = InmemoryTree(algorithm="sha256")
    for number in range(size):
        tree.append_entry(b"%d" % number)
    root = merkle.root(HASHES[:size])
    assert tree.get_root() == root
    index = data.draw(st.integers(0, size - 1))
    proof = tree.prove_inclusion(index + 1, size)
    pymerkle_inclusion(HASHES[index], root, proof)
    theirs = [bytes.fromhex(item) for item in proof.serialize()["path"]][1:]
    assert theirs == merkle.inclusion(HASHES[:size], index)
    old = data.draw(st.integers(1, size))
    pymerkle_consistency(merkle.root(HASHES[:old]), root, tree.prove_consistency(old, size))


def test_the_empty_tree_comes_before_every_other() -> None:
    root = merkle.root(HASHES[:3])
    assert merkle.consistency(HASHES[:3], 0) == []
    assert merkle.verify_consistency(0, 3, merkle.EMPTY, root, [])
    assert merkle.verify_consistency(0, 0, merkle.EMPTY, merkle.EMPTY, [])
    assert not merkle.verify_consistency(0, 3, root, root, [])
    assert not merkle.verify_consistency(0, 3, merkle.EMPTY, root, [root])


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0), (2**70, 3), (0, -1)])
def test_no_such_leaf(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="no leaf"):
        merkle.inclusion_ranges(index, size)
    assert not merkle.verify_inclusion(HASHES[0], index, size, [], HASHES[0])


@pytest.mark.parametrize(("old", "new"), [(-1, 3), (4, 3), (1, 0)])
def test_no_such_sizes(old: int, new: int) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        merkle.consistency_ranges(old, new)
    assert not merkle.verify_consistency(old, new, HASHES[0], HASHES[0], [])


@pytest.mark.parametrize("item", [b"", b"\0" * 31, b"\0" * 33])
def test_a_proof_holds_hashes_only(item: bytes) -> None:
    root = merkle.node_hash(HASHES[0], item)
    assert not merkle.verify_inclusion(HASHES[0], 0, 2, [item], root)
    assert not merkle.verify_consistency(1, 2, HASHES[0], root, [item])


def test_an_inner_node_is_no_leaf() -> None:
    inner = merkle.node_hash(HASHES[0], HASHES[1])
    root = merkle.root(HASHES[:4])
    path = merkle.inclusion(HASHES[:4], 0)[1:]
    # It fits a tree of two: that is why heads and batches say their size.
    assert merkle.verify_inclusion(inner, 0, 2, path, root)
    assert not merkle.verify_inclusion(inner, 0, 4, path, root)


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(-5, 2**65),
    st.integers(-5, 2**65),
    st.lists(st.binary(max_size=33), max_size=70),
)
def test_anything_gets_an_answer(leaf: bytes, first: int, second: int, path: list[bytes]) -> None:
    assert merkle.verify_inclusion(leaf, first, second, path, leaf) in (True, False)
    assert merkle.verify_consistency(first, second, leaf, leaf, path) in (True, False)
