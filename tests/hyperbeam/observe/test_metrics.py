import asyncio
from types import SimpleNamespace

import msgpack
import pytest

from hyperbeam.observe.families import COUNTERS, HISTOGRAMS, endpoint
from hyperbeam.observe.metrics import BOUNDS, Metrics
from hyperbeam.observe.snapshot import Snapshot, merge


def counts(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(labels): value for labels, value in snapshot["counters"][name]}


def observed(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], int]:
    return {tuple(labels): sum(c) for labels, c, _ in snapshot["histograms"][name]}


def filled() -> Metrics:
    metrics = Metrics()
    metrics.request("r", "models", 200, 0.01)
    metrics.request("r", "models", 200, 0.01)
    metrics.request("", "other", 404, 0.001)
    metrics.first_byte("r", "local", 0.2)
    metrics.began("r", 0.3)
    metrics.gap(0.02)
    metrics.stream("complete")
    metrics.sent(100)
    metrics.tokens("m", 5, 7)
    metrics.retry("local", "loading")
    metrics.attested(1.5, "ok")
    metrics.committed(0.004)
    metrics.gauge("in_flight", lambda: 3)
    metrics.nodes = lambda: [SimpleNamespace(id="n", latency=0.5, failures=2, last_error="e")]
    metrics.counter("receipts", ("stored",), lambda: 9)
    return metrics


async def test_a_snapshot_has_all_that_was_counted_and_travels() -> None:
    snapshot = msgpack.unpackb(msgpack.packb(filled().snapshot()))
    assert snapshot["counters"].keys() == COUNTERS.keys()
    assert snapshot["histograms"].keys() == HISTOGRAMS.keys()
    requests = {("r", "models", "200"): 2, ("", "other", "404"): 1}
    assert counts(snapshot, "requests") == requests
    assert counts(snapshot, "tokens") == {("m", "prompt"): 5, ("m", "completion"): 7}
    assert counts(snapshot, "retries") == {("local", "loading"): 1}
    assert counts(snapshot, "receipts") == {("stored",): 9}
    assert counts(snapshot, "sent_bytes") == {(): 100}
    assert observed(snapshot, "request_seconds") == {("r", "models"): 2, ("", "other"): 1}
    for name in HISTOGRAMS.keys() - {"event_loop_lag_seconds"}:
        assert sum(observed(snapshot, name).values()) >= 1, name
    (process,) = snapshot["processes"]
    assert process["resident_bytes"] > 1_000_000
    assert process["open_fds"] > 2


async def test_the_sum_of_two_processes_is_twice_the_one() -> None:
    one = filled().snapshot()
    both = merge([one, one])
    for name in COUNTERS:
        assert counts(both, name) == {k: 2 * v for k, v in counts(one, name).items()}
    for name in HISTOGRAMS:
        assert observed(both, name) == {k: 2 * v for k, v in observed(one, name).items()}
    assert both["gauges"] == {"in_flight": 6}
    assert both["nodes"] == {"n": {"failures": 4, "latency": 1.0, "seen": 2, "last_error": "e"}}
    assert len(both["processes"]) == 2
    assert merge([both]) == both


async def test_labels_are_bounded() -> None:
    metrics = Metrics()
    for number in range(BOUNDS["model"] + 50):
        metrics.tokens(f"model {number}" + "x" * 300, 1, 0)
        metrics.retry(f"node {number * 3}", f"reason {number}")
    for number in range(BOUNDS["route"] + 10):
        metrics.request(f"route {number}", "models", 200, 0.1)
        metrics.request(f"route {number}", "models", 200, 0.1)
    snapshot = metrics.snapshot()
    models = {labels[0] for labels, _ in snapshot["counters"]["tokens"]}
    assert len(models) == BOUNDS["model"] + 1
    assert "other" in models
    assert max(map(len, models)) == 200
    routes = counts(snapshot, "requests")
    assert len(routes) == BOUNDS["route"] + 1
    assert routes["other", "models", "200"] == 20
    assert sum(routes.values()) == 2 * (BOUNDS["route"] + 10)


async def test_rates_are_those_since_the_oldest_look() -> None:
    metrics = Metrics()
    metrics.start()
    try:
        metrics.request("r", "models", 200, 0.1)
        metrics.request("r", "models", 503, 0.1)
        metrics.tokens("m", 10, 20)
        await asyncio.sleep(0)
        rates = metrics.snapshot()["rates"]
        # A second at least counts as passed, so that the first moment gives no huge rate.
        assert rates["requests"] == 2
        assert rates["errors"] == 1
        assert rates["completion_tokens"] == 20
        assert observed(metrics.snapshot(), "event_loop_lag_seconds") == {(): 1}
    finally:
        metrics.stop()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat/completions"),
        ("/v1/chat/completions?a=b", "chat/completions"),
        ("/~inference@1.0/v1/completions/", "completions"),
        ("/~inference@1.0/chat/completions", "chat/completions"),
        ("/v1/models/a/b", "models"),
        ("/~inference@1.0/receipt/abc", "receipt"),
        ("/health", "health"),
        ("/metrics?x", "metrics"),
        ("/~metrics@1.0/summary", "metrics"),
        ("/~message@1.0&hello=world/hello", "device"),
        ("/v1/modelsandmore", "other"),
        ("/wp-login.php", "other"),
        ("", "other"),
    ],
)
def test_endpoints_are_from_a_fixed_list(path: str, name: str) -> None:
    assert endpoint(path) == name
