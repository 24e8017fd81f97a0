"""The dispatcher around attempts that end as the tests say."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from hyperbeam import BadGateway, BadRequest, GatewayTimeout, HyperbeamError, NotFound, Unavailable
from hyperbeam.http import Upstream
from hyperbeam.routing import Route, RouteNode, RouteTable
from hyperbeam.routing.backends import Backends
from hyperbeam.routing.dispatch import Dispatcher
from hyperbeam.routing.lease import Lease
from hyperbeam.routing.strategy import Ask
from hyperbeam.routing.table import RouteLimits, Timeouts
from hyperbeam.serve.counters import LocalCounters
from tests.hyperbeam.http.support import soon, until

REFUSED = BadGateway(error="backend_unreachable")
DIED = BadGateway(error="backend_died")
BUSY = Unavailable(error="overloaded", retry_after=3)


def node(name: str, **fields: Any) -> RouteNode:
    return RouteNode(id=name, prefix=f"http://{name}", **fields)


def route(*nodes: RouteNode, **fields: Any) -> Route:
    """A route that tries its nodes as they stand where none is busier."""
    fields = {"id": "r", "strategy": "Least-Loaded", **fields}
    return Route(template="/.*", nodes=list(nodes), **fields)


def dispatcher(one: Route | None = None) -> Dispatcher:
    made = Dispatcher(Upstream(), LocalCounters(), Backends())
    made.use(RouteTable([one] if one is not None else []))
    return made


def ask(**fields: Any) -> Ask:
    return Ask(**{"path": "/x", "request": {"priv": {}}, **fields})


class Nodes:
    """An attempt by script: `answers[id]` is raised or given; `asked` the nodes in order."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.leases: list[Lease] = []

    async def __call__(self, lease: Lease) -> Any:
        self.asked.append(lease.node.id)
        self.leases.append(lease)
        answer = self.answers.get(lease.node.id, lease.node.id)
        if isinstance(answer, BaseException):
            raise answer
        lease.first_byte()
        return answer


def in_flight(dispatch: Dispatcher) -> dict[str, int]:
    return {node.id: node.in_flight for node in dispatch.nodes()}


def states(dispatch: Dispatcher) -> dict[str, str]:
    return {node.id: node.state for node in dispatch.nodes()}


async def error_of(work: Awaitable[Any]) -> HyperbeamError:
    with pytest.raises(HyperbeamError) as caught:
        await soon(work)
    return caught.value


async def test_a_result_comes_with_a_lease_that_its_holder_closes() -> None:
    one = route(node("a"))
    dispatch = dispatcher(one)
    nodes = Nodes()
    assert await dispatch.run(one, ask(), nodes) == "a"
    (lease,) = nodes.leases
    assert in_flight(dispatch) == {"a": 1}
    lease.close()
    lease.close()
    assert in_flight(dispatch) == {"a": 0}
    assert dispatch.latency(one.nodes[0]) > 0


@pytest.mark.parametrize(
    ("error", "idempotent", "asked"),
    [
        (REFUSED, False, 2),
        (GatewayTimeout(error="connect_timeout"), False, 2),
        (BUSY, False, 2),
        (Unavailable(error="loading"), False, 2),
        (DIED, False, 1),
        (DIED, True, 2),
        (GatewayTimeout(error="first_byte_timeout"), False, 1),
        (GatewayTimeout(error="first_byte_timeout"), True, 2),
        (BadRequest("no"), True, 1),
        (Unavailable(error="attestation_unavailable"), True, 1),
        (ValueError("a fault of ours"), True, 1),
    ],
)
async def test_what_goes_to_another_node(error: Exception, idempotent: bool, asked: int) -> None:
    one = route(node("a"), node("b"), idempotent=idempotent, strategy="All")
    dispatch = dispatcher(one)
    nodes = Nodes(a=error)
    nodes.answers["b"] = "fine"
    if asked == 2:
        while "a" not in nodes.asked:
            assert await dispatch.run(one, ask(), nodes) == "fine"
        assert nodes.asked[-2:] == ["a", "b"]
    else:
        with pytest.raises(type(error)) as caught:
            while True:
                await dispatch.run(one, ask(), nodes)
        assert caught.value is error
        assert nodes.asked[-1] == "a"
    for lease in nodes.leases:
        lease.close()
    assert in_flight(dispatch) == {"a": 0, "b": 0}


