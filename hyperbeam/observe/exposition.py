"""The numbers in Prometheus's text format or OpenMetrics, written when somebody asks.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .families import COUNTERS, HISTOGRAMS, PREFIX
from .snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number as it is now, or with `counter` one that only grows: by the labels' values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: Sequence[tuple[tuple[str, ...], float]] = field(default=())
    counter: bool = False


_OPENMETRICS = "application/openmetrics-text"
_GAUGES: Mapping[str, tuple[str, bool]] = {
    "in_flight": ("Requests that are being answered.", False),
    "receipts_queued": ("Receipts that are not stored yet.", False),
}
_PROCESS: Mapping[str, tuple[str, bool]] = {
    "cpu_seconds": ("CPU time that a process of the node has used.", True),
    "resident_bytes": ("Memory that a process of the node has.", False),
    "open_fds": ("Files and sockets that a process of the node has open.", False),
    "threads": ("Threads of a process of the node.", False),
}


def render(
    snapshot: Snapshot, gauges: Iterable[Gauge], foreign: Iterable[Metric], accept: str
) -> tuple[bytes, str]:
    """The page for a client that accepts `accept`, and its content type.

    `snapshot`: of all processes; `foreign`: backends' own metrics (`reexport.families`).
    """
    families = [*_counters(snapshot), *_histograms(snapshot)]
    families += [_gauge(one) for one in (*_of_processes(snapshot), *gauges)]
    # The strict format is what Prometheus asks for first.
    if _OPENMETRICS in accept.lower():
        page = openmetrics([*families, *foreign])
        return page, f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
    return text([*families, *foreign]), "text/plain; version=0.0.4; charset=utf-8"


def openmetrics(families: Sequence[Metric]) -> bytes:
    """In OpenMetrics 1.0."""
    from prometheus_client.openmetrics import exposition

    generate: Any = exposition.generate_latest
    # Its default writes the colon of a name as an underscore, in samples only.
    page: bytes = generate(_Collected(families), escaping="allow-utf-8")
    return page


def text(families: Sequence[Metric]) -> bytes:
    """In the text format 0.0.4."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Collected(families))


class _Collected:
    """What the encoders take for a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, family in COUNTERS.items():
        metric = CounterMetricFamily(PREFIX + name, family.help, labels=family.labels)
        for labels, value in snapshot["counters"].get(name, ()):
            metric.add_metric(labels, value)
        yield metric


def _histograms(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, family in HISTOGRAMS.items():
        bounds = [*map(str, family.bounds), "+Inf"]
        metric = HistogramMetricFamily(PREFIX + name, family.help, labels=family.labels)
        for labels, counts, total in snapshot["histograms"].get(name, ()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            metric.add_metric(labels, buckets, total)
        yield metric


def _of_processes(snapshot: Snapshot) -> Iterator[Gauge]:
    found = snapshot["gauges"]
    for name, (help, counter) in _GAUGES.items():
        if name in found:
            yield Gauge(name, help, (), [((), found[name])], counter)
    processes: list[Mapping[str, Any]] = snapshot["processes"]
    for name, (help, counter) in _PROCESS.items():
        values = [((each["role"],), float(each[name])) for each in processes]
        yield Gauge(f"process_{name}", help, ("process",), values, counter)


def _gauge(gauge: Gauge) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if gauge.counter else GaugeMetricFamily
    metric = kind(PREFIX + gauge.name, gauge.help, labels=gauge.labels)
    for labels, value in gauge.values:
        metric.add_metric(labels, value)
    return metric
