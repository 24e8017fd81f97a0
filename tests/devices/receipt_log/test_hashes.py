import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.receipt_log.hashes import HashFile, count, place
from hyperbeam.verify import merkle

from .logs import leaf


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> HashFile:
    """A log of 200 leaves that came in batches of 1, 2, 3, ..."""
    hashes = HashFile.create(tmp_path_factory.mktemp("log") / "hashes")
    batch = 1
    while hashes.size < 200:
        new = range(hashes.size, min(hashes.size + batch, 200))
        size, root = hashes.append([leaf(number) for number in new])
        assert root == merkle.root([leaf(number) for number in range(size)])
        hashes.size = size
        batch += 1
    return hashes


LEAVES = [leaf(number) for number in range(200)]


def stored_hash_index(level: int, number: int) -> int:
    """The order of Go's sumdb/tlog: the sum over all levels of what stands before."""
    for _ in range(level):
        number = 2 * number + 1
    index = 0
    while number > 0:
        index += number
        number >>= 1
    return index + level


@given(st.integers(0, 40), st.integers(0, 2**40))
def test_places_are_those_of_go(level: int, number: int) -> None:
    assert place(level, number) == stored_hash_index(level, number)


def test_every_hash_of_the_file_has_one_place() -> None:
    places = {place(level, number) for level in range(5) for number in range(16 >> level)}
    assert places == set(range(count(16)))


def test_the_file_is_in_that_order(tmp_path: Path) -> None:
    hashes = HashFile.create(tmp_path / "hashes")
    hashes.append(LEAVES[:4])
    left, right = merkle.node_hash(*LEAVES[:2]), merkle.node_hash(*LEAVES[2:4])
    wanted = [*LEAVES[:2], left, *LEAVES[2:4], right, merkle.node_hash(left, right)]
    assert (tmp_path / "hashes").read_bytes() == b"".join(wanted)
    hashes.close()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_proofs_between_all_sizes(grown: HashFile, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, 200))
    old = data.draw(st.integers(0, new))
    index = data.draw(st.integers(0, new - 1))
    roots = grown.root(old), grown.root(new)
    assert roots == (merkle.root(LEAVES[:old]), merkle.root(LEAVES[:new]))
    path = grown.consistency(old, new)
    assert path == merkle.consistency(LEAVES[:new], old)
    assert merkle.verify_consistency(old, new, *roots, path)
    path = grown.inclusion(index, new)
    assert path == merkle.inclusion(LEAVES[:new], index)
    assert merkle.verify_inclusion(grown.leaf(index), index, new, path, roots[1])
    assert list(grown.leaves(old, new)) == LEAVES[old:new]


def test_a_reader_while_it_grows(tmp_path: Path) -> None:
    hashes = HashFile.create(tmp_path / "hashes")
    done = threading.Event()
    wrong: list[str] = []
    sizes = set()

    def read() -> None:
        last, last_root = 0, merkle.EMPTY
        while not done.is_set() or last < hashes.size:
            size = hashes.size
            root = hashes.root(size)
            sizes.add(size)
            path = hashes.consistency(last, size)
            if not merkle.verify_consistency(last, size, last_root, root, path):
                wrong.append(f"{last} to {size}")
            if size:
                path = hashes.inclusion(size // 2, size)
                found = hashes.leaf(size // 2)
                if not merkle.verify_inclusion(found, size // 2, size, path, root):
                    wrong.append(f"{size // 2} in {size}")
            last, last_root = size, root

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for number in range(150):
        size, _ = hashes.append([leaf(number * 3 + at) for at in range(3)])
        hashes.size = size
    done.set()
    for each in readers:
        each.join()
    hashes.close()
    assert not wrong
    assert max(sizes) == 450


def test_a_file_that_is_too_short_is_no_proof(tmp_path: Path) -> None:
    hashes = HashFile.create(tmp_path / "hashes")
    hashes.append(LEAVES[:8])
    hashes.close()
    with (tmp_path / "hashes").open("r+b") as file:
        file.truncate(32 * 14)
    short = HashFile.open(tmp_path / "hashes", 8)
    with pytest.raises(OSError, match="shorter"):
        short.root(8)
    with pytest.raises(OSError, match="shorter"):
        list(short.leaves(0, 9))
    short.close()
