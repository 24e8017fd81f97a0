"""A node's circuit: closed while the node works, open after failures, half-open for one trial.

State is kept in counters, so that all processes of a node see the same.
"""

from __future__ import annotations

import time
from typing import Literal

from ..serve.counters import Counters

State = Literal["up", "down", "half-open"]

FAILURES = 3
WINDOW = 10.0
"""Seconds in which FAILURES open the circuit, if they are half of the results or more."""
OPEN_FIRST = 1.0
OPEN_LIMIT = 30.0
"""Seconds for which a circuit is open: doubled from the first to the limit."""
FORGET = 30.0
"""Seconds after the end of one opening in which another counts as its continuation."""

_BUCKETS = 5
_BUCKET_SECONDS = WINDOW / _BUCKETS
_CELLS = _BUCKETS + 1
_CLOSED, _HALF_OPEN, _DOWN = 0, -1, -2


class Breaker:
    """The circuit of the node `name`.

    `gate` is what is shared: 0 closed, a positive number the time (ms, monotonic) until
    which it is open, else half-open, or down by the word of its health checks.
    """

    def __init__(self, name: str, counters: Counters) -> None:
        self._counters = counters
        self._gate = f"gate {name}"
        self._trials = f"trial {name}"
        self._level = f"level {name}"
        self._until = f"until {name}"
        self._since = f"since {name}"
        self._good = [f"good {cell} {name}" for cell in range(_CELLS)]
        self._bad = [f"bad {cell} {name}" for cell in range(_CELLS)]
        # Entered once: a name that nobody has entered is looked for at every reading.
        counters.add(self._gate, 0)

    @property
    def closed(self) -> bool:
        return self._counters.value(self._gate) == _CLOSED

    @property
    def state(self) -> State:
        gate = self._counters.value(self._gate)
        if gate == _CLOSED:
            return "up"
        return "half-open" if gate == _HALF_OPEN else "down"

    @property
    def since(self) -> int:
        """When `state` became what it is, ms since 1970; 0 if it never changed."""
        return self._counters.value(self._since)

    @property
    def due(self) -> bool:
        """Whether the time for which it was opened is over, and a probe is to say what now."""
        gate = self._counters.value(self._gate)
        return 0 < gate <= _now()

    @property
    def wait(self) -> float:
        """Seconds until it may be tried, as far as that is known."""
        gate = self._counters.value(self._gate)
        return max(0.0, (gate - _now()) / 1000) if gate > 0 else 0.0

    def try_enter(self) -> bool:
        """Take the one trial of a half-open circuit; `leave` gives it back."""
        counters = self._counters
        if counters.value(self._gate) != _HALF_OPEN:
            return False
        counters.add(self._trials, 1)
        if counters.total(self._trials) > 1:
            counters.add(self._trials, -1)
            return False
        return True

    def leave(self) -> None:
        self._counters.add(self._trials, -1)

    def succeeded(self) -> None:
        """An answer began."""
        window = int(time.monotonic() / _BUCKET_SECONDS)
        self._counters.window_add(self._good[window % _CELLS], window)

    def failed(self, *, at_once: bool = False, begun: bool = False) -> bool:
        """A failure; True if the circuit is opened by it, `at_once` or as one of many.

        `begun`: the answer had begun and was counted as good.
        """
        counters = self._counters
        window = int(time.monotonic() / _BUCKET_SECONDS)
        if begun:
            counters.window_add(self._good[window % _CELLS], window, -1)
        counters.window_add(self._bad[window % _CELLS], window)
        if counters.value(self._gate) != _CLOSED:
            return False
        if not at_once:
            past = range(window - _BUCKETS, window + 1)
            bad = sum(counters.window_total(self._bad[w % _CELLS], w) for w in past)
            good = sum(counters.window_total(self._good[w % _CELLS], w) for w in past)
            if bad < FAILURES or bad < good:
                return False
        self.open()
        return True

    def open(self) -> None:
        """Open it, for longer than the last time if that was just before."""
        counters = self._counters
        now = _now()
        last = counters.value(self._until)
        again = last and now - last < FORGET * 1000
        level = min(counters.value(self._level) + 1, 10) if again else 0
        seconds = min(OPEN_FIRST * 2**level, OPEN_LIMIT)
        until = now + int(seconds * 1000)
        counters.set(self._level, level)
        counters.set(self._until, until)
        self._set(until)

    def extend(self, seconds: float) -> None:
        """Leave it open for `seconds` from now."""
        self._counters.set(self._gate, _now() + int(seconds * 1000))

    def half_open(self) -> None:
        """A connection can be made: one request may try."""
        self._set(_HALF_OPEN)

    def close(self) -> None:
        self._set(_CLOSED)

    def down(self) -> None:
        """The health checks say so; they alone end it."""
        self._set(_DOWN)

    def _set(self, gate: int) -> None:
        self._counters.set(self._since, int(time.time() * 1000))
        self._counters.set(self._gate, gate)

    @property
    def is_down(self) -> bool:
        return self._counters.value(self._gate) == _DOWN


def _now() -> int:
    return int(time.monotonic() * 1000)
