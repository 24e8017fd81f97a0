"""What may happen to a node's folder, and that no history is ever told twice."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from devices.receipt_log.logs import Logs
from devices.receipt_log.one_log import begin_record, last_head
from hyperbeam import ConfigError
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import jcs, merkle
from hyperbeam.verify.checkpoint import SignedCheckpoint

from .logs import ORIGIN, Signer, check_growth, check_no_fork, head, leaf, opened, proves


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def add(logs: Logs, *numbers: int) -> SignedCheckpoint:
    logs.add([leaf(number) for number in numbers])
    return head(logs)


def in_place(file: Path, data: bytes) -> None:
    """Overwrite a file and keep its inode."""
    with file.open("r+b") as open_file:
        open_file.truncate(0)
        open_file.write(data)


def test_a_first_log_and_its_continuation(folder: Path) -> None:
    logs = opened(folder)
    heads = [head(logs), add(logs, 0, 1, 2), add(logs, 3)]
    logs.close()
    logs = opened(folder, unused=False)
    heads.append(head(logs))
    assert heads[-1].checkpoint == heads[-2].checkpoint
    assert heads[-1].signatures != heads[-2].signatures
    heads.append(add(logs, 4, 5))
    assert [each.checkpoint.size for each in heads] == [0, 3, 4, 4, 6]
    assert {each.checkpoint.origin for each in heads} == {ORIGIN}
    assert heads[0].checkpoint.root == merkle.EMPTY
    check_growth(heads, logs)
    assert logs.ended() == []
    logs.close()


def test_leaves_are_added_once(folder: Path) -> None:
    logs = opened(folder)
    assert logs.add([leaf(0), leaf(1), leaf(0)]) == [0, 1, 0]
    assert logs.add([leaf(2), leaf(1)]) == [2, 1]
    assert logs.add([]) == []
    assert logs.live.size == 3
    logs.close()


def test_an_address_that_may_have_had_a_log_gets_another_name(folder: Path) -> None:
    logs = opened(folder, unused=False)
    assert logs.live.origin.startswith(f"{ORIGIN}/")
    record = jcs.encode({"v": "hyperbeam.log/1", "previous": None, "reason": "log-missing"})
    assert logs.live.hashes.leaf(0) == merkle.leaf_hash(record)
    assert logs.live.size == 1
    logs.close()


def touch(folder: Path, _: Path) -> None:
    os.utime(folder / "1" / "hashes")


def copy_back(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def copy_back_in_place(folder: Path, backup: Path) -> None:
    for name in ("hashes", "state.json"):
        in_place(folder / "1" / name, (backup / "1" / name).read_bytes())


def copy_back_hashes(folder: Path, backup: Path) -> None:
    in_place(folder / "1" / "hashes", (backup / "1" / "hashes").read_bytes())


def copy_back_state(folder: Path, backup: Path) -> None:
    shutil.copy2(backup / "1" / "state.json", folder / "1" / "state.json")


def tear(folder: Path, _: Path) -> None:
    with (folder / "1" / "hashes").open("ab") as file:
        file.write(b"\0" * 17)


def cut(folder: Path, _: Path) -> None:
    with (folder / "1" / "hashes").open("r+b") as file:
        file.truncate(32)


def lose_state(folder: Path, _: Path) -> None:
    (folder / "1" / "state.json").unlink()


def lose_hashes(folder: Path, _: Path) -> None:
    (folder / "1" / "hashes").unlink()


def damage_state(folder: Path, _: Path) -> None:
    (folder / "1" / "state.json").write_bytes(b"{}")


def empty_state(folder: Path, _: Path) -> None:
    (folder / "1" / "state.json").write_bytes(b"")


def lose_all(folder: Path, _: Path) -> None:
    shutil.rmtree(folder)


def change_state(folder: Path, **changes: object) -> None:
    path = folder / "1" / "state.json"
    state = jcs.parse(path.read_bytes())
    state["stamp"] |= {k: v for k, v in changes.items() if k in state["stamp"]}
    state |= {k: v for k, v in changes.items() if k in state}
    path.write_bytes(jcs.encode(state))


def other_root(folder: Path, _: Path) -> None:
    change_state(folder, root="00" * 32)


def other_device(folder: Path, _: Path) -> None:
    change_state(folder, dev="1")


def other_boot(folder: Path, _: Path) -> None:
    change_state(folder, boot="of another day")


def other_node(folder: Path, _: Path) -> None:
    change_state(folder, origin="hyperbeam/receipts/" + "b" * 43)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (touch, "hashes-replaced"),
        (copy_back, "hashes-replaced"),
        (copy_back_in_place, "hashes-replaced"),
        (copy_back_hashes, "hashes-cut"),
        (copy_back_state, "hashes-ahead"),
        (tear, "hashes-ahead"),
        (cut, "hashes-cut"),
        (lose_state, "state-missing"),
        (lose_hashes, "hashes-missing"),
        (damage_state, "state-damaged"),
        (empty_state, "state-damaged"),
        (lose_all, "log-missing"),
        (other_root, "root-mismatch"),
        (other_device, "hashes-replaced"),
        (other_boot, "machine-restarted"),
        (other_node, "other-node"),
    ],
)
def test_what_begins_another_log(
    folder: Path, tmp_path: Path, happens: Callable[[Path, Path], None], reason: str
) -> None:
    logs = opened(folder)
    heads = [add(logs, 0, 1, 2)]
    logs.close()
    shutil.copytree(folder, tmp_path / "backup")
    logs = opened(folder)
    heads.append(add(logs, 3, 4))
    logs.close()
    happens(folder, tmp_path / "backup")

    kept = last_head(folder / "1")
    logs = opened(folder, unused=False)
    record = begin_record(logs.live.folder)
    assert record is not None
    assert record["reason"] == reason
    assert record["previous"] == (kept.text() if kept else None)
    assert logs.live.hashes.leaf(0) == merkle.leaf_hash(jcs.encode(record))
    # The same leaves in another order, and others: under the old name it would be a fork.
    heads += [head(logs), add(logs, 9, 4), add(logs, 5, 0)]
    assert heads[-1].checkpoint.origin != heads[0].checkpoint.origin
    assert heads[-1].checkpoint.origin.startswith(f"{ORIGIN}/")
    check_no_fork(heads)
    check_growth(heads, logs)
    assert all(proves(logs, leaf(number)) for number in (9, 4, 5, 0))
    origin = logs.live.origin
    logs.close()
    logs = opened(folder, unused=False)
    assert logs.live.origin == origin
    heads += [head(logs), add(logs, 6)]
    check_no_fork(heads)
    check_growth(heads, logs)
    logs.close()


def test_what_an_ended_log_covers_stays_proven(folder: Path) -> None:
    logs = opened(folder)
    add(logs, 0, 1)
    add(logs, 2)
    logs.close()
    touch(folder, folder)
    logs = opened(folder, unused=False)
    assert logs.add([leaf(1), leaf(3), leaf(2)]) == [1, 1, 2]
    assert logs.live.size == 2
    assert logs.ended() == [(ORIGIN, 3)]
    assert logs.numbered(ORIGIN) == 1
    assert logs.find(leaf(1)) == (1, 1)
    assert all(proves(logs, leaf(number)) for number in range(4))
    logs.close()


def test_what_an_ended_log_had_signed_nothing_about_is_logged_again(folder: Path) -> None:
    logs = opened(folder)
    add(logs, 0)
    signed = (folder / "1" / "checkpoint").read_bytes()
    add(logs, 1)
    logs.close()
    (folder / "1" / "checkpoint").write_bytes(signed)
    touch(folder, folder)
    logs = opened(folder, unused=False)
    assert logs.find(leaf(1)) is None
    assert logs.add([leaf(0), leaf(1)]) == [0, 1]
    assert logs.find(leaf(1)) == (2, 1)
    assert proves(logs, leaf(0))
    assert proves(logs, leaf(1))
    logs.close()


@pytest.mark.parametrize("damage", ["hashes", "checkpoint"])
def test_an_ended_log_that_is_damaged_proves_nothing(folder: Path, damage: str) -> None:
    logs = opened(folder)
    add(logs, 0, 1)
    logs.close()
    data = (folder / "1" / damage).read_bytes()
    (folder / "1" / damage).write_bytes(data[:-2] + b"xx")
    touch(folder, folder)
    logs = opened(folder, unused=False)
    assert logs.find(leaf(0)) is None
    assert logs.add([leaf(0)]) == [1]
    assert proves(logs, leaf(0))
    logs.close()


def test_two_nodes_with_copies_of_one_log(folder: Path, tmp_path: Path) -> None:
    logs = opened(folder)
    heads = [add(logs, 0, 1)]
    shutil.copytree(folder, tmp_path / "copy")
    other = opened(tmp_path / "copy", unused=False)
    heads += [add(logs, 2), add(other, 3), add(other, 4), add(logs, 5)]
    check_no_fork(heads)
    assert logs.live.origin == ORIGIN
    assert other.live.origin != ORIGIN
    logs.close()
    other.close()


def test_one_writer(folder: Path) -> None:
    logs = opened(folder)
    with pytest.raises(ConfigError, match="another process"):
        opened(folder)
    logs.close()
    opened(folder).close()


@pytest.mark.parametrize("stray", ["", "2", "01", "1/state.json/x", "leaves.sqlite/x", "lock/x"])
def test_a_folder_that_is_no_log(tmp_path: Path, folder: Path, stray: str) -> None:
    if stray:
        opened(folder).close()
        shutil.copytree(folder, tmp_path / "sound")
    for part in (folder / stray, (folder / stray).parent):
        if part not in (folder, tmp_path) and part.is_file():
            part.unlink()
    (folder / stray).parent.mkdir(exist_ok=True)
    (folder / stray).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"the log of receipts in .* cannot be opened") as refused:
        opened(folder, unused=False)
    assert "\n" not in refused.value.detail
    assert "move the folder away" in refused.value.detail
    folder.rename(tmp_path / "away")
    opened(folder, unused=False).close()


def test_what_else_is_in_the_folder_does_not_matter(folder: Path) -> None:
    logs = opened(folder)
    (folder / "notes.txt").write_bytes(b"")
    (folder / "2").write_bytes(b"")
    logs._failed = "write-failed"
    logs.add([leaf(0)])
    assert logs.live.folder.name == "3"
    assert proves(logs, leaf(0))
    (folder / "2").unlink()
    logs.close()
    logs = opened(folder, unused=False)
    assert logs.live.folder.name == "3"
    logs.close()


def test_a_forgotten_leaf_is_added_again(folder: Path) -> None:
    logs = opened(folder)
    add(logs, 0, 1, 2)
    logs.close()
    touch(folder, folder)
    logs = opened(folder, unused=False)
    assert logs.known([leaf(1), leaf(3)]) == {leaf(1)}
    logs.forget(leaf(1))
    assert logs.known([leaf(1), leaf(2)]) == {leaf(2)}
    assert logs.add([leaf(1), leaf(2)]) == [1, 2]
    assert logs.find(leaf(1)) == (2, 1)
    logs.close()


def test_a_log_that_was_moved_away_and_back(folder: Path, tmp_path: Path) -> None:
    logs = opened(folder)
    heads = [add(logs, 0, 1)]
    logs.close()
    folder.rename(tmp_path / "aside")
    logs = opened(folder, unused=False)
    heads.append(add(logs, 2))
    logs.close()
    shutil.rmtree(folder)
    (tmp_path / "aside").rename(folder)
    logs = opened(folder, unused=False)
    heads += [head(logs), add(logs, 3)]
    check_no_fork(heads)
    check_growth(heads, logs)
    logs.close()


def test_a_restore_under_a_running_node(folder: Path, tmp_path: Path) -> None:
    logs = opened(folder)
    heads = [add(logs, 0)]
    shutil.copytree(folder, tmp_path / "backup")
    heads.append(add(logs, 1, 2))
    copy_back(folder, tmp_path / "backup")
    heads.append(add(logs, 3))
    logs.close()
    logs = opened(folder, unused=False)
    heads += [head(logs), add(logs, 4, 5)]
    assert logs.live.origin != ORIGIN
    check_no_fork(heads)
    logs.close()


class Full:
    """Writes end in the middle of what is written: the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
        self.full = False
        real = getattr(os, which)

        def refuse(descriptor: int, *args: bytes) -> int:
            if not self.full:
                return int(real(descriptor, *args) or 0)
            if which == "pwrite" and len(args[0]) > 40:
                return int(real(descriptor, bytes(args[0][:40]), *args[1:]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, which, refuse)


@pytest.mark.parametrize("which", ["pwrite", "fsync"])
def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    disk = Full(monkeypatch, which)
    logs = opened(folder)
    heads = [add(logs, 0, 1)]
    disk.full = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            logs.add([leaf(2), leaf(3)])
        heads.append(head(logs))
    assert sorted(each.name for each in folder.iterdir() if each.is_dir()) == ["1"]
    disk.full = False
    heads.append(add(logs, 3, 2))
    assert logs.live.origin != ORIGIN
    record = begin_record(logs.live.folder)
    assert record is not None
    assert record["reason"] == "write-failed"
    heads.append(add(logs, 4))
    check_no_fork(heads)
    check_growth(heads, logs)
    assert all(proves(logs, leaf(number)) for number in range(5))
    logs.close()
    logs = opened(folder, unused=False)
    assert all(proves(logs, leaf(number)) for number in range(5))
    logs.close()


def test_a_head_is_signed_only_over_what_the_disk_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_write, real_sync, real_rename = os.pwrite, os.fsync, os.rename

    def write(descriptor: int, data: bytes, at: int) -> int:
        events.append("write")
        return real_write(descriptor, data, at)

    def sync(descriptor: int) -> None:
        real_sync(descriptor)
        events.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def rename(source: Path, target: Path) -> None:
        real_rename(source, target)
        events.append(f"rename {Path(target).name}")

    class Watched(Signer):
        def sign_log(self, data: bytes) -> bytes:
            events.append("sign")
            return super().sign_log(data)

    logs = opened(folder, signer=Watched())
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    logs.add([leaf(0), leaf(1)])
    assert events == [
        "write",
        "sync hashes",
        "sync state.json.new",
        "rename state.json",
        "sync 1",
        "sign",
        "sync checkpoint.new",
        "rename checkpoint",
        "sync 1",
    ]
    logs.close()


def test_the_kept_head_is_the_last(folder: Path) -> None:
    logs = opened(folder)
    logs.add([])
    kept = notes.parse((folder / "1" / "checkpoint").read_bytes())
    assert kept.checkpoint == head(logs).checkpoint
    add(logs, 0, 1)
    kept = notes.parse((folder / "1" / "checkpoint").read_bytes())
    assert kept.checkpoint == head(logs).checkpoint
    logs.close()
