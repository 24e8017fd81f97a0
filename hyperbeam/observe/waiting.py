"""What the start or the end of a node waits for, told to the operator where it takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FIRST = 3.0
"""Seconds after which the log says what is waited for; then after twice as long, and so on."""

_now: list[str] = []

log = logging.getLogger("hyperbeam.node")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """What is done inside is `what`."""
    ended = threading.Event()

    def tell() -> None:
        wait = told = FIRST
        while not ended.wait(wait):
            log.warning("still waiting for %s, for %g s now", what, told)
            wait, told = told, 2 * told

    # A thread tells it also where the event loop is held up.
    threading.Thread(target=tell, name="waiting", daemon=True).start()
    _now.append(what)
    try:
        yield
    finally:
        _now.remove(what)
        ended.set()


def waited_for() -> str:
    """What this process waits for now; "" for nothing."""
    return " and ".join(_now)
