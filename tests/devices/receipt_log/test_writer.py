import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devices.receipt_log import writer as module
from devices.receipt_log.logs import Logs
from devices.receipt_log.writer import AT_A_TIME, Writer
from hyperbeam import Unavailable
from hyperbeam.verify import merkle

from .logs import opened

LONG = 3600.0


class Receipts:
    """Receipts in memory, whose store can be made to fail."""

    def __init__(self) -> None:
        self.stored = asyncio.Event()
        self.kept: dict[str, bytes] = {}
        self.places: dict[str, int] = {}
        self.fails: Exception | None = None
        self.flushed = 0

    def add(self, count: int = 1) -> list[str]:
        ids = [f"{len(self.kept) + number:032x}" for number in range(count)]
        self.kept |= {id: id.encode() for id in ids}
        self.stored.set()
        return ids

    async def flush(self) -> None:
        self.flushed += 1

    def unlogged(self, limit: int) -> list[tuple[str, bytes]]:
        return [each for each in self.kept.items() if each[0] not in self.places][:limit]

    def logged(self, places: list[tuple[str, int]]) -> None:
        if self.fails is not None:
            raise self.fails
        self.places |= dict(places)

    def placed(self, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        numbered = [(number, *each) for number, each in enumerate(self.kept.items(), 1)]
        return [each for each in numbered if each[0] > after and each[1] in self.places][:limit]

    def log_again(self, ids: list[str]) -> None:
        for id in ids:
            del self.places[id]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = opened(tmp_path / "log")
    yield logs
    logs.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_asked_it_does_not_wait_for_others(logs: Logs) -> None:
    receipts = Receipts()
    writer = Writer(receipts, logs, LONG)
    writer.start()
    ids = receipts.add(3)
    await writer.flush()
    assert receipts.places == {id: number for number, id in enumerate(ids)}
    assert logs.live.size == 3
    assert logs.live.hashes.leaf(1) == merkle.leaf_hash(ids[1].encode())
    await writer.stop()


async def test_many_askers_at_once(logs: Logs) -> None:
    receipts = Receipts()
    writer = Writer(receipts, logs, LONG)
    writer.start()
    receipts.add(5)
    await asyncio.gather(*(writer.flush() for _ in range(50)))
    assert logs.live.size == 5
    assert receipts.flushed < 5
    await writer.stop()


async def test_more_than_one_batch(logs: Logs) -> None:
    receipts = Receipts()
    receipts.add(2 * AT_A_TIME + 7)
    writer = Writer(receipts, logs, LONG)
    writer.start()
    await writer.flush()
    assert logs.live.size == len(receipts.places) == 2 * AT_A_TIME + 7
    await writer.stop()


async def test_unasked_it_logs_what_is_stored(logs: Logs) -> None:
    receipts = Receipts()
    writer = Writer(receipts, logs, 0.001)
    writer.start()
    receipts.add()
    await until(lambda: len(receipts.places) == 1)
    receipts.add(2)
    await until(lambda: len(receipts.places) == 3)
    await writer.stop()


async def test_its_end_logs_the_rest(logs: Logs) -> None:
    receipts = Receipts()
    writer = Writer(receipts, logs, LONG)
    writer.start()
    receipts.add(4)
    await writer.stop()
    assert logs.live.size == 4
    await writer.stop()
    await writer.flush()


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("locked"), Unavailable("not now"), OSError(28, "No space")]
)
async def test_a_failure_is_said_once_and_tried_again(
    logs: Logs,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    caplog.set_level(logging.INFO)
    receipts = Receipts()
    writer = Writer(receipts, logs, 0.001)
    writer.start()
    receipts.fails = error
    receipts.add(2)
    await writer.flush()
    rounds = receipts.flushed
    await until(lambda: receipts.flushed > rounds + 2)
    assert receipts.places == {}
    receipts.fails = None
    await until(lambda: len(receipts.places) == 2)
    # They were logged before they could be marked, and not again.
    assert logs.live.size == 2
    await until(lambda: "receipts are logged again" in caplog.messages)
    assert sum(each.levelno == logging.ERROR for each in caplog.records) == 1
    assert not any(each.exc_info for each in caplog.records)
    await writer.stop()


async def test_what_no_log_has_any_more_is_logged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED_AT_A_TIME", 2)
    receipts = Receipts()
    ids = receipts.add(7)
    for lost in (False, True, True):
        if lost:
            shutil.rmtree(tmp_path / "log")
        logs = opened(tmp_path / "log", unused=False)
        before = logs.live.size
        writer = Writer(receipts, logs, 0.001)
        writer.start()
        await until(lambda writer=writer: writer._checked is None)
        await writer.flush()
        assert sorted(receipts.places.values()) == list(range(1, 8))
        assert all(logs.find(merkle.leaf_hash(id.encode())) for id in ids)
        assert logs.live.size == before + 7
        await writer.stop()
        logs.close()


async def test_an_unforeseen_failure_ends_nothing(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    receipts = Receipts()
    writer = Writer(receipts, logs, 0.001)
    writer.start()
    receipts.fails = KeyError("unforeseen")
    receipts.add()
    await writer.flush()
    assert any(each.exc_info for each in caplog.records)
    receipts.fails = None
    await until(lambda: len(receipts.places) == 1)
    await writer.stop()