async def test_no_more_nodes_than_allowed_and_each_once() -> None:
    one = route(*[node(name) for name in "abcde"], retries=2)
    nodes = Nodes(**dict.fromkeys("abcde", REFUSED))
    assert (await error_of(dispatcher(one).run(one, ask(), nodes))).error == "backend_unreachable"
    assert len(nodes.asked) == len(set(nodes.asked)) == 3


async def test_the_shortest_wait_is_told_when_all_are_busy() -> None:
    one = route(node("a"), node("b"), node("c"))
    nodes = Nodes(a=Unavailable(error="overloaded", retry_after=9), c=REFUSED)
    nodes.answers["b"] = Unavailable(error="overloaded", retry_after=4)
    error = await error_of(dispatcher(one).run(one, ask(), nodes))
    assert (error.error, error.headers["retry-after"]) == ("overloaded", "4")
    assert sorted(nodes.asked) == ["a", "b", "c"]


async def test_who_is_busy_is_avoided_while_others_are_there_and_keeps_its_circuit() -> None:
    one = route(node("a"), node("b"))
    dispatch = dispatcher(one)
    nodes = Nodes(a=BUSY)
    while "a" not in nodes.asked:
        await dispatch.run(one, ask(), nodes)
    nodes.asked.clear()
    for _ in range(20):
        assert await dispatch.run(one, ask(), nodes) == "b"  # however busy b becomes
    assert "a" not in nodes.asked
    assert states(dispatch) == {"a": "up", "b": "up"}
    nodes.answers = {"b": REFUSED}
    assert await dispatch.run(one, ask(), nodes) == "a"


async def test_a_dead_node_leaves_the_choice_at_once() -> None:
    one = route(node("a"), node("b"))
    dispatch = dispatcher(one)
    nodes = Nodes(a=REFUSED)
    for _ in range(10):
        await dispatch.run(one, ask(), nodes)
    assert nodes.asked.count("a") == 1
    assert states(dispatch) == {"a": "down", "b": "up"}
    assert [one.id for one in dispatch.candidates(one)] == ["b"]
    found = {node.id: node for node in dispatch.nodes()}
    assert (found["a"].failures, found["b"].failures) == (1, 0)
    assert found["a"].last_error and found["a"].since > 0


async def test_with_all_circuits_open_nothing_is_asked() -> None:
    one = route(node("a"))
    dispatch = dispatcher(one)
    nodes = Nodes(a=DIED)
    for _ in range(3):
        assert (await error_of(dispatch.run(one, ask(), nodes))).error == "backend_died"
    error = await error_of(dispatch.run(one, ask(), nodes))
    assert (error.status, error.error, error.headers["retry-after"]) == (503, "circuit_open", "1")
    assert len(nodes.asked) == 3


@pytest.mark.parametrize("error", [BadRequest("no"), asyncio.CancelledError(), BUSY])
async def test_what_is_no_fault_of_the_node_never_opens(error: BaseException) -> None:
    one = route(node("a"))
    dispatch = dispatcher(one)
    for _ in range(20):
        with pytest.raises(type(error)):
            await dispatch.run(one, ask(), Nodes(a=error))
    assert states(dispatch) == {"a": "up"}
    assert in_flight(dispatch) == {"a": 0}


async def test_cuts_in_mid_stream_open_but_a_long_answer_does_not() -> None:
    one = route(node("a"), node("b"))
    dispatch = dispatcher(one)
    nodes = Nodes()
    late = GatewayTimeout(error="total_timeout")
    for error in (late, late, late, DIED, DIED):
        await dispatch.run(one, ask(), nodes)
        nodes.leases[-1].failed(error)
        nodes.leases[-1].close()
    assert "down" not in states(dispatch).values()
    for _ in range(8):
        await dispatch.run(one, ask(), nodes)
        nodes.leases[-1].failed(DIED)
        nodes.leases[-1].close()
        if "down" in states(dispatch).values():
            break
    assert "down" in states(dispatch).values()


