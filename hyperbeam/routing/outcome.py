"""What a failed attempt says about its node, and whether another node may be asked.

The one place where errors are told apart for routing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from ..errors import HyperbeamError

AVOID_LIMIT = 5.0
"""Seconds for which a node that is overloaded is avoided at most."""


class Outcome(Enum):
    """What became of an attempt that raised."""

    REFUSED = auto()
    """No connection: the circuit opens at once."""
    TIMED_OUT = auto()
    """No connection in time: a failure, not begun."""
    FAILED = auto()
    """5xx, no answer in time, a cut: a failure, and the node may have begun."""
    BUSY = auto()
    """Nothing wrong with the node but that it takes no request now."""
    NOT_READY = auto()
    """It cannot be asked, and its own supervisor knows."""
    NEUTRAL = auto()
    """The request's own fault, or nobody's: counts for nothing and goes nowhere else."""

    @property
    def counts(self) -> bool:
        """Whether it is a failure of the node."""
        return self in _COUNTS

    @property
    def retry(self) -> bool:
        """Whether the node has not begun, so that the request may go to another."""
        return self in _NOT_BEGUN


_COUNTS = frozenset({Outcome.REFUSED, Outcome.TIMED_OUT, Outcome.FAILED})
_NOT_BEGUN = frozenset({Outcome.REFUSED, Outcome.TIMED_OUT, Outcome.BUSY, Outcome.NOT_READY})

_BY_WORD: Mapping[str, Outcome] = {
    "backend_unreachable": Outcome.REFUSED,
    "backend_error": Outcome.FAILED,
    "connect_timeout": Outcome.TIMED_OUT,
    "overloaded": Outcome.BUSY,
    "loading": Outcome.NOT_READY,
    "draining": Outcome.BUSY,
    "no_backend": Outcome.NOT_READY,
    "backend_failed": Outcome.NOT_READY,
    "no_credential": Outcome.NOT_READY,
    "response_too_large": Outcome.NEUTRAL,
    "loop_detected": Outcome.NEUTRAL,
}


def outcome(error: BaseException) -> Outcome:
    """Anything that is no HyperbeamError is a client that left, or a fault of this program."""
    if not isinstance(error, HyperbeamError):
        return Outcome.NEUTRAL
    found = _BY_WORD.get(error.error)
    if found is not None:
        return found
    if error.status in (502, 504):
        return Outcome.FAILED
    return Outcome.NEUTRAL


def retry_after(error: BaseException) -> float:
    """The seconds that `error` asks for; 1 where it says nothing that can be read."""
    headers = error.headers if isinstance(error, HyperbeamError) else {}
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1.0
