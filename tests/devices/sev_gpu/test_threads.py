import asyncio
import threading

import pytest

from devices.sev_gpu.threads import Lane, in_thread
from hyperbeam import Unavailable


async def test_a_call_that_hangs_keeps_its_own_lane_out_until_it_returns() -> None:
    lane, other = Lane("GPU 1"), Lane("GPU 0")
    may_end = threading.Event()
    with pytest.raises(Unavailable, match=r"GPU 1 did not answer within 0\.05 s"):
        await lane.call(may_end.wait, 0.05)
    assert "GPU 1 has not answered" in lane.problem()
    with pytest.raises(Unavailable, match="GPU 1 has not answered"):
        await lane.call(lambda: True, 10)
    assert await other.call(lambda: 7, 10) == 7
    may_end.set()
    while lane.problem():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await lane.call(lambda: 8, 10) == 8


async def test_one_call_at_a_time_also_after_a_caller_left() -> None:
    lane = Lane("GPU 0")
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    order: list[str] = []

    def slow() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()
        order.append("slow")

    leaving = asyncio.create_task(lane.call(slow, 10))
    await begun.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    waiting = asyncio.create_task(lane.call(lambda: order.append("next"), 10))
    may_end.set()
    await waiting
    assert order == ["slow", "next"]


async def test_what_a_call_raises_comes_out_and_frees_the_lane() -> None:
    lane = Lane("GPU 0")
    with pytest.raises(ZeroDivisionError):
        await lane.call(lambda: 1 / 0, 10)
    assert await lane.call(lambda: 1, 10) == 1


async def test_a_busy_lane_has_a_limit_too() -> None:
    lane = Lane("GPU 0")
    may_end = threading.Event()
    first = asyncio.create_task(lane.call(may_end.wait, 10))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="GPU 0 was busy"):
        await lane.call(lambda: 1, 0.01)
    may_end.set()
    assert await first is True


async def test_threads_end_with_the_process() -> None:
    seen = await in_thread(lambda: threading.current_thread().daemon)
    assert seen is True