async def test_one_request_tries_a_half_open_node() -> None:
    one = route(node("a"), node("b"))
    dispatch = dispatcher(one)
    nodes = Nodes(a=REFUSED)
    while "a" not in nodes.asked:
        await dispatch.run(one, ask(), nodes)
    breaker = dispatch._entries["a"].breaker
    breaker.half_open()
    release = asyncio.Event()

    async def slow(lease: Lease) -> str:
        if lease.node.id == "a":
            await release.wait()
            lease.first_byte()
        return lease.node.id

    trial = asyncio.create_task(dispatch.run(one, ask(), slow))
    await until(lambda: in_flight(dispatch)["a"] == 1)
    assert [await dispatch.run(one, ask(), slow) for _ in range(3)] == ["b"] * 3
    release.set()
    assert await soon(trial) == "a"
    assert states(dispatch) == {"a": "up", "b": "up"}
    breaker.half_open()
    with pytest.raises(HyperbeamError):
        await dispatch.run(one, ask(), Nodes(a=DIED))
    assert states(dispatch)["a"] == "down"
    assert breaker.wait > 1  # longer than the first time


async def test_a_client_that_leaves_a_trial_leaves_it_to_the_next() -> None:
    one = route(node("a"))
    dispatch = dispatcher(one)
    dispatch._entries["a"].breaker.half_open()

    async def forever(lease: Lease) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(dispatch.run(one, ask(), forever))
    await until(lambda: in_flight(dispatch)["a"] == 1)
    task.cancel()
    await asyncio.wait([task])
    assert states(dispatch) == {"a": "half-open"}
    assert await dispatch.run(one, ask(), Nodes()) == "a"
    assert states(dispatch) == {"a": "up"}


async def test_models_choose_nodes() -> None:
    one = route(node("a", models=("m1",)), node("b", models=("m2",)))
    dispatch = dispatcher(one)
    nodes = Nodes()
    for _ in range(5):
        assert await dispatch.run(one, ask(model="m2"), nodes) == "b"
    error = await error_of(dispatch.run(one, ask(model="m3"), nodes))
    assert (error.status, error.error, error.param) == (404, "model_not_found", "model")
    assert "m1, m2" in error.detail
    assert isinstance(error, NotFound)
    assert [one.id for one in dispatch.candidates(one, "m1")] == ["a"]


async def test_a_backend_of_the_node_is_asked_where_it_is() -> None:
    local = RouteNode(id="local", backend="local")
    one = route(local, node("b"))
    dispatch = dispatcher(one)
    assert states(dispatch) == {"local": "disabled", "b": "up"}
    assert await dispatch.run(one, ask(), Nodes()) == "b"
    ready = False
    dispatch.backends.register("local", "http://here/", [(b"k", b"v")], lambda: ready)
    assert states(dispatch)["local"] == "down"
    ready = True
    nodes = Nodes(b=REFUSED)
    request = {"priv": {"request-id": "7"}}
    while "local" not in nodes.asked:
        await dispatch.run(one, ask(request=request), nodes)
    headers = [(b"k", b"v"), (b"x-request-id", b"7")]
    assert nodes.leases[-1].address() == ("http://here", headers)
    assert nodes.leases[-1].target("/v1/x")[0] == "http://here/v1/x"
    dispatch.backends.unregister("local")
    with pytest.raises(Unavailable):
        nodes.leases[-1].address()


async def test_a_race_gives_the_first_result_and_closes_the_others() -> None:
    one = route(node("a"), node("b"), node("c"), choose=2, parallel=True)
    dispatch = dispatcher(one)
    running: list[str] = []
    gone: list[str] = []
    go = asyncio.Event()

    async def attempt(lease: Lease) -> str:
        name = lease.node.id
        running.append(name)
        try:
            if len(running) == 1:
                await asyncio.Event().wait()
            await go.wait()
            return name
        except asyncio.CancelledError:
            gone.append(name)
            raise

    task = asyncio.create_task(dispatch.run(one, ask(), attempt))
    await until(lambda: len(running) == 2)
    go.set()
    assert await soon(task) == running[1]
    assert gone == running[:1]
    assert sum(in_flight(dispatch).values()) == 1  # the winner's
    assert set(states(dispatch).values()) == {"up"}


