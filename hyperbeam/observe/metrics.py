"""What the node counts about itself: plain numbers, written on the way and read at a scrape.

Nothing here knows an exposition format: `exposition` writes the sum of the processes'
snapshots when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any, Protocol

from . import process
from .families import COUNTERS, HISTOGRAMS, OTHER
from .histogram import Histogram
from .snapshot import Snapshot

BOUNDS = {"route": 256, "node": 256, "model": 64, "reason": 64, "outcome": 32}
"""How many values a label takes; all further ones are `other`."""
LENGTH = 200
TICK = 1.0
"""Seconds between two looks at the event loop's lag, and at the totals for the rates."""
RATE_OVER = 60
RATES = ("requests", "errors", "prompt_tokens", "completion_tokens", "chunks")

log = logging.getLogger("hyperbeam.metrics")


class SeenNode(Protocol):
    """What a process knows of a node: seconds to its first byte (0: unknown), failures."""

    @property
    def id(self) -> str: ...
    @property
    def latency(self) -> float: ...
    @property
    def failures(self) -> int: ...
    @property
    def last_error(self) -> str: ...


class _Label:
    """The values of one label, up to a bound."""

    __slots__ = ("_bound", "_seen")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        value = value[:LENGTH]
        if value not in self._seen:
            if len(self._seen) >= self._bound:
                return OTHER
            self._seen.add(value)
        return value


class _Requests:
    """Those along one route to one endpoint."""

    __slots__ = ("histogram", "statuses")

    def __init__(self, histogram: Histogram) -> None:
        self.histogram = histogram
        self.statuses: dict[int, int] = {}


