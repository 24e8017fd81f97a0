"""How much a key may ask for in a time: `60/min`, `100000/day`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..serve.counters import Counters

PERIODS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
MAX_COUNT = 2**32 - 1
_QUOTA = re.compile(r"([0-9]{1,10})/(s|min|h|day)\Z")


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `count` in each period of `seconds`, counted from midnight UTC."""

    count: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Read `COUNT/PERIOD`. Raises ConfigError."""
        match = _QUOTA.match(text.strip())
        if match is None or not 0 < int(match[1]) <= MAX_COUNT:
            raise ConfigError(
                f"{text!r} is no limit: write COUNT/PERIOD, as 60/min; "
                f"periods are {', '.join(PERIODS)}, counts 1 to {MAX_COUNT}"
            )
        return cls(int(match[1]), PERIODS[match[2]])

    def __str__(self) -> str:
        word = next(word for word, seconds in PERIODS.items() if seconds == self.seconds)
        return f"{self.count}/{word}"

    def window(self) -> int:
        """The number of the period that runs now."""
        return int(time.time()) // self.seconds

    def resets_in(self) -> int:
        """Whole seconds to its end, at least 1."""
        return self.seconds - int(time.time()) % self.seconds

    def left(self, counters: Counters, name: str) -> int:
        """How much of it is left under `name`."""
        return max(0, self.count - counters.window_total(name, self.window()))

    def take(self, counters: Counters, name: str, amount: int) -> None:
        counters.window_add(name, self.window(), amount)
