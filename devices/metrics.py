"""metrics@1.0: the node's numbers, for Prometheus and for `hyperbeam status` and `top`."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from hyperbeam import ConfigError, Device, Forbidden, HyperbeamError, Message, key
from hyperbeam.errors import MethodNotAllowed
from hyperbeam.observe import exposition, reexport
from hyperbeam.observe.snapshot import Snapshot, merge
from hyperbeam.observe.state import gauges, state, summary

if TYPE_CHECKING:
    from prometheus_client import Metric

    from hyperbeam.node import Node

BACKEND = "local"
FETCH_SECONDS = 2.0
FETCH_EVERY = 5.0
"""Seconds for which a backend's page is kept: llama.cpp sees clients leave late while it is
asked often."""
REMEMBERED = 64
"""Processes that have ended and whose counts are kept apart."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log = logging.getLogger("hyperbeam.metrics")


class MetricsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[metrics]`: who may read the node's numbers."""

    allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks whose clients may read /metrics, `hyperbeam status` and `top`; 0.0.0.0/0 and ::/0
    for all."""
    backend: bool = True
    """Whether the metrics of the backend that this node runs are shown too."""


class MetricsDevice(Device):
    """What the node counts: requests, tokens, times, and how its nodes and its backend are.

    `/metrics` leads here: Prometheus's text format, or OpenMetrics where that is accepted.
    `summary` is the same for people's eyes, as JSON.
    """

    name = "metrics@1.0"
    Config = MetricsConfig
    single: ClassVar[bool] = True

    def __init__(self, node: Node, config: MetricsConfig | None = None) -> None:
        super().__init__(node, config or MetricsConfig())
        self._networks = [_network(text) for text in self.config.allow]
        self._page: list[Metric] = []
        self._page_until = 0.0
        self._fetching = asyncio.Lock()
        self._last: dict[tuple[int, float], Snapshot] = {}

    @key(last=True)
    async def index(self, base: Any, request: Message) -> Message:
        """GET: every number, for Prometheus."""
        self._check(request)
        snapshot = await self._snapshot()
        found = await state(self.node, snapshot)
        foreign = await self._of_backend()
        accept = request.get("accept")
        body, content_type = await asyncio.to_thread(
            exposition.render,
            snapshot,
            list(gauges(found)),
            foreign,
            accept if isinstance(accept, str) else "",
        )
        return {"content-type": content_type, "cache-control": "no-store", "body": body}

    @key(last=True)
    async def summary(self, base: Any, request: Message) -> Message:
        """GET: how the node stands, as JSON: state, rates, latencies, nodes, processes."""
        self._check(request)
        snapshot = await self._snapshot()
        whole = summary(await state(self.node, snapshot), snapshot)
        return {
            "content-type": "application/json",
            "cache-control": "no-store",
            "body": msgspec.json.encode(whole),
        }

    def _check(self, request: Message) -> None:
        method = request.get("method") or "GET"
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed("metrics are read by GET", headers={"allow": "GET, HEAD"})
        client = str((request.get("priv") or {}).get("client") or "")
        if not self._allowed(client):
            raise Forbidden(
                f"Metrics are not for {client or 'this client'}: the operator says who may read "
                'them, by [metrics] allow = ["10.0.0.0/8"]'
            )
        origin = request.get("origin")
        if isinstance(origin, str) and urlsplit(origin).netloc != request.get("host"):
            raise Forbidden("Metrics are not for web pages of another origin")

    def _allowed(self, client: str) -> bool:
        try:
            address = ipaddress.ip_address(client.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    async def _snapshot(self) -> Snapshot:
        """The sum over all processes, with what those counted that have ended."""
        metrics = self.node.metrics
        others: Sequence[Snapshot] = () if metrics.others is None else await metrics.others()
        current = [metrics.snapshot(), *others]
        for one in current[1:]:
            self._last[_process(one)] = one
        while len(self._last) > REMEMBERED + len(current):
            self._forget(current)
        alive = {_process(one) for one in current}
        ended = [_counts(one) for name, one in self._last.items() if name not in alive]
        return merge([*current, *ended])

    def _forget(self, current: Sequence[Snapshot]) -> None:
        """Put the oldest two that have ended together, so that no sum ever falls."""
        alive = {_process(one) for one in current}
        first, second = [name for name in self._last if name not in alive][:2]
        both = merge([self._last.pop(first), self._last[second]])
        self._last[second] = {**both, "processes": self._last[second]["processes"]}

    async def _of_backend(self) -> list[Metric]:
        """The metrics of the backend that this node runs, a few seconds old at most."""
        if not self.config.backend:
            return []
        async with self._fetching:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._page_until:
                page = await self._fetch()
                self._page = await asyncio.to_thread(reexport.families, page, BACKEND)
                self._page_until = loop.time() + FETCH_EVERY
            return self._page

    async def _fetch(self) -> bytes:
        backend = self.node.backends.get(BACKEND)
        if backend is None or not backend.available():
            return b""
        try:
            response = await self.node.upstream.request(
                f"{backend.url}/metrics",
                "GET",
                [*backend.headers, (b"accept", b"text/plain")],
                b"",
                connect_timeout=FETCH_SECONDS,
                first_byte_timeout=FETCH_SECONDS,
                total_timeout=FETCH_SECONDS,
            )
            try:
                if response.status != 200:
                    log.debug("the backend's /metrics answers %d", response.status)
                    return b""
                return await response.read(reexport.LIMIT)
            finally:
                await response.aclose()
        except HyperbeamError as error:
            log.debug("the backend's metrics cannot be had: %s", error)
            return b""


def _process(snapshot: Snapshot) -> tuple[int, float]:
    one: Mapping[str, Any] = snapshot["processes"][0]
    return one["pid"], one["started"]


def _counts(snapshot: Snapshot) -> Snapshot:
    """Only what a process leaves behind when it ends."""
    nodes = {
        id: {**one, "latency": 0.0, "seen": 0, "last_error": ""}
        for id, one in snapshot["nodes"].items()
    }
    return {**snapshot, "gauges": {}, "rates": {}, "nodes": nodes, "processes": []}


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"[metrics] allow: {error}; give networks such as 10.0.0.0/8 or ::1/128"
        ) from None