class Metrics:
    """The counts of one process. Called on its event loop, but for `committed`.

    `role` names the process. `others`, where set, gives the snapshots of the other processes
    of the node: the supervisor's way to its workers. `nodes` gives the route table's nodes as
    this process knows them.
    """

    def __init__(self, role: str = "node") -> None:
        self.role = role
        self.others: Callable[[], Awaitable[Sequence[Snapshot]]] | None = None
        self.nodes: Callable[[], Sequence[SeenNode]] = tuple
        self._started = time()
        self._labels = {name: _Label(bound) for name, bound in BOUNDS.items()}
        self._counters: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in COUNTERS}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {
            name: {} for name in HISTOGRAMS
        }
        self._requests: dict[tuple[str, str], _Requests] = {}
        self._tokens: dict[str, list[int]] = {}
        self._nodes = self._histograms["node_first_byte_seconds"]
        self._streams = self._histograms["first_byte_seconds"]
        self._sent = 0
        self.gaps = self._histogram("chunk_gap_seconds", ())
        """Seconds between the chunks of a stream; `StreamWatch` writes it itself."""
        self._lag = self._histogram("event_loop_lag_seconds", ())
        self._commit = self._histogram("store_commit_seconds", ())
        self._gauges: dict[str, Callable[[], float]] = {}
        self._read: dict[tuple[str, tuple[str, ...]], Callable[[], float]] = {}
        self._totals = dict.fromkeys(RATES, 0)
        self._past: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATE_OVER + 1)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def request(self, route: str, endpoint: str, status: int, seconds: float) -> None:
        """A request was answered. `route`: the route's id, "" for none; `endpoint`: one of
        `families.endpoint`'s."""
        totals = self._totals
        totals["requests"] += 1
        if status >= 500:
            totals["errors"] += 1
        found = self._requests.get((route, endpoint))
        if found is None:
            labels = (self._bounded("route", route), endpoint)
            found = self._requests.get(labels)
            if found is None:
                found = _Requests(self._histogram("request_seconds", labels))
                self._requests[labels] = found
        found.histogram.observe(seconds)
        found.statuses[status] = found.statuses.get(status, 0) + 1

    def first_byte(self, route: str, node: str, seconds: float) -> None:
        """`node`, asked along `route` (ids), has begun to answer after `seconds`."""
        histogram = self._nodes.get((route, node))
        if histogram is None:
            labels = (self._bounded("route", route), self._bounded("node", node))
            histogram = self._histogram("node_first_byte_seconds", labels)
        histogram.observe(seconds)

    def began(self, route: str, seconds: float) -> None:
        """The client has the first byte of a stream `seconds` after its request."""
        histogram = self._streams.get((route,))
        if histogram is None:
            histogram = self._histogram("first_byte_seconds", (self._bounded("route", route),))
        histogram.observe(seconds)

    def gap(self, seconds: float) -> None:
        """A chunk of a stream came `seconds` after the one before."""
        self.gaps.observe(seconds)

    def stream(self, end: str) -> None:
        """A stream ended: `complete`, `failed` (its source broke off) or `left` (the client)."""
        self._add("streams", (end,))

    def sent(self, size: int) -> None:
        """`size` bytes of a reply's body were sent."""
        self._sent += size

    def tokens(self, model: str, prompt: int, completion: int) -> None:
        """An answer's usage. `model` is the one that answered."""
        found = self._tokens.get(model)
        if found is None:
            found = self._tokens.setdefault(self._bounded("model", model), [0, 0])
        found[0] += prompt
        found[1] += completion
        self._totals["prompt_tokens"] += prompt
        self._totals["completion_tokens"] += completion

    def retry(self, node: str, reason: str) -> None:
        """A try at `node` failed by the error `reason`, and another node is asked."""
        self._add("retries", (self._bounded("node", node), self._bounded("reason", reason)))

    def attested(self, seconds: float, outcome: str) -> None:
        """An attestation took `seconds`. `outcome`: `ok`, or the error's word."""
        self._add("attestations", (self._bounded("outcome", outcome),))
        self._histogram("attestation_seconds", ()).observe(seconds)

    def committed(self, seconds: float) -> None:
        """The store committed; called on its thread."""
        self._commit.observe(seconds)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Have snapshots hold what `read` gives, under `name`; processes' values are added."""
        self._gauges[name] = read

    def counter(self, name: str, labels: tuple[str, ...], read: Callable[[], float]) -> None:
        """Have snapshots hold what `read` gives as the counter `name`: something that is
        counted elsewhere."""
        self._read[(name, labels)] = read

    def start(self) -> None:
        """Begin to look at the event loop's lag."""
        self._due = asyncio.get_running_loop().time()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def snapshot(self) -> Snapshot:
        """This process's numbers now."""
        counters = {
            name: [[list(labels), value] for labels, value in series.items()]
            for name, series in self._counters.items()
        }
        counters["requests"] = [
            [[route, endpoint, str(status)], count]
            for (route, endpoint), requests in self._requests.items()
            for status, count in requests.statuses.items()
        ]
        counters["tokens"] = [
            [[model, kind], count]
            for model, counts in self._tokens.items()
            for kind, count in zip(("prompt", "completion"), counts, strict=True)
        ]
        counters["sent_bytes"] = [[[], self._sent]]
        for (name, labels), read in self._read.items():
            counters[name].append([list(labels), _read(name, read)])
        histograms = {
            name: [[list(labels), list(one.counts), one.sum] for labels, one in series.items()]
            for name, series in self._histograms.items()
        }
        return {
            "counters": counters,
            "histograms": histograms,
            "gauges": {name: _read(name, read) for name, read in self._gauges.items()},
            "rates": self._rates(),
            "nodes": {one.id: _node(one) for one in self.nodes()},
            "processes": [process.usage(self.role, self._started)],
        }

    def _rates(self) -> dict[str, float]:
        if not self._past:
            return dict.fromkeys(RATES, 0.0)
        since, before = self._past[0]
        seconds = max(TICK, asyncio.get_running_loop().time() - since)
        now = self._all_totals()
        return {name: (now[name] - before[name]) / seconds for name in RATES}

    def _all_totals(self) -> dict[str, int]:
        return {**self._totals, "chunks": sum(self.gaps.counts)}

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._lag.observe(max(0.0, now - self._due))
        self._past.append((now, self._all_totals()))
        self._due = now + TICK
        self._timer = loop.call_at(self._due, self._tick)

    def _bounded(self, label: str, value: str) -> str:
        return self._labels[label](value)

    def _add(self, name: str, labels: tuple[str, ...], value: float = 1) -> None:
        series = self._counters[name]
        series[labels] = series.get(labels, 0) + value

    def _histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        series = self._histograms[name]
        found = series.get(labels)
        if found is None:
            found = series[labels] = Histogram(HISTOGRAMS[name].bounds)
        return found


def _node(one: SeenNode) -> dict[str, Any]:
    return {
        "failures": one.failures,
        "latency": one.latency,
        "seen": int(one.latency > 0),
        "last_error": one.last_error,
    }


def _read(name: str, read: Callable[[], float]) -> float:
    try:
        return read()
    except Exception:
        log.exception("the number %s cannot be read", name)
        return 0.0
