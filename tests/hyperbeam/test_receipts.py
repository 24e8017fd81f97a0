import asyncio
import json
import logging
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hyperbeam import ConfigError, Unavailable, receipt_file
from hyperbeam import receipts as module
from hyperbeam.keys import Keys, LiveKeySet
from hyperbeam.receipts import Receipts
from hyperbeam.verify import receipt as format
from hyperbeam.verify import signing
from hyperbeam.verify.keyset import KeySet

HEX = "0123456789abcdef" * 4
Open = Callable[..., Awaitable[Receipts]]


def a_receipt(keys: Keys, **fields: Any) -> dict[str, Any]:
    live = keys.current
    return {
        "v": "hyperbeam.receipt/1",
        "id": Receipts.new_id(),
        "node": live.node,
        "keyset": live.name,
        "config": live.config,
        "nonce": None,
        "nonce_by": "node",
        "salt": HEX,
        "statement": None,
        "answer_id": "chatcmpl-ü",
        "endpoint": "/v1/chat/completions",
        "request": {"sha256": HEX, "length": 312},
        "forwarded": None,
        "response": {
            "status": 200,
            "sha256": HEX,
            "length": 1024,
            "stream": False,
            "complete": True,
            "end": "complete",
        },
        "output_sha256": HEX,
        "model": {"name": "m", "sha256": HEX, "size": 1, "by": "hashed"},
        "backend": None,
        "seed": None,
        "seed_by": "node",
        "started": 1790000000000,
        "ended": 1790000000900,
        **fields,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipts.sqlite"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path)
    keys.open()
    return keys


@pytest.fixture
async def start(path: Path) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def begin(**options: Any) -> Receipts:
            receipts = Receipts(path, **options)
            receipts.open()
            stack.push_async_callback(receipts.close)
            return receipts

        yield begin


@pytest.fixture
async def receipts(start: Open) -> Receipts:
    return await start()


async def put(receipts: Receipts, keys: Keys, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        receipt = a_receipt(keys)
        receipts.add(receipt, keys.current)
        ids.append(receipt["id"])
    await receipts.flush()
    return ids


def place(receipts: Receipts, ids: list[str]) -> None:
    """Have receipts in a log."""
    receipts.logged([(id, index) for index, id in enumerate(ids)])


async def kept(receipts: Receipts, ids: list[str]) -> list[str]:
    return [id for id in ids if await receipts.get(id) is not None]


async def until_kept(receipts: Receipts, ids: list[str], most: int) -> None:
    async with asyncio.timeout(20):
        while len(await kept(receipts, ids)) > most:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_receipt_is_what_verifiers_read(receipts: Receipts, keys: Keys) -> None:
    before = time.time_ns() // 1_000_000
    given = a_receipt(keys)
    receipts.add(given, keys.current)
    found = await receipts.get(given["id"])
    assert found is not None
    format.parse(found)
    assert found["log_by"] >= before + module.LOG_WITHIN
    assert {name: found[name] for name in given} == given
    keyset = KeySet.parse(keys.current.message)
    key = keyset.receipt_key(found["key_id"])
    assert key is not None
    signature = bytes.fromhex(found["signature"])
    assert signing.check(key, signing.RECEIPT, format.signed_bytes(found), signature)
    assert receipts.unlogged(10) == [(given["id"], format.leaf(found))]


async def test_a_receipt_is_signed_by_its_own_key_set(receipts: Receipts, keys: Keys) -> None:
    first = keys.current
    receipt = a_receipt(keys)
    keys.set_code("00")
    receipts.add(receipt, first)
    found = await receipts.get(receipt["id"])
    assert found is not None
    assert (found["keyset"], found["key_id"]) == (first.name, first.receipt_key_id)


async def test_ids_are_fresh() -> None:
    ids = {Receipts.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(id) for id in ids} == {32}


@pytest.mark.parametrize("id", ["", "x", "0" * 32, "0" * 31, "A" * 32, "0" * 32 + "\n", "é" * 32])
async def test_what_is_not_there(receipts: Receipts, id: str) -> None:
    assert await receipts.get(id) is None
    assert receipts.index(id) is None


async def test_queued_ones_are_found_by_many_at_once(receipts: Receipts, keys: Keys) -> None:
    given = [a_receipt(keys) for _ in range(50)]
    for receipt in given:
        receipts.add(receipt, keys.current)
    found = await asyncio.gather(*(receipts.get(receipt["id"]) for receipt in given))
    assert [receipt and receipt["id"] for receipt in found] == [one["id"] for one in given]


async def test_who_stops_waiting_hinders_nobody(receipts: Receipts, keys: Keys) -> None:
    receipt = a_receipt(keys)
    receipts.add(receipt, keys.current)
    leaving = asyncio.create_task(receipts.get(receipt["id"]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await receipts.get(receipt["id"]) is not None
    assert len(await put(receipts, keys, 1)) == 1


async def test_receipts_may_come_from_any_thread(receipts: Receipts, keys: Keys) -> None:
    given = [a_receipt(keys) for _ in range(200)]
    await asyncio.gather(
        *(asyncio.to_thread(receipts.add, receipt, keys.current) for receipt in given)
    )
    await receipts.flush()
    assert {id for id, _ in receipts.unlogged(1000)} == {one["id"] for one in given}


async def test_the_log_takes_them_in_order(receipts: Receipts, keys: Keys) -> None:
    assert not receipts.stored.is_set()
    ids = await put(receipts, keys, 30)
    assert receipts.stored.is_set()
    assert [id for id, _ in receipts.unlogged(10)] == ids[:10]
    receipts.logged([(id, index) for index, id in enumerate(ids[:10])])
    assert [id for id, _ in receipts.unlogged(100)] == ids[10:]
    assert [receipts.index(id) for id in ids[8:12]] == [8, 9, None, None]
    receipts.logged([])


async def test_stored_is_told_each_time(receipts: Receipts, keys: Keys) -> None:
    for _ in range(3):
        receipts.stored.clear()
        receipts.add(a_receipt(keys), keys.current)
        await asyncio.wait_for(receipts.stored.wait(), 10)


async def test_they_outlive_a_run(start: Open, keys: Keys) -> None:
    first = await start()
    receipt = a_receipt(keys)
    first.add(receipt, keys.current)
    await first.close()
    second = await start()
    assert await second.get(receipt["id"]) is not None


async def test_a_file_for_this_user_only(receipts: Receipts, keys: Keys, path: Path) -> None:
    await put(receipts, keys, 1)
    for part in path.parent.glob("receipts.sqlite*"):
        assert stat.S_IMODE(part.stat().st_mode) == 0o600, part


async def test_the_last_ones_are_kept(
    start: Open, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await start(keep=5)
    ids = await put(receipts, keys, 20)
    assert await kept(receipts, ids) == ids
    place(receipts, ids)
    await until_kept(receipts, ids, 5)
    assert await kept(receipts, ids) == ids[-5:]


@pytest.mark.parametrize(("keep", "most"), [(3, 13), (300, 330)])
async def test_how_many_more_may_be_kept(start: Open, keys: Keys, keep: int, most: int) -> None:
    receipts = await start(keep=keep)
    ids: list[str] = []
    for _ in range(2 * keep // 3 + 20):
        ids += await put(receipts, keys, 3)
        place(receipts, ids[-3:])
    await until_kept(receipts, ids, most)
    assert keep <= len(await kept(receipts, ids)) <= most


async def test_a_start_drops_what_is_too_many(start: Open, keys: Keys) -> None:
    first = await start(keep=100)
    ids = await put(first, keys, 8)
    place(first, ids)
    await first.close()
    second = await start(keep=3)
    await until_kept(second, ids, 3)
    assert await kept(second, ids) == ids[-3:]


async def test_what_is_not_in_the_log_is_not_dropped(
    start: Open, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await start(keep=3)
    ids = await put(receipts, keys, 500)
    assert [id for id, _ in receipts.unlogged(1000)] == ids
    place(receipts, ids[100:])
    await until_kept(receipts, ids, 103)
    assert await kept(receipts, ids) == ids[:100] + ids[-3:]
    monkeypatch.setattr(receipt_file, "UNLOGGED_LIMIT", 40)
    await receipts.close()
    again = await start(keep=3)
    await until_kept(again, ids, 43)
    assert await kept(again, ids) == ids[60:100] + ids[-3:]


async def test_places_are_forgotten_with_their_log(receipts: Receipts, keys: Keys) -> None:
    ids = await put(receipts, keys, 7)
    place(receipts, ids)
    assert receipts.unlogged(10) == []
    first = receipts.placed(0, 4)
    rest = receipts.placed(first[-1][0], 100)
    assert [id for _, id, _ in first + rest] == ids
    assert receipts.placed(rest[-1][0], 100) == []
    assert json.loads(first[0][2])["id"] == ids[0]
    receipts.log_again(ids[2:4])
    assert [id for id, _ in receipts.unlogged(10)] == ids[2:4]
    assert receipts.index(ids[2]) is None


@pytest.mark.parametrize("value", [{"keep": 10**20}, {"days": 10**20}])
async def test_an_exception_of_any_kind_loses_nothing(
    start: Open,
    keys: Keys,
    value: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receipts = await start(**value)
    ids = await put(receipts, keys, 30)
    ids += await put(receipts, keys, 30)
    assert [id for id, _ in receipts.unlogged(100)] == ids
    real = receipt_file.ReceiptFile.add

    def refuse(file: receipt_file.ReceiptFile, rows: Sequence[receipt_file.Row]) -> None:
        real(file, [*rows, (b"", 10**20, b"")])

    monkeypatch.setattr(receipt_file.ReceiptFile, "add", refuse)
    held = await put(receipts, keys, 2)
    assert await receipts.get(held[0]) is not None
    monkeypatch.setattr(receipt_file.ReceiptFile, "add", real)
    last = await put(receipts, keys, 1)
    assert [id for id, _ in receipts.unlogged(100)] == ids + held + last
    assert "old receipts cannot be dropped now" in caplog.text
    assert caplog.text.count("receipts cannot be stored") == 1


async def test_an_exception_for_one_receipt_is_no_other_ones(
    receipts: Receipts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = a_receipt(keys, seed=77)
    real = module.signed

    def sign(receipt: dict[str, Any], keyset: LiveKeySet) -> bytes:
        if receipt["seed"] == 77:
            raise RecursionError
        return real(receipt, keyset)

    monkeypatch.setattr(module, "signed", sign)
    before = a_receipt(keys)
    receipts.add(before, keys.current)
    receipts.add(bad, keys.current)
    (after,) = await put(receipts, keys, 1)
    assert [id for id, _ in receipts.unlogged(10)] == [before["id"], after]


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"\xff\xfe", b"[]", b"{}", b'{ "id": 1 }', b"[" * 5000, "text", 7]
)
async def test_a_row_that_is_no_receipt(
    receipts: Receipts, keys: Keys, path: Path, body: bytes | str | int
) -> None:
    good, bad = await put(receipts, keys, 2)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE receipts SET body = ? WHERE id = ?", (body, bytes.fromhex(bad)))
    other.close()
    with pytest.raises(Unavailable, match=f"receipt {bad} is damaged") as refused:
        await receipts.get(bad)
    assert refused.value.error == "receipt_damaged"
    assert await receipts.get(good) is not None
    assert all(isinstance(body, bytes) for _, body in receipts.unlogged(10))


async def test_old_ones_are_dropped(
    start: Open, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start()
    real = module._now
    monkeypatch.setattr(module, "_now", lambda: real() - 3 * 86_400_000)
    old = await put(first, keys, 3)
    monkeypatch.setattr(module, "_now", real)
    ids = await put(first, keys, 2)
    place(first, old + ids)
    await first.close()
    second = await start(days=2)
    await until_kept(second, old + ids, 2)
    assert await kept(second, old + ids) == ids


async def test_all_may_be_too_old(start: Open, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await start()
    place(first, await put(first, keys, 3))
    await first.close()
    file = receipt_file.ReceiptFile(first._file.path)
    file.open()
    file.prune(100, module._now() + 1000)
    assert file.placed(0, 10) == []
    file.prune(100, module._now() + 1000)
    file.close()


async def test_what_has_no_canonical_form_takes_nothing_with_it(
    receipts: Receipts, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    bad = a_receipt(keys, seed=0.5)
    receipts.add(bad, keys.current)
    (good,) = await put(receipts, keys, 1)
    assert await receipts.get(bad["id"]) is None
    assert await receipts.get(good) is not None
    assert bad["id"] in caplog.text


async def test_a_full_disk(
    receipts: Receipts, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await put(receipts, keys, 2)
    writer = receipts._file._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 1")
    held = [*await put(receipts, keys, 100), *await put(receipts, keys, 100)]
    assert caplog.text.count("receipts cannot be stored (database or disk is full)") == 1
    assert [id for id, _ in receipts.unlogged(1000)] == stored
    for id in (stored[0], held[0], held[-1]):
        assert await receipts.get(id) is not None
    writer.execute("PRAGMA max_page_count = 1000000")
    with caplog.at_level(logging.INFO, "hyperbeam.receipts"):
        last = await put(receipts, keys, 1)
    assert "stored again" in caplog.text
    assert [id for id, _ in receipts.unlogged(1000)] == stored + held + last


async def test_what_is_held_has_a_bound(
    start: Open, keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAITING_LIMIT", 10)
    receipts = await start()
    writer = receipts._file._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 1")
    ids = [id for _ in range(100) for id in await put(receipts, keys, 1)]
    assert await receipts.get(ids[50]) is None
    assert await receipts.get(ids[-1]) is not None
    given = [a_receipt(keys) for _ in range(30)]
    for receipt in given:
        receipts.add(receipt, keys.current)
    await receipts.flush()
    assert len(receipts._unstored) == 10
    stored = len(receipts.unlogged(1000))
    await receipts.close()
    lost = len(ids) + len(given) - stored
    assert f"{lost} receipts could not be stored and are lost" in caplog.text


async def test_a_locked_file(
    start: Open, keys: Keys, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_file, "BUSY", 0.01)
    receipts = await start()
    stored = await put(receipts, keys, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    held = await put(receipts, keys, 1)
    assert await receipts.get(held[0]) is not None
    assert await receipts.get(stored[0]) is not None
    assert [id for id, _ in receipts.unlogged(10)] == stored
    other.rollback()
    other.close()
    last = await put(receipts, keys, 1)
    assert [id for id, _ in receipts.unlogged(10)] == stored + held + last


async def test_what_was_not_stored_is_tried_again_without_a_new_one(
    receipts: Receipts, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    writer = receipts._file._writer
    assert writer is not None
    writer.execute("PRAGMA max_page_count = 1")
    ids = await put(receipts, keys, 100)
    receipts.stored.clear()
    writer.execute("PRAGMA max_page_count = 1000000")
    await asyncio.wait_for(receipts.stored.wait(), 10)
    assert [id for id, _ in receipts.unlogged(1000)] == ids


def damage(path: Path, data: bytes | None = None) -> None:
    """Write `data`, or garbage over the last quarter."""
    whole = path.read_bytes() if data is None else b""
    sound = len(whole) * 3 // 4
    path.write_bytes(whole[:sound] + b"\xaa" * (len(whole) - sound) if data is None else data)


def aside(path: Path) -> list[Path]:
    return list(path.parent.glob("receipts.sqlite.damaged-*Z"))


@pytest.mark.parametrize(
    "data", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
async def test_a_damaged_file_is_moved_aside(
    start: Open, keys: Keys, path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    damage(path, data)
    receipts = await start()
    ids = await put(receipts, keys, 1)
    assert await receipts.get(ids[0]) is not None
    assert [file.read_bytes() for file in aside(path)] == [data]
    assert str(aside(path)[0]) in caplog.text


async def test_damage_found_while_running(
    start: Open, keys: Keys, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await start()
    ids = await put(first, keys, 300)
    await first.close()
    damage(path)
    second = await start()
    assert not aside(path)
    with pytest.raises(Unavailable) as refused:
        await second.get(ids[-1])
    assert refused.value.error == "receipts_unavailable"
    new = await put(second, keys, 1)
    assert await second.get(new[0]) is not None
    assert await second.get(ids[0]) is None
    assert len(aside(path)) == 1
    assert "are damaged" in caplog.text


@pytest.mark.parametrize("make", ["CREATE TABLE mine (a)", "PRAGMA user_version = 7"])
async def test_files_of_others_are_left_alone(start: Open, path: Path, make: str) -> None:
    with sqlite3.connect(path) as other:
        other.execute(make)
    other.close()
    with pytest.raises(ConfigError, match="schema version"):
        await start()
    assert not aside(path)


def test_a_file_that_cannot_be_opened(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match=r"receipts in .* cannot be opened"):
        Receipts(path).open()


async def test_closing_twice_and_closing_unopened(path: Path) -> None:
    receipts = Receipts(path)
    await receipts.close()
    receipts.open()
    await receipts.close()
    await receipts.close()
    assert [part.name for part in path.parent.iterdir()] == [path.name]


KILLED = """
import asyncio, sys
from pathlib import Path
from hyperbeam.keys import Keys
from hyperbeam.receipts import Receipts

async def main():
    home = Path(sys.argv[1])
    keys = Keys(home)
    keys.open()
    receipts = Receipts(home / "receipts.sqlite")
    receipts.open()
    while True:
        ids = [receipts.new_id() for _ in range(20)]
        for id in ids:
            receipts.add({"id": id, "v": "hyperbeam.receipt/1"}, keys.current)
        await receipts.flush()
        print("\\n".join(ids), flush=True)

asyncio.run(main())
"""


def killed(home: Path) -> list[str]:
    """Runs the above until it is killed; the ids that it said are stored."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(home)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(100)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    return [line.strip() for line in told if line.endswith("\n")]


async def test_a_kill_takes_only_what_was_queued(tmp_path: Path, start: Open) -> None:
    told = await asyncio.to_thread(killed, tmp_path)
    assert len(told) >= 100
    receipts = await start()
    kept = receipts.unlogged(1_000_000)
    assert [id for id, _ in kept][: len(told)] == told
    assert all(json.loads(body)["id"] == id for id, body in kept)


async def test_receipts_of_another_process_are_found_and_flushed(start: Open, keys: Keys) -> None:
    keeper, worker = await start(), await start(keeper=False)
    keeper.elsewhere, keeper.flush_elsewhere = worker.find, worker.flush
    worker.on_stored = keeper.stored_elsewhere
    for ask in (keeper.get, None):
        receipt = a_receipt(keys)
        worker.add(receipt, keys.current)
        if ask is None:
            await keeper.flush()
            assert keeper.unlogged(10)[-1][0] == receipt["id"]
        else:
            found = await ask(receipt["id"])
            assert found is not None
            assert found["id"] == receipt["id"]
    assert keeper.stored.is_set()
    assert await keeper.get(Receipts.new_id()) is None


async def test_the_keeper_mends_what_another_process_finds_damaged(
    start: Open, keys: Keys, path: Path
) -> None:
    keeper, worker = await start(), await start(keeper=False)
    told = asyncio.Event()

    def damaged(number: int) -> None:
        keeper.damaged_elsewhere(number)
        told.set()

    async def until(found: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not await asyncio.to_thread(found):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    worker.on_damage = damaged
    first, second = a_receipt(keys), a_receipt(keys)
    worker.add(first, keys.current)
    await worker.flush()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 4096)
    worker.add(second, keys.current)
    await worker.flush()
    await asyncio.wait_for(told.wait(), 5)
    # Held in memory until the keeper has put another file in its place.
    assert await worker.get(second["id"]) is not None
    await until(lambda: any(path.parent.glob("*.damaged-*")))
    worker.add(a_receipt(keys), keys.current)
    await until(lambda: len(keeper.unlogged(10)) == 2)
