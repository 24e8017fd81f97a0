import asyncio
from collections.abc import Sequence

import pytest

from hyperbeam import HyperbeamError
from hyperbeam.routing.limits import Limiter, Place
from hyperbeam.routing.table import RouteLimits
from hyperbeam.serve.counters import LocalCounters
from tests.hyperbeam.http.support import soon, until


async def waiting(limiter: Limiter, clients: Sequence[str]) -> list[asyncio.Task[Place]]:
    """Tasks of `clients` that stand in the queue, in this order."""
    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(limiter.enter(client)))
        await asyncio.sleep(0)
    return tasks


async def refused(task: asyncio.Task[Place]) -> tuple[int, str, bool]:
    with pytest.raises(HyperbeamError) as caught:
        await soon(task)
    error = caught.value
    return error.status, error.error, error.headers["retry-after"].isdigit()


async def test_places_go_round_the_clients() -> None:
    limiter = Limiter("r", RouteLimits(in_flight=1, queue=9), LocalCounters())
    place = await limiter.enter("a")
    order = []

    async def ask(client: str) -> None:
        place = await limiter.enter(client)
        order.append(client)
        place.release()

    tasks = []
    for client in ("a", "a", "a", "b", "b", "c"):
        tasks.append(asyncio.create_task(ask(client)))
        await asyncio.sleep(0)
    assert (limiter.in_flight, limiter.queued) == (1, 6)
    place.release()
    await soon(asyncio.gather(*tasks))
    assert order == ["a", "b", "c", "a", "b", "a"]
    assert (limiter.in_flight, limiter.queued) == (0, 0)


async def test_in_a_full_queue_who_has_most_of_it_makes_room() -> None:
    limiter = Limiter("r", RouteLimits(in_flight=1, queue=3), LocalCounters())
    place = await limiter.enter("a")
    first, second, third = await waiting(limiter, "aaa")
    (other,) = await waiting(limiter, "b")
    assert await refused(third) == (429, "too_many_requests", True)
    (another,) = await waiting(limiter, "c")
    assert await refused(second) == (429, "too_many_requests", True)
    for late in await waiting(limiter, "abcd"):
        assert await refused(late) == (503, "overloaded", True)
    assert not first.done() and not other.done() and not another.done()
    for task in (first, other, another):
        place.release()
        place = await soon(task)
    place.release()
    assert (limiter.in_flight, limiter.queued) == (0, 0)


async def test_one_client_has_a_limit_of_its_own() -> None:
    limiter = Limiter("r", RouteLimits(per_client=2), LocalCounters())
    places = [await limiter.enter("a") for _ in range(2)]
    assert await refused(asyncio.create_task(limiter.enter("a"))) == (
        429, "too_many_requests", True,
    )  # fmt: skip
    (await limiter.enter("b")).release()
    places[0].release()
    (await limiter.enter("a")).release()
    places[1].release()
    assert limiter._clients == {}


async def test_no_queue_and_a_wait_too_long() -> None:
    limits = RouteLimits(in_flight=1)
    limiter = Limiter("r", limits, LocalCounters())
    place = await limiter.enter("a")
    assert await refused(asyncio.create_task(limiter.enter("b"))) == (503, "overloaded", True)
    limiter.change(RouteLimits(in_flight=1, queue=1, queue_timeout=0.02))
    assert await refused(asyncio.create_task(limiter.enter("b"))) == (503, "overloaded", True)
    assert limiter.queued == 0
    place.release()
    (await limiter.enter("b")).release()


async def test_who_leaves_the_queue_takes_no_place() -> None:
    limiter = Limiter("r", RouteLimits(in_flight=1, queue=9), LocalCounters())
    place = await limiter.enter("a")
    leaver, lucky, stayer = await waiting(limiter, ["x", "y", "z"])
    leaver.cancel()
    await asyncio.wait([leaver])
    place.release()  # given to `lucky`, who leaves before it is taken
    lucky.cancel()
    await asyncio.wait([lucky])
    (await soon(stayer)).release()
    assert (limiter.in_flight, limiter.queued, limiter._clients) == (0, 0, {})


async def test_a_place_is_held_as_often_as_it_is_used() -> None:
    limiter = Limiter("r", RouteLimits(in_flight=1), LocalCounters())
    place = await limiter.enter("a")
    place.hold()
    place.release()
    assert limiter.in_flight == 1
    place.release()
    assert limiter.in_flight == 0


async def test_a_place_that_another_process_gives_back_is_found() -> None:
    counters = LocalCounters()
    limits = RouteLimits(in_flight=1, queue=4)
    one, other = Limiter("r", limits, counters), Limiter("r", limits, counters)
    place = await one.enter("a")
    (task,) = await waiting(other, "b")
    assert (one.queued, other.queued) == (1, 1)
    place.release()
    (await soon(task)).release()
    await until(lambda: other._timer is None)
