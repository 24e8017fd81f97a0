"""Takes a request along its route: to a node that can, to another where that is allowed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import GatewayTimeout, HyperbeamError, NotFound, Unavailable
from ..observe.request_id import asked
from ..observe.tracing import span
from ..serve.counters import Counters
from .auth import Credentials
from .backends import Backends
from .health import Prober
from .lease import Candidate, Lease, Metrics, NodeEntry, NodeState
from .limits import Limiter, Place
from .outcome import Outcome, outcome, retry_after
from .race import several
from .strategy import Ask, order
from .table import Route, RouteNode, RouteTable

if TYPE_CHECKING:
    from ..http.upstream import Upstream

T = TypeVar("T")
Attempt = Callable[[Lease], Awaitable[T]]


class _RouteState:
    """A route of the table with what the dispatcher keeps for it."""

    __slots__ = ("candidates", "limiter", "route")

    def __init__(self, route: Route, candidates: list[Candidate], limiter: Limiter | None) -> None:
        self.route = route
        self.candidates = candidates
        self.limiter = limiter


class Dispatcher:
    """Chooses nodes, counts what becomes of it, and keeps to the limits of routes.

    `counters` are shared by all processes of a node; one of them is `probing`.
    """

    def __init__(
        self, upstream: Upstream, counters: Counters, backends: Backends, probing: bool = True
    ) -> None:
        self.counters = counters
        self.backends = backends
        self.metrics: Metrics | None = None
        self._credentials = Credentials()
        self._entries: dict[str, NodeEntry] = {}
        self._states: dict[str, _RouteState] = {}
        self._limiters: dict[str, Limiter] = {}
        self._turns: dict[str, int] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._prober = Prober(upstream, backends, self._credentials) if probing else None

    async def start(self) -> None:
        """Begin to probe, where this process does."""
        if self._prober is not None:
            self._prober.start()

    async def stop(self) -> None:
        if self._prober is not None:
            await self._prober.stop()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def use(self, table: RouteTable) -> None:
        """Take `table`; nodes and routes with the ids of earlier ones keep their state."""
        entries: dict[str, NodeEntry] = {}
        for route in table.routes:
            for node in route.nodes:
                entry = entries.get(node.id)
                if entry is None:
                    entry = entries[node.id] = self._entry(node)
                    entry.node = node
                    entry.health = node.health
                elif entry.health is None:
                    entry.health = node.health
        limiters = {
            route.id: limiter
            for route in table.routes
            if (limiter := self._limiter(route)) is not None
        }
        self._entries, self._limiters = entries, limiters
        self._states = {}
        if self._prober is not None:
            self._prober.watch(entries.values())

    async def run(self, route: Route, ask: Ask, attempt: Attempt[T]) -> T:
        """The result of `attempt` on the first node that gives one.

        An error sends the request to the next node as `routing.outcome` and the route
        allow, to `1 + retries` nodes at most, each once; then the last error is raised.
        A route with `parallel` and `choose` has several nodes try at once: the first result
        counts, the others' are closed.

        Raises what `attempt` raised, Unavailable `circuit_open`, NotFound `model_not_found`,
        or for the route's limits HyperbeamError `too_many_requests`, Unavailable `overloaded`.
        """
        state = self._state(route)
        place = None if state.limiter is None else await state.limiter.enter(ask.client)
        try:
            candidates = self._order(state, ask)
            if route.parallel and route.choose > 1 and len(candidates) > 1:
                return (await self._several(route, ask, attempt, candidates, place, 1))[0]
            return await self._in_turn(route, ask, attempt, candidates, place)
        finally:
            if place is not None:
                place.release()

    async def gather(self, route: Route, ask: Ask, attempt: Attempt[T]) -> list[T]:
        """The results of `responses` nodes, in the nodes' order; all of them, or an error.

        `parallel`: of `choose` nodes at once, else of one after another.
        """
        state = self._state(route)
        place = None if state.limiter is None else await state.limiter.enter(ask.client)
        try:
            candidates = self._order(state, ask)
            return await self._several(route, ask, attempt, candidates, place, route.responses)
        finally:
            if place is not None:
                place.release()

    def nodes(self) -> list[NodeState]:
        """The table's nodes as they are now."""
        return [entry.state(self.backends) for entry in self._entries.values()]

    def candidates(self, route: Route, model: str = "") -> list[RouteNode]:
        """The route's nodes that could be asked now for `model`."""
        return [
            each.node
            for each in self._state(route).candidates
            if _serves(each.node, model) and each.entry.breaker.closed and self._is_ready(each.node)
        ]

    def load(self, route: Route) -> dict[str, int]:
        """`in_flight` and `queued` of a route with limits, in all processes; {} for others."""
        limiter = self._limiters.get(route.id)
        if limiter is None:
            return {}
        return {"in_flight": limiter.in_flight, "queued": limiter.queued}

    def in_flight(self, node: RouteNode) -> int:
        return self.counters.total(f"node {node.id}")

    def latency(self, node: RouteNode) -> float:
        entry = self._entries.get(node.id)
        return entry.latency if entry is not None else 0.0

    def turn(self, route: Route) -> int:
        """Counts up from a random number, so that processes do not go in step."""
        turn = self._turns.get(route.id)
        turn = random.randrange(1 << 16) if turn is None else turn + 1
        self._turns[route.id] = turn
        return turn

    async def _in_turn(
        self,
        route: Route,
        ask: Ask,
        attempt: Attempt[T],
        candidates: Sequence[Candidate],
        place: Place | None,
    ) -> T:
        errors: list[HyperbeamError] = []
        failed = candidates[0].node
        began = 0.0
        for candidate in candidates:
            breaker = candidate.entry.breaker
            trial = False
            if not breaker.closed:
                trial = breaker.try_enter()
                if not trial:
                    continue
            if errors:
                self._again(failed, errors[-1])
            else:
                began = time.monotonic()
            lease = self._lease(candidate, route, ask, place, trial, began if errors else 0.0)
            try:
                asked(candidate.node.id)
                with span("attempt", node=candidate.node.id, route=route.id):
                    result = await attempt(lease)
            except BaseException as error:
                found = lease.failed(error)
                lease.close()
                if not isinstance(error, HyperbeamError):
                    raise
                if not (found.retry or (route.idempotent and found is Outcome.FAILED)):
                    raise
                errors.append(error)
                failed = candidate.node
                if len(errors) > route.retries:
                    break
            else:
                lease.answered()
                return result
        raise _worst(errors) if errors else _circuit_open(candidates)

    async def _several(
        self,
        route: Route,
        ask: Ask,
        attempt: Attempt[T],
        candidates: Sequence[Candidate],
        place: Place | None,
        wanted: int,
    ) -> list[T]:
        async def one(candidate: Candidate) -> T:
            return await self._in_turn(route, ask, attempt, [candidate], place)

        width = max(route.choose, wanted) if route.parallel else 1
        most = max(route.choose, wanted) + route.retries
        results, errors = await several(
            [partial(one, candidate) for candidate in candidates[:most]],
            wanted,
            width,
            may_go_on=lambda error: outcome(error).retry or route.idempotent,
            keep=None if route.stop_after else self._running,
        )
        if len(results) >= wanted:
            return results
        if errors:
            raise _worst(errors)
        raise Unavailable(
            f"the route asks for {wanted} answers and has {len(results)} nodes that can answer",
            error="too_few_nodes",
        )

    def _lease(
        self,
        candidate: Candidate,
        route: Route,
        ask: Ask,
        place: Place | None,
        trial: bool,
        began: float,
    ) -> Lease:
        timeouts = candidate.node.timeouts
        if began and timeouts.total:
            left = timeouts.total - (time.monotonic() - began)
            if left <= 0:
                if trial:
                    candidate.entry.breaker.leave()
                raise GatewayTimeout(
                    f"the request took more than {timeouts.total:g} s altogether",
                    error="total_timeout",
                )
            timeouts = replace(timeouts, total=left)
        return Lease(
            candidate, route, ask, place, trial, timeouts,
            self.backends, self._credentials, self.metrics,
        )  # fmt: skip

    def _order(self, state: _RouteState, ask: Ask) -> Sequence[Candidate]:
        """Whom to ask, the first one first. Raises Unavailable or NotFound for nobody."""
        candidates = state.candidates
        if len(candidates) == 1:
            only = candidates[0]
            if only.entry.breaker.closed and _serves(only.node, ask.model):
                return candidates
        serving = [each for each in candidates if _serves(each.node, ask.model)]
        if not serving:
            raise _no_model(ask.model, candidates)
        able: list[Candidate] = []
        trials: list[Candidate] = []
        not_ready: list[Candidate] = []
        for each in serving:
            breaker = each.entry.breaker
            if not breaker.closed:
                if breaker.state == "half-open":
                    trials.append(each)
            elif self._is_ready(each.node):
                able.append(each)
            else:
                not_ready.append(each)
        if len(able) > 1:
            by_id = {each.node.id: each for each in able}
            ordered = order(state.route, [each.node for each in able], ask, self)
            able = [by_id[node.id] for node in ordered]
            able.sort(key=_avoided)
        # One request tells whether a node works again: it comes first, or it might never come.
        found = trials + able or not_ready
        if not found:
            raise _circuit_open(serving)
        return found

    def _is_ready(self, node: RouteNode) -> bool:
        if not node.backend:
            return True
        backend = self.backends.get(node.backend)
        return backend is not None and backend.available()

    def _state(self, route: Route) -> _RouteState:
        state = self._states.get(route.id)
        if state is None or state.route is not route:
            candidates = [Candidate(node, self._entry(node)) for node in route.nodes]
            state = _RouteState(route, candidates, self._limiter(route))
            self._states[route.id] = state
        return state

    def _entry(self, node: RouteNode) -> NodeEntry:
        entry = self._entries.get(node.id)
        if entry is None:
            entry = self._entries[node.id] = NodeEntry(node, self.counters)
        return entry

    def _limiter(self, route: Route) -> Limiter | None:
        limits = route.limits
        limiter = self._limiters.get(route.id)
        if limiter is not None:
            if limiter.limits != limits:
                limiter.change(limits)
        elif limits.in_flight or limits.per_client:
            limiter = self._limiters[route.id] = Limiter(route.id, limits, self.counters)
        return limiter

    def _again(self, node: RouteNode, error: HyperbeamError) -> None:
        if self.metrics is not None:
            self.metrics.retry(node.id, error.error)


def _serves(node: RouteNode, model: str) -> bool:
    return not node.models or not model or model in node.models


def _avoided(candidate: Candidate) -> bool:
    return candidate.entry.avoided


def _worst(errors: Sequence[HyperbeamError]) -> HyperbeamError:
    """The last error; but where a node was only busy, that, with the shortest time to wait."""
    busy = [error for error in errors if outcome(error) is Outcome.BUSY]
    if not busy:
        return errors[-1]
    last = busy[-1]
    if len(busy) > 1:
        last.headers["retry-after"] = f"{min(map(retry_after, busy)):.0f}"
    return last


def _circuit_open(candidates: Sequence[Candidate]) -> Unavailable:
    waits = [each.entry.breaker.wait for each in candidates]
    return Unavailable(
        "No backend of this route works at the moment; it is tried again shortly.",
        error="circuit_open",
        retry_after=max(1, math.ceil(min(waits, default=1.0))),
    )


def _no_model(model: str, candidates: Sequence[Candidate]) -> NotFound:
    known = sorted({name for each in candidates for name in each.node.models})
    return NotFound(
        model,
        f"The model '{model[:200]}' does not exist here: there are {', '.join(known)[:1000]}.",
        error="model_not_found",
        param="model",
    )
