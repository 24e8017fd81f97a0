"""A route's limits: requests in flight, and a queue that is fair between clients."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque

from ..errors import HyperbeamError, Unavailable
from ..serve.counters import Counters
from .table import RouteLimits

POLL = 0.02
"""Seconds between looks at what other processes hold, while somebody waits."""
RETRY_LIMIT = 30

_Waiter = asyncio.Future["Place"]


class Place:
    """One of a route's places. Every `hold` needs a `release`; the first is the taker's own."""

    __slots__ = ("_client", "_held", "_limiter", "_since")

    def __init__(self, limiter: Limiter, client: str) -> None:
        self._limiter = limiter
        self._client = client
        self._held = 1
        self._since = time.monotonic()

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        if self._held == 0:
            self._limiter.left(self._client, time.monotonic() - self._since)


class Limiter:
    """Who may ask along the route `id` now, in this process and, by `counters`, in all.

    What one client holds (`per_client`) and whose turn it is count within this process.
    """

    def __init__(self, id: str, limits: RouteLimits, counters: Counters) -> None:
        self.limits = limits
        self._counters = counters
        self._flight = f"route {id}"
        self._queued = f"queue {id}"
        self._clients: dict[str, int] = {}
        self._turns: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._seconds = 0.0

    @property
    def in_flight(self) -> int:
        return self._counters.total(self._flight)

    @property
    def queued(self) -> int:
        return self._counters.total(self._queued)

    async def enter(self, client: str) -> Place:
        """Wait for a place.

        Raises HyperbeamError `too_many_requests` (429) where `client` has too much itself,
        Unavailable `overloaded` where the queue is full or the wait too long.
        """
        limit = self.limits.per_client
        if limit and self._clients.get(client, 0) >= limit:
            raise self._too_many(f"{limit} requests at a time are the most for one client")
        self._clients[client] = self._clients.get(client, 0) + 1
        try:
            if not self._turns and self._take():
                return Place(self, client)
            return await self._wait(client)
        except BaseException:
            self._forget(client)
            raise

    async def _wait(self, client: str) -> Place:
        self._make_room(client)
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._turns.setdefault(client, deque()).append(waiter)
        self._counters.add(self._queued, 1)
        self._watch()
        try:
            async with asyncio.timeout(self.limits.queue_timeout or None):
                return await waiter
        except TimeoutError:
            self._give_back(waiter)
            raise self._overloaded("the wait for a place was too long") from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            self._counters.add(self._queued, -1)
            self._drop(client, waiter)

    def left(self, client: str, seconds: float) -> None:
        """A place is free again after `seconds`."""
        self._counters.add(self._flight, -1)
        self._forget(client)
        self._seconds += (seconds - self._seconds) / 8
        if self._turns:
            self._serve()

    def change(self, limits: RouteLimits) -> None:
        """Other limits for the same route; those who wait stay."""
        self.limits = limits
        self._serve()

    def _take(self) -> bool:
        counters, limit = self._counters, self.limits.in_flight
        counters.add(self._flight, 1)
        if not limit or counters.total(self._flight) <= limit:
            return True
        counters.add(self._flight, -1)
        return False

    def _serve(self) -> None:
        """Give free places to those who wait, one client after another."""
        while self._turns:
            client, waiters = next(iter(self._turns.items()))
            waiter = waiters[0]
            if waiter.done():
                self._drop(client, waiter)
                continue
            if not self._take():
                return
            waiter.set_result(Place(self, client))
            self._drop(client, waiter)
            if client in self._turns:
                self._turns.move_to_end(client)

    def _drop(self, client: str, waiter: _Waiter) -> None:
        waiters = self._turns.get(client)
        if waiters is None or waiter not in waiters:
            return
        waiters.remove(waiter)
        if not waiters:
            del self._turns[client]

    def _give_back(self, waiter: _Waiter) -> None:
        """The place of a waiter who got it and did not live to take it."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._counters.add(self._flight, -1)
            self._serve()

    def _make_room(self, client: str) -> None:
        """In a full queue, the newest request of who has most of it goes, if that is fairer."""
        if self.queued < self.limits.queue:
            return
        most, waiters = max(
            self._turns.items(), key=lambda item: len(item[1]), default=("", deque[_Waiter]())
        )
        if len(waiters) <= len(self._turns.get(client, ())) + 1:
            raise self._overloaded("its queue is full")
        newest = waiters[-1]
        self._drop(most, newest)
        if not newest.done():
            newest.set_exception(
                self._too_many("the queue is full, and this client has most of it")
            )

    def _watch(self) -> None:
        """Look again soon: places that other processes give back are told to nobody."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL, self._look)

    def _look(self) -> None:
        self._timer = None
        self._serve()
        if self._turns:
            self._watch()

    def _forget(self, client: str) -> None:
        count = self._clients.get(client, 0) - 1
        if count > 0:
            self._clients[client] = count
        else:
            self._clients.pop(client, None)

    @property
    def _retry_after(self) -> int:
        """In how many seconds there may be a place, by how long requests have held theirs."""
        rounds = (self.queued + 1) / (self.limits.in_flight or 1)
        return max(1, min(RETRY_LIMIT, math.ceil(self._seconds * rounds)))

    def _overloaded(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the route has no place for another request now: {reason}",
            error="overloaded",
            retry_after=self._retry_after,
        )

    def _too_many(self, reason: str) -> HyperbeamError:
        return HyperbeamError(
            f"too many requests: {reason}",
            error="too_many_requests",
            status=429,
            headers={"retry-after": str(self._retry_after)},
        )