async def test_a_race_goes_on_with_another_node_in_place_of_one_that_is_busy() -> None:
    one = route(node("a"), node("b"), node("c"), choose=2, parallel=True, strategy="All")
    nodes = Nodes(a=BUSY, b=BUSY)
    nodes.answers["c"] = "fine"
    assert await dispatcher(one).run(one, ask(), nodes) == "fine"
    nodes = Nodes(**dict.fromkeys("abc", BUSY))
    assert (await error_of(dispatcher(one).run(one, ask(), nodes))).error == "overloaded"


@pytest.mark.parametrize("parallel", [False, True])
async def test_several_results_are_gathered(parallel: bool) -> None:
    one = route(node("a"), node("b"), node("c"), choose=2, responses=2, parallel=parallel)
    dispatch = dispatcher(one)
    nodes = Nodes(b=BUSY)
    assert sorted(await dispatch.gather(one, ask(), nodes)) == ["a", "c"]
    dispatch = dispatcher(one)
    nodes = Nodes(b=BUSY, c=BUSY)
    assert (await error_of(dispatch.gather(one, ask(), nodes))).error == "overloaded"
    two = route(node("a"), responses=2, parallel=parallel)
    assert (await error_of(dispatcher(two).gather(two, ask(), Nodes()))).error == "too_few_nodes"


async def test_a_routes_limit_holds_until_the_result_is_closed() -> None:
    one = route(node("a"), limits=RouteLimits(in_flight=1, queue=1))
    dispatch = dispatcher(one)
    nodes = Nodes()
    await dispatch.run(one, ask(client="x"), nodes)
    second = asyncio.create_task(dispatch.run(one, ask(client="y"), nodes))
    await asyncio.sleep(0)
    assert (await error_of(dispatch.run(one, ask(client="z"), nodes))).error == "overloaded"
    assert len(nodes.asked) == 1
    nodes.leases[0].close()
    await soon(second)
    nodes.leases[1].close()
    with pytest.raises(BadRequest):
        await dispatch.run(one, ask(), Nodes(a=BadRequest("no")))
    await dispatch.run(one, ask(), nodes)


async def test_time_is_counted_over_all_tries() -> None:
    timeouts = Timeouts(total=0.02)
    one = route(node("a", timeouts=timeouts), node("b", timeouts=timeouts))
    dispatch = dispatcher(one)
    given: list[float] = []

    async def attempt(lease: Lease) -> str:
        given.append(lease.timeouts.total)
        if len(given) == 1:
            raise BUSY
        return "fine"

    assert await dispatch.run(one, ask(), attempt) == "fine"
    assert given[0] == 0.02 > given[1] > 0

    async def late(lease: Lease) -> str:
        await asyncio.sleep(0.03)
        raise Unavailable(error="overloaded")

    assert (await error_of(dispatcher(one).run(one, ask(), late))).error == "total_timeout"


async def test_a_new_table_keeps_what_is_known_of_its_nodes() -> None:
    one = route(node("a"), node("b"))
    dispatch = dispatcher(one)
    nodes = Nodes(a=REFUSED)
    while "a" not in nodes.asked:
        await dispatch.run(one, ask(), nodes)
    two = route(node("a", headers=(("x", "new"),)), node("c"))
    dispatch.use(RouteTable([two]))
    assert states(dispatch) == {"a": "down", "c": "up"}
    # A request that began under the old table still runs, and changes nothing for the new.
    assert await dispatch.run(one, ask(), Nodes()) == "b"
    dispatch._entries["a"].breaker.close()
    nodes = Nodes(c=REFUSED)
    assert await dispatch.run(two, ask(), nodes) == "a"
    assert nodes.leases[-1].address() == ("http://a", [(b"x", b"new")])


async def test_metrics_are_told() -> None:
    told: list[tuple[str, ...]] = []

    class Told:
        def retry(self, node: str, reason: str) -> None:
            told.append(("retry", node, reason))

        def first_byte(self, route: str, node: str, seconds: float) -> None:
            told.append(("first byte", route, node))

    one = route(node("a", models=("m",)), node("b", models=("m",)))
    dispatch = dispatcher(one)
    dispatch.metrics = Told()
    nodes = Nodes(a=REFUSED)
    while "a" not in nodes.asked:
        told.clear()
        await dispatch.run(one, ask(), nodes)
    assert told == [("retry", "a", "backend_unreachable"), ("first byte", "r", "b")]
