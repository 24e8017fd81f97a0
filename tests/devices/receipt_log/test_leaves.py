import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.receipt_log.hashes import HashFile
from devices.receipt_log.leaves import Leaves

from .logs import leaf, opened, proves


@pytest.fixture
def hashes(tmp_path: Path) -> Iterator[HashFile]:
    file = HashFile.create(tmp_path / "hashes")
    file.append([leaf(number) for number in range(10)])
    yield file
    file.close()


@pytest.fixture
def leaves(tmp_path: Path) -> Iterator[Leaves]:
    table = Leaves(tmp_path / "leaves.sqlite")
    yield table
    table.close()


def test_it_holds_exactly_so_many(leaves: Leaves, hashes: HashFile) -> None:
    leaves.fill(1, "a", hashes, 4)
    assert leaves.find([leaf(3)]) == {leaf(3): (1, 3)}
    assert leaves.find([leaf(4)]) == {}
    leaves.fill(1, "a", hashes, 10)
    assert leaves.find([leaf(9)]) == {leaf(9): (1, 9)}
    leaves.fill(1, "a", hashes, 2)
    assert leaves.find([leaf(1)]) == {leaf(1): (1, 1)}
    assert leaves.find([leaf(2)]) == {}


def test_a_leaf_may_be_dropped(leaves: Leaves, hashes: HashFile) -> None:
    leaves.fill(1, "a", hashes, 4)
    leaves.drop(leaf(2))
    leaves.fill(1, "a", hashes, 4)
    assert leaves.find([leaf(1), leaf(2)]) == {leaf(1): (1, 1)}


def test_files_for_this_user_only(tmp_path: Path, hashes: HashFile) -> None:
    path = tmp_path / "leaves.sqlite"
    for _ in range(2):
        table = Leaves(path)
        table.fill(1, "a", hashes, 4)
        parts = list(tmp_path.glob("leaves.sqlite*"))
        assert len(parts) == 3
        assert {stat.S_IMODE(part.stat().st_mode) for part in parts} == {0o600}
        table.close()
        # As an older version made it.
        path.chmod(0o644)


def test_many_at_a_time(leaves: Leaves, tmp_path: Path) -> None:
    hashes = HashFile.create(tmp_path / "many")
    hashes.append([leaf(number) for number in range(1200)])
    leaves.fill(1, "a", hashes, 1100)
    found = leaves.find([leaf(number) for number in range(1200)])
    assert found == {leaf(number): (1, number) for number in range(1100)}
    hashes.close()


def test_the_last_log_filled_in_has_it(leaves: Leaves, hashes: HashFile) -> None:
    leaves.fill(1, "a", hashes, 4)
    leaves.fill(2, "b", hashes, 3)
    assert leaves.find([leaf(2)]) == {leaf(2): (2, 2)}
    assert leaves.find([leaf(3)]) == {leaf(3): (1, 3)}
    leaves.keep([2])
    assert leaves.find([leaf(3)]) == {}
    assert leaves.find([leaf(2)]) == {leaf(2): (2, 2)}


def test_another_log_of_the_number_is_filled_in_anew(
    leaves: Leaves, hashes: HashFile, tmp_path: Path
) -> None:
    leaves.fill(1, "a", hashes, 4)
    other = HashFile.create(tmp_path / "other")
    other.append([leaf(20), leaf(0)])
    leaves.fill(1, "b", other, 2)
    other.close()
    assert leaves.find([leaf(20)]) == {leaf(20): (1, 0)}
    assert leaves.find([leaf(0)]) == {leaf(0): (1, 1)}
    assert leaves.find([leaf(1)]) == {}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xee" * (len(data) - 4096)
    with path.open("r+b") as file:
        file.write(data)


def test_damage_found_at_the_start_is_mended(tmp_path: Path) -> None:
    logs = opened(tmp_path / "log")
    logs.add([leaf(number) for number in range(500)])
    logs.close()
    damage(tmp_path / "log" / "leaves.sqlite")
    logs = opened(tmp_path / "log", unused=False)
    assert all(proves(logs, leaf(number)) for number in range(500))
    logs.close()


def test_damage_found_later_is_mended(tmp_path: Path) -> None:
    logs = opened(tmp_path / "log")
    logs.add([leaf(number) for number in range(5000)])
    logs.close()
    path = tmp_path / "log" / "leaves.sqlite"
    data = path.read_bytes()
    logs = opened(tmp_path / "log", unused=False)
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xee" * (len(data) - 3 * 4096))
    assert all(proves(logs, leaf(number)) for number in range(0, 5000, 50))
    assert logs.add([leaf(4999), leaf(5000)]) == [4999, 5000]
    logs.close()
