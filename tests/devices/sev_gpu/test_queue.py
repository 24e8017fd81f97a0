import asyncio
import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.sev_gpu.queue import ReportQueue, Turns, Waiting
from hyperbeam import Unavailable
from hyperbeam.verify import batch


class Hardware:
    """Gives a report when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = 0

    async def report(self, nonce: str) -> str:
        self.asked.append(nonce)
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"report over {nonce}"


@pytest.fixture
def hardware() -> Hardware:
    return Hardware()


async def begun(*calls: "asyncio.Task[object]") -> None:
    """Let every call take its place."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(call.done() for call in calls)


def start(queue: ReportQueue[str], nonce: str, client: str) -> "asyncio.Task[str]":
    return asyncio.create_task(queue.each(nonce, client))


async def test_clients_take_turns_however_much_one_asks(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 100)
    calls = [start(queue, f"busy{n}", "busy") for n in range(5)]
    await hardware.begun.wait()
    calls += [start(queue, "late", "late"), start(queue, "later", "later")]
    await begun(*calls)
    assert queue.waiting == 6
    hardware.may_end.set()
    assert await asyncio.gather(*calls[-2:]) == ["report over late", "report over later"]
    await asyncio.gather(*calls)
    assert hardware.asked == ["busy0", "busy1", "late", "later", "busy2", "busy3", "busy4"]


async def test_who_leaves_frees_the_place(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 2)
    first = start(queue, "a", "x")
    await hardware.begun.wait()
    waiting = [start(queue, "b", "x"), start(queue, "c", "y")]
    await begun(*waiting)
    with pytest.raises(Unavailable, match="2 requests wait"):
        await queue.each("d", "z")
    waiting[0].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting[0]
    assert queue.waiting == 1
    hardware.may_end.set()
    await asyncio.gather(first, waiting[1])
    assert hardware.asked == ["a", "c"]


async def test_a_report_that_nobody_waits_for_is_given_up(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 10)
    call = start(queue, "a", "x")
    await hardware.begun.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    hardware.may_end.set()
    assert await queue.each("b", "y") == "report over b"
    assert hardware.cancelled == 1


async def test_a_hundred_in_a_batch_share_two_reports(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 1000)
    raws = [f'{{"n":{n}}}' for n in range(100)]
    first = asyncio.create_task(queue.batch(raws[0]))
    await hardware.begun.wait()
    others = [asyncio.create_task(queue.batch(raw)) for raw in raws[1:]]
    alone = start(queue, "alone", "x")
    await begun(*others, alone)
    hardware.may_end.set()
    answers = await asyncio.gather(first, *others)
    await alone
    assert len(hardware.asked) == 3
    for raw, (nonce, place, report) in zip(raws, answers, strict=True):
        assert place is not None
        assert batch.verify(batch.parse(place), raw, nonce)
        assert report == f"report over {nonce}"
    assert {place["size"] for _, place, _ in answers if place} == {1, 99}
    assert not batch.verify(batch.parse(answers[1][1]), raws[2], answers[1][0])


async def test_a_batch_is_one_turn_among_others(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 100)
    calls = [start(queue, "x1", "x")]
    await hardware.begun.wait()
    batched = [asyncio.create_task(queue.batch(f'{{"n":{n}}}')) for n in range(3)]
    await begun(*batched)
    calls += [start(queue, "y1", "y"), start(queue, "x2", "x")]
    await begun(*calls)
    hardware.may_end.set()
    await asyncio.gather(*calls, *batched)
    assert [asked if len(asked) < 64 else "batch" for asked in hardware.asked] == [
        "x1",
        "batch",
        "y1",
        "x2",
    ]


async def test_a_failed_report_fails_its_own_callers_only() -> None:
    async def report(nonce: str) -> str:
        if nonce == "bad":
            raise Unavailable("GPU 1 did not answer", error="attestation_unavailable")
        return nonce

    queue = ReportQueue(report, 10)
    bad, good = await asyncio.gather(
        queue.each("bad", "x"), queue.each("good", "x"), return_exceptions=True
    )
    assert isinstance(bad, Unavailable) and "GPU 1" in bad.detail
    assert good == "good"


async def test_the_end_refuses_those_who_wait(hardware: Hardware) -> None:
    queue = ReportQueue(hardware.report, 10)
    calls = [start(queue, "a", "x"), start(queue, "b", "y")]
    await hardware.begun.wait()
    await queue.aclose()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    with pytest.raises(Unavailable, match="stopping"):
        await queue.each("c", "z")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_turns_serve_everybody_and_nobody_waits_over_a_round(asked: list[tuple[str, bool]]) -> None:
    turns: Turns[str] = Turns()
    loop = asyncio.new_event_loop()
    try:
        kept: list[Waiting[str]] = []
        for number, (lane, leaves) in enumerate(asked):
            one: Waiting[str] = Waiting(lane, str(number), None, loop.create_future())
            turns.add(one)
            if leaves:
                turns.discard(one)
                turns.discard(one)
            else:
                kept.append(one)
        assert turns.count == len(kept)
        served: list[Waiting[str]] = []
        while group := turns.next():
            served += group
        assert turns.count == 0
        assert sorted(map(id, served)) == sorted(map(id, kept))
        for lane in "abc":
            own = [one for one in served if one.lane == lane]
            assert own == [one for one in kept if one.lane == lane]
            places = [served.index(one) for one in own]
            between = [b - a for a, b in pairwise(places)]
            assert all(gap <= 3 for gap in between)
    finally:
        loop.close()
