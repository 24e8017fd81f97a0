"""The numbers of a process as plain data, and the sum of several processes' numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Snapshot = dict[str, Any]
"""Of one process, or the sum of several; only what MessagePack and JSON can hold.

`counters`: `{family: [[labels, value], ...]}`; `histograms`: `{family: [[labels, counts,
sum], ...]}`; `gauges`: `{name: value}`; `rates`: `{name: per second}`, over the last minute;
`nodes`: `{id: {failures, latency, seen, last_error}}`, `latency` being the sum of what `seen`
processes know; `processes`: what each process uses.
"""


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of the processes' snapshots."""
    merged: Snapshot = {"counters": {}, "histograms": {}, "gauges": {}, "rates": {}}
    merged |= {"nodes": {}, "processes": []}
    for snapshot in snapshots:
        _merge_counters(merged["counters"], snapshot["counters"])
        _merge_histograms(merged["histograms"], snapshot["histograms"])
        for name in ("gauges", "rates"):
            for key, value in snapshot[name].items():
                merged[name][key] = merged[name].get(key, 0) + value
        for id, one in snapshot["nodes"].items():
            merged["nodes"][id] = _both(merged["nodes"].get(id), one)
        merged["processes"] += snapshot["processes"]
    return {
        **merged,
        "counters": {
            name: [[list(labels), value] for labels, value in series.items()]
            for name, series in merged["counters"].items()
        },
        "histograms": {
            name: [[list(labels), *value] for labels, value in series.items()]
            for name, series in merged["histograms"].items()
        },
    }


def _merge_counters(into: dict[str, Any], counters: Mapping[str, Any]) -> None:
    for name, series in counters.items():
        sums = into.setdefault(name, {})
        for labels, value in series:
            key = tuple(labels)
            sums[key] = sums.get(key, 0) + value


def _merge_histograms(into: dict[str, Any], histograms: Mapping[str, Any]) -> None:
    for name, series in histograms.items():
        sums = into.setdefault(name, {})
        for labels, counts, total in series:
            key = tuple(labels)
            if key in sums:
                before, sum_before = sums[key]
                sums[key] = [a + b for a, b in zip(before, counts, strict=True)], sum_before + total
            else:
                sums[key] = list(counts), total


def _both(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> dict[str, Any]:
    if one is None:
        return dict(other)
    return {
        "failures": one["failures"] + other["failures"],
        "latency": one["latency"] + other["latency"],
        "seen": one["seen"] + other["seen"],
        "last_error": one["last_error"] or other["last_error"],
    }
