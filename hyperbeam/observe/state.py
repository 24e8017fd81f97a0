"""How the node stands now: what `/metrics` shows as gauges, and `status` and `top` in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from time import time
from typing import TYPE_CHECKING, Any

from ..errors import HyperbeamError
from .exposition import Gauge
from .families import HISTOGRAMS
from .histogram import quantile
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..node import Node

NODE_STATES = ("up", "half-open", "down", "disabled")
BACKEND_STATES = ("ok", "loading", "failed", "no_backend")
_HEALTH = "/~inference@1.0/health"
_USABLE = ("up", "half-open")
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LATENCIES = ("request_seconds", "first_byte_seconds", "chunk_gap_seconds")

State = dict[str, Any]


async def state(node: Node, snapshot: Snapshot) -> State:
    """`version`, `address`, `started` (seconds since 1970), `serving`, `backend`, `nodes`,
    `routes`, `store`.

    `snapshot`: of all processes. `serving`: the node takes requests, and of the route table's
    nodes at least one can be asked (or it has none). `backend`: its `status` is one of
    BACKEND_STATES.
    """
    from .. import __version__

    nodes = [
        {**asdict(one), **_seen(snapshot["nodes"].get(one.id))} for one in node.dispatch.nodes()
    ]
    usable = not nodes or any(one["state"] in _USABLE for one in nodes)
    return {
        "version": __version__,
        "address": node.identity.address,
        "serving": usable and not node.server.draining,
        "draining": node.server.draining,
        "backend": await _backend(node),
        "nodes": nodes,
        "routes": [_route(node, route) for route in node.routes.routes],
        "store": {"kind": node.config.store.kind, "bytes": store_bytes(node)},
    }


def summary(found: State, snapshot: Snapshot) -> dict[str, Any]:
    """`state` with the numbers that people look at: `requests`, `rates`, `latency`, `tokens`.

    `histograms` has the counts that `latency` was made from, for what happens between two
    summaries: bounds in seconds, and one count more than bounds.
    """
    counters, gauges = snapshot["counters"], snapshot["gauges"]
    histograms = {name: _all(snapshot, name) for name in _LATENCIES}
    tokens: dict[str, dict[str, float]] = {}
    for (model, kind), value in counters.get("tokens", ()):
        tokens.setdefault(model, {})[kind] = value
    statuses: dict[str, float] = {}
    for (_, _, status), value in counters.get("requests", ()):
        statuses[status] = statuses.get(status, 0) + value
    return {
        **found,
        "time": time(),
        "requests": {
            "total": sum(statuses.values()),
            "in_flight": gauges.get("in_flight", 0),
            "by_status": dict(sorted(statuses.items())),
        },
        "rates": snapshot["rates"],
        "latency": {name: latency(one) for name, one in histograms.items()},
        "histograms": histograms,
        "tokens": tokens,
        "retries": sum(value for _, value in counters.get("retries", ())),
        "attestations": {labels[0]: value for labels, value in counters.get("attestations", ())},
        "receipts": {
            "queued": gauges.get("receipts_queued", 0),
            **{labels[0]: value for labels, value in counters.get("receipts", ())},
        },
        "processes": snapshot["processes"],
    }


def latency(histogram: Mapping[str, Any]) -> dict[str, float | None]:
    """`p50`, `p90`, `p99` in seconds; None where nothing was counted."""
    bounds, counts = histogram["bounds"], histogram["counts"]
    return {name: quantile(bounds, counts, share) for name, share in _QUANTILES.items()}


def gauges(found: State) -> Iterator[Gauge]:
    """The state as numbers."""
    yield Gauge("info", "What runs.", ("version",), [((found["version"],), 1)])
    yield Gauge("serving", "Whether requests are taken and a node can be asked.", (), [
        ((), float(found["serving"])),
    ])  # fmt: skip
    backend = found["backend"]
    yield Gauge(
        "backend_state",
        "1 for the state that the node's own backend is in.",
        ("backend", "model", "state"),
        [
            ((backend["kind"], backend["model"], word), float(word == backend["status"]))
            for word in BACKEND_STATES
        ],
    )
    nodes: Sequence[Mapping[str, Any]] = found["nodes"]
    yield Gauge(
        "node_state",
        "1 for the state that a node of the route table is in.",
        ("node", "state"),
        [((each["id"], w), float(w == each["state"])) for each in nodes for w in NODE_STATES],
    )
    for name, help, counter in (
        ("in_flight", "Requests that a node is answering.", False),
        ("latency", "Seconds to a node's first byte, a moving mean.", False),
        ("failures", "Failures of a node.", True),
    ):
        shown = "node_latency_seconds" if name == "latency" else f"node_{name}"
        values = [((each["id"],), float(each[name])) for each in nodes]
        yield Gauge(shown, help, ("node",), values, counter)
    for name, help in (("in_flight", "Requests along a route."), ("queued", "Requests waiting.")):
        values = [((each["id"],), float(each[name])) for each in found["routes"] if name in each]
        yield Gauge(f"route_{name}", f"{help} Routes with limits only.", ("route",), values)
    if found["store"]["bytes"] is not None:
        yield Gauge("store_bytes", "Size of the store.", (), [((), found["store"]["bytes"])])


def store_bytes(node: Node) -> int | None:
    """Bytes that the store takes on the disk; None for one that has no file."""
    if node.config.store.kind != "lmdb":
        return None
    try:
        # The file is sparse: what counts is what it occupies.
        return (node.home / "store" / "data.mdb").stat().st_blocks * 512
    except OSError:
        return None


async def _backend(node: Node) -> dict[str, str]:
    try:
        reply = await node.resolve(None, {"path": _HEALTH, "method": "GET"})
        said = json.loads(reply["body"])
    except (HyperbeamError, ValueError, KeyError, TypeError):
        said = {}
    return {
        "status": str(said.get("status") or "no_backend"),
        "kind": str(said.get("backend") or ""),
        "model": str(said.get("model") or ""),
        "detail": str(said.get("detail") or ""),
    }


def _seen(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """What all processes together know of a node."""
    if found is None:
        return {}
    return {
        "latency": found["latency"] / max(1, found["seen"]),
        "failures": found["failures"],
        "last_error": found["last_error"],
    }


def _route(node: Node, route: Any) -> dict[str, Any]:
    shown = {
        "id": route.id,
        "device": route.device,
        "nodes": [one.id for one in route.nodes],
    }
    return {**shown, **node.dispatch.load(route)}


def _all(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """A family's histograms added up."""
    bounds = HISTOGRAMS[name].bounds
    counts = [0] * (len(bounds) + 1)
    for _, more, _ in snapshot["histograms"].get(name, ()):
        counts = [a + b for a, b in zip(counts, more, strict=True)]
    return {"bounds": list(bounds), "counts": counts}
