"""Active probes: of nodes with a health path always, of others while their circuit is open."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import BadGateway, HyperbeamError
from .auth import Credentials
from .backends import Backends
from .lease import NodeEntry, encoded
from .outcome import Outcome, outcome
from .table import HealthCheck

if TYPE_CHECKING:
    from ..http.upstream import Upstream

TICK = 0.1
"""Seconds between looks at what is due."""
CONNECT_TIMEOUT = 5.0
CONNECT_AGAIN = 1.0
"""Seconds between two tries to connect to a node that refuses."""
BODY_LIMIT = 64 * 1024

log = logging.getLogger("hyperbeam.routing")


class _Target:
    """What the prober knows of a node."""

    __slots__ = ("bad", "entry", "good", "next", "task")

    def __init__(self, entry: NodeEntry) -> None:
        self.entry = entry
        self.bad = 0
        self.good = 0
        self.next = time.monotonic() + random.random() * _interval(entry) / 2
        self.task: asyncio.Task[None] | None = None


class Prober:
    """Probes for all processes of a node: what it finds stands in the counters."""

    def __init__(self, upstream: Upstream, backends: Backends, credentials: Credentials) -> None:
        self._upstream = upstream
        self._backends = backends
        self._credentials = credentials
        self._targets: dict[str, _Target] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, entries: Iterable[NodeEntry]) -> None:
        """Probe these nodes and no others from now on."""
        older, self._targets = self._targets, {}
        for entry in entries:
            id = entry.node.id
            target = self._targets[id] = older.pop(id) if id in older else _Target(entry)
            target.next = min(target.next, time.monotonic() + _interval(entry))
            if entry.health is None and entry.breaker.is_down:
                entry.breaker.half_open()  # nobody else would end it
        for target in older.values():
            if target.task is not None:
                target.task.cancel()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [target.task for target in self._targets.values() if target.task is not None]
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            now = time.monotonic()
            for target in self._targets.values():
                if target.task is None and self._is_due(target, now):
                    target.task = asyncio.create_task(self._probe(target))
            await asyncio.sleep(TICK)

    def _is_due(self, target: _Target, now: float) -> bool:
        entry = target.entry
        return entry.breaker.due or (_checked(entry) is not None and now >= target.next)

    async def _probe(self, target: _Target) -> None:
        entry = target.entry
        check = _checked(entry)
        error: Exception | None = None
        try:
            if check is not None:
                await self._ask(entry, check)
            else:
                await self._connect(entry)
        except HyperbeamError as failure:
            error = failure
        except Exception as failure:
            log.exception("the probe of %s failed", entry.node.id)
            error = failure
        finally:
            target.task = None
        if check is None:
            _connected(entry, error)
            return
        _count(target, check, error)
        pause = check.interval * random.uniform(0.8, 1.0)
        # A node that may have died is looked at again soon.
        target.next = time.monotonic() + (pause / 4 if 0 < target.bad < check.unhealthy else pause)

    async def _ask(self, entry: NodeEntry, check: HealthCheck) -> None:
        node = entry.node
        headers = encoded(node)
        if node.auth not in ("none", "forward"):
            value = self._credentials.authorization(node.auth, {})
            headers.append((b"authorization", value.encode("latin-1", "replace")))
        url = health_url(node.prefix, check.path)
        seconds = check.timeout
        response = await self._upstream.request(
            url,
            "GET",
            headers,
            b"",
            connect_timeout=seconds,
            first_byte_timeout=seconds,
            total_timeout=seconds,
        )
        await response.read(BODY_LIMIT)
        if not 200 <= response.status < 400:
            raise BadGateway(f"{url} answered with status {response.status}", error="backend_error")

    async def _connect(self, entry: NodeEntry) -> None:
        node = entry.node
        url = node.prefix
        if node.backend:
            backend = self._backends.get(node.backend)
            if backend is None:
                return
            url = backend.url
        await self._upstream.connect(url, CONNECT_TIMEOUT)


def health_url(prefix: str, path: str) -> str:
    """A health path is one of the node's host, whatever path its prefix has."""
    parts = urlsplit(prefix)
    return f"{parts.scheme}://{parts.netloc}/{path.lstrip('/')}"


def _checked(entry: NodeEntry) -> HealthCheck | None:
    """How to probe it; a backend of this node's own is looked after by its device."""
    return None if entry.node.backend else entry.health


def _interval(entry: NodeEntry) -> float:
    return entry.health.interval if entry.health is not None else CONNECT_AGAIN


def _connected(entry: NodeEntry, error: Exception | None) -> None:
    """After a try to connect to a node whose circuit was open."""
    breaker = entry.breaker
    if not breaker.due:
        return
    if error is None:
        breaker.half_open()
    elif outcome(error) is Outcome.REFUSED:
        breaker.extend(CONNECT_AGAIN)
    else:
        breaker.open()


def _count(target: _Target, check: HealthCheck, error: Exception | None) -> None:
    entry = target.entry
    breaker = entry.breaker
    if error is None:
        target.bad = 0
        target.good += 1
        if breaker.due or (breaker.is_down and target.good >= check.healthy):
            breaker.close()
            log.info("%s is healthy again", entry.node.id)
        elif breaker.state == "half-open":
            breaker.close()
        return
    target.good = 0
    target.bad += 1
    entry.last_error = str(error)
    refused = outcome(error) is Outcome.REFUSED
    if (refused or breaker.due or target.bad >= check.unhealthy) and not breaker.is_down:
        breaker.down()
        log.warning("%s is out of the choice: its health check fails: %s", entry.node.id, error)
