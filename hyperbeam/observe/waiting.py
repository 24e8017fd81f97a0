"""What the start or the end of a node waits for, told to the operator where it takes long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

FIRST = 3.0
"""Seconds after which the log says what is waited for; then after twice as long, and so on."""

_now: list[str] = []

log = logging.getLogger("hyperbeam.node")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """What is done inside is `what`."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tell(seconds: float) -> None:
        nonlocal timer
        nonlocal timer
        log.warning("still waiting for %s, for %g s now", what, seconds)
        timer = loop.call_later(seconds, tell, 2 * seconds)

    timer = loop.call_later(FIRST, tell, FIRST)
    _now.append(what)
    try:
        yield
    finally:
        _now.remove(what)
        timer.cancel()


def waited_for() -> str:
    """What this process waits for now; "" for nothing."""
    return " and ".join(_now)
