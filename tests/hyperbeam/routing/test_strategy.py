import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.routing import Ask, Route, RouteNode, affinity
from hyperbeam.routing.strategy import STRATEGIES, order


@dataclass
class Loads:
    """What is known of nodes, by their id."""

    flights: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    turns: int = 0

    def in_flight(self, node: RouteNode) -> int:
        return self.flights.get(node.id, 0)

    def latency(self, node: RouteNode) -> float:
        return self.seconds.get(node.id, 0.0)

    def turn(self, route: Route) -> int:
        self.turns += 1
        return self.turns


def nodes(*names: str, **more: Any) -> list[RouteNode]:
    return [RouteNode(id=name, prefix=f"http://{name}", **more) for name in names]


def first(strategy: str, among: list[RouteNode], ask: Ask, load: Loads | None = None) -> str:
    return order(Route("/a", among, strategy=strategy), among, ask, load or Loads())[0].id


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(names=st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True), path=st.text())
@settings(max_examples=20)
def test_every_strategy_orders_all_nodes(strategy: str, names: list[str], path: str) -> None:
    among = [RouteNode(id=name, wallet="A" * 43) for name in names]
    ordered = order(Route("/a", among, strategy=strategy), among, Ask(path), Loads())
    assert sorted(node.id for node in ordered) == sorted(names)


def test_the_fewest_in_flight_by_weight_and_chance_among_equals() -> None:
    among = nodes("a", "b", "c")
    assert first("Least-Loaded", among, Ask("/"), Loads({"a": 2, "b": 1, "c": 2})) == "b"
    heavy = [*nodes("a"), *nodes("b", weight=4.0)]
    assert first("Least-Loaded", heavy, Ask("/"), Loads({"a": 2, "b": 7})) == "b"
    assert {first("Least-Loaded", among, Ask("/")) for _ in range(200)} == {"a", "b", "c"}


def test_turns_go_round() -> None:
    among, load = nodes("a", "b", "c"), Loads()
    seen = [first("Round-Robin", among, Ask("/"), load) for _ in range(6)]
    assert Counter(seen) == {"a": 2, "b": 2, "c": 2}
    assert seen[:3] == seen[3:]


def test_the_shortest_latency_after_those_that_are_unknown() -> None:
    among = nodes("a", "b")
    assert first("Shortest-Latency", among, Ask("/"), Loads({}, {"a": 0.2, "b": 0.1})) == "b"
    assert first("Shortest-Latency", among, Ask("/"), Loads({}, {"a": 0.2})) == "b"


def test_weights_are_shares() -> None:
    among = [*nodes("a"), *nodes("b", weight=9.0)]
    seen = Counter(first("By-Weight", among, Ask("/")) for _ in range(2000))
    assert 1700 < seen["b"] < 1900


def test_one_base_goes_to_one_node_and_the_nearest_wallet_is_chosen() -> None:
    among = nodes("a", "b", "c")
    ask = Ask("/x", base={"name": "ada", "priv": {"secret": 1}})
    assert len({first("By-Base", among, ask) for _ in range(20)}) == 1
    seen = {first("By-Base", among, Ask(f"/{n}")) for n in range(60)}
    assert seen == {"a", "b", "c"}
    near = [RouteNode(id="far", wallet="A" * 43), RouteNode(id="near", wallet="g" + "A" * 42)]
    paths = [first("Nearest", near, Ask(f"/{n}")) for n in range(100)]
    assert 25 < paths.count("near") < 75


@given(
    names=st.lists(st.text("abcdef", min_size=1), min_size=2, max_size=8, unique=True),
    keys=st.lists(st.binary(), min_size=1, max_size=30, unique=True),
)
@settings(max_examples=50)
def test_only_what_must_moves(names: list[str], keys: list[bytes]) -> None:
    """Without a node its conversations move, and no others; a new one takes from all."""
    all_nodes = nodes(*names)
    for key in keys:
        ask = Ask("/", affinity=partial(bytes, key))
        chosen = first("Prefix-Affinity", all_nodes, ask)
        without = [node for node in all_nodes if node.id != names[0]]
        later = first("Prefix-Affinity", without, ask)
        assert (later == chosen) == (chosen != names[0])


def test_about_one_in_n_moves_and_weights_are_shares_of_conversations() -> None:
    asks = [Ask("/", affinity=partial(str.encode, str(n))) for n in range(3000)]
    three = nodes("a", "b", "c")
    four = [*three, *nodes("d")]
    moved = sum(
        first("Prefix-Affinity", three, ask) != first("Prefix-Affinity", four, ask) for ask in asks
    )
    assert 3000 / 4 * 0.85 < moved < 3000 / 3
    heavy = [*nodes("a"), *nodes("b", weight=3.0)]
    taken = Counter(first("Prefix-Affinity", heavy, ask) for ask in asks)
    assert 0.70 < taken["b"] / 3000 < 0.80


def request(**fields: Any) -> dict[str, Any]:
    return {"path": "/v1/chat/completions", "body": json.dumps(fields).encode()}


def test_a_conversation_is_known_by_its_beginning() -> None:
    system = {"role": "system", "content": "be brief"}
    user = {"role": "user", "content": "hello"}
    answer = {"role": "assistant", "content": "hi"}
    other = {"role": "user", "content": "other"}
    begun = affinity.of_request(request(model="m", messages=[system, user]))
    assert begun == affinity.of_request(
        request(temperature=1, messages=[system, user, answer, other], model="m")
    )
    for fields in (
        {"model": "n", "messages": [system, user]},
        {"model": "m", "messages": [system, other]},
        {"model": "m", "messages": [user]},
    ):
        assert affinity.of_request(request(**fields)) != begun
    named = {**request(model="m", messages=[other]), "x-session-id": "7"}
    assert affinity.of_request(named) == b"7"
    long = affinity.of_request(request(prompt="x" * 256))
    assert long == affinity.of_request(request(prompt="x" * 256 + "and on"))


@given(st.one_of(st.binary(), st.text(), st.none()), st.one_of(st.text(), st.integers()))
def test_any_request_has_an_affinity(body: Any, session: Any) -> None:
    found = affinity.of_request({"path": "/a", "body": body, "x-session-id": session})
    assert isinstance(found, bytes)


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.fixed_dictionaries({}, optional={"messages": JSON, "prompt": JSON, "model": JSON}))
def test_any_fields_have_an_affinity(fields: dict[str, Any]) -> None:
    assert isinstance(affinity.of_request(request(**fields)), bytes)
