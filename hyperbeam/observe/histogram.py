"""A histogram that costs a fraction of a microsecond an observation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds for requests: from a local key to a long answer."""
SHORT = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Upper bounds for what should take no time: chunks, commits, the event loop's lag."""


class Histogram:
    """Counts of values by upper bound. `counts[i]` has those over `bounds[i - 1]` and at most
    `bounds[i]`; the last has all over the highest. Written by one thread."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The value under which the share `q` of what was counted lies, as Prometheus's
    histogram_quantile has it: linear within a bucket. None where nothing was counted."""
    total = sum(counts)
    if not total:
        return None
    rank, below = q * total, 0
    for index, bound in enumerate(bounds):
        count = counts[index]
        if count and below + count >= rank:
            low = bounds[index - 1] if index else 0.0
            return min(bound, low + (bound - low) * (rank - below) / count)
        below += count
    return bounds[-1]
