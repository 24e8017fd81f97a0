"""One node as the dispatcher sees it, and one attempt on it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from ..errors import Unavailable
from ..observe.request_id import asked, trace_headers
from ..serve.counters import Counters
from .auth import Credentials
from .backends import Backends
from .breaker import Breaker
from .limits import Place
from .outcome import AVOID_LIMIT, Outcome, outcome, retry_after
from .table import HealthCheck, Route, RouteNode, Timeouts

if TYPE_CHECKING:
    from .strategy import Ask

Headers = list[tuple[bytes, bytes]]

_SMOOTH = 0.2
_FEW_WORDS = 300

log = logging.getLogger("hyperbeam.routing")


class Metrics(Protocol):
    """Who is told what the dispatcher does."""

    def retry(self, node: str, reason: str) -> None:
        """`node` failed by `reason`, an error's word, and the request goes on to another."""

    def first_byte(self, route: str, node: str, seconds: float) -> None:
        """A node has begun to answer."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """`in_flight` and `state` are those of all processes, the rest is what this one saw.

    `latency`: seconds to the first byte, a moving mean, 0 unknown. `failures`: since the
    start. `since`: when `state` began, ms since 1970, 0 unknown.
    """

    id: str
    state: Literal["up", "down", "half-open", "disabled"]
    in_flight: int
    latency: float
    failures: int
    last_error: str
    since: int
    models: tuple[str, ...]


class NodeEntry:
    """The counts and the circuit of what one `id` addresses, in whichever routes.

    `node` is one of those that have the id: a table's latest. It outlives tables that keep it.
    """

    def __init__(self, node: RouteNode, counters: Counters) -> None:
        self.node = node
        self.health: HealthCheck | None = None
        self.counters = counters
        self.name = f"node {node.id}"
        self.avoid = f"avoid {node.id}"
        self.breaker = Breaker(node.id, counters)
        self.latency = 0.0
        self.failures = 0
        self.last_error = ""
        # Entered once: a name that nobody has entered is looked for at every reading.
        counters.add(self.name, 0)
        counters.add(self.avoid, 0)

    @property
    def avoided(self) -> bool:
        """Whether it said that it is overloaded, and its time is not over."""
        until = self.counters.value(self.avoid)
        return until > 0 and until > time.monotonic() * 1000

    def judge(self, error: BaseException, *, trial: bool, begun: bool) -> Outcome:
        """Count what an attempt ended with."""
        found = outcome(error)
        if found.counts:
            self.failures += 1
            self.last_error = str(error)[:_FEW_WORDS]
            opened = self.breaker.failed(at_once=found is Outcome.REFUSED, begun=begun)
            if trial:
                self.breaker.open()
            if opened or trial:
                log.warning(
                    "%s is out of the choice for %.0f s: %s",
                    self.node.id, self.breaker.wait, self.last_error,
                )  # fmt: skip
        elif found is Outcome.BUSY or found is Outcome.NOT_READY:
            seconds = min(retry_after(error), AVOID_LIMIT)
            self.counters.set(self.avoid, int((time.monotonic() + seconds) * 1000))
        return found

    def state(self, backends: Backends) -> NodeState:
        node = self.node
        state: Literal["up", "down", "half-open", "disabled"] = self.breaker.state
        if node.backend:
            backend = backends.get(node.backend)
            if backend is None:
                state = "disabled"
            elif not backend.available():
                state = "down"
        return NodeState(
            node.id,
            state,
            self.counters.total(self.name),
            self.latency,
            self.failures,
            self.last_error,
            self.breaker.since,
            node.models,
        )


class Candidate:
    """A node as one route has it, and the entry that it shares with others."""

    __slots__ = ("entry", "headers", "node")

    def __init__(self, node: RouteNode, entry: NodeEntry) -> None:
        self.node = node
        self.entry = entry
        self.headers = encoded(node)


def encoded(node: RouteNode) -> Headers:
    """The headers that the table gives a node."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in node.headers]


class Lease:
    """The right to ask `node` once. Who holds the result closes it at the result's end."""

    __slots__ = (
        "_ask", "_backends", "_closed", "_credentials", "_entry", "_first", "_headers", "_judged",
        "_metrics", "_place", "_started", "_trial", "node", "route", "timeouts",
    )  # fmt: skip

    def __init__(
        self,
        candidate: Candidate,
        route: Route,
        ask: Ask,
        place: Place | None,
        trial: bool,
        timeouts: Timeouts,
        backends: Backends,
        credentials: Credentials,
        metrics: Metrics | None,
    ) -> None:
        self.node = candidate.node
        self.route = route
        self.timeouts = timeouts
        self._entry = entry = candidate.entry
        self._headers = candidate.headers
        self._ask = ask
        self._place = place
        self._trial = trial
        self._backends = backends
        self._credentials = credentials
        self._metrics = metrics
        self._closed = self._first = self._judged = False
        entry.counters.add(entry.name, 1)
        if place is not None:
            place.hold()
        self._started = time.monotonic()

    def address(self) -> tuple[str, Headers]:
        """The address before the path, and the headers that the node is to get with any request.

        Raises Unavailable `no_backend`, `no_credential`.
        """
        node = self.node
        request = self._ask.request
        if node.backend:
            backend = self._backends.get(node.backend)
            if backend is None:
                raise Unavailable(
                    f"No backend {node.backend!r} runs here.", error="no_backend", retry_after=60
                )
            prefix, headers = backend.url, list(backend.headers)
        else:
            prefix, headers = node.prefix, self._headers.copy()
        if node.auth != "none":
            value = self._credentials.authorization(node.auth, request)
            if value:
                headers.append((b"authorization", value.encode("latin-1", "replace")))
        name = request.get("priv", {}).get("request-id")
        if name:
            headers.append((b"x-request-id", name.encode("latin-1", "replace")))
        return prefix, headers + trace_headers()

    def target(self, path: str) -> tuple[str, Headers]:
        """The whole address for the request's `path`, and headers as `address` has them."""
        prefix, headers = self.address()
        return (prefix + path if self.node.backend else self.node.target(path)), headers

    def first_byte(self) -> None:
        """The node has begun to answer."""
        if self._first:
            return
        self._first = True
        entry = self._entry
        seconds = time.monotonic() - self._started
        entry.latency += (seconds - entry.latency) * (_SMOOTH if entry.latency else 1.0)
        if self._metrics is not None:
            self._metrics.first_byte(self.route.id, self.node.id, seconds)

    def answered(self) -> None:
        """The attempt gave a result: the dispatcher's to say."""
        self._entry.breaker.succeeded()
        asked(self.node.id)
        if self._trial:
            self._entry.breaker.close()
            log.info("%s answers again", self.node.id)
            self._end_trial()
        self._judged = True

    def failed(self, error: BaseException) -> Outcome:
        """The attempt, or a stream that it gave, broke off with `error`."""
        answers = self._judged
        self._judged = True
        # A time limit on the whole says nothing of a node that was sending.
        if answers and getattr(error, "error", "") == "total_timeout":
            return Outcome.NEUTRAL
        found = self._entry.judge(error, trial=self._trial, begun=answers)
        if self._trial:
            if not found.counts and (self._first or found is Outcome.BUSY):
                self._entry.breaker.close()
            self._end_trial()
        return found

    def close(self) -> None:
        """Give the places back; the first call counts."""
        if self._closed:
            return
        self._closed = True
        if self._trial:
            self._end_trial()
        entry = self._entry
        entry.counters.add(entry.name, -1)
        if self._place is not None:
            self._place.release()

    def _end_trial(self) -> None:
        self._trial = False
        self._entry.breaker.leave()
