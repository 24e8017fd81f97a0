"""How much one request may have devices resolve for it: messages can ask for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from .errors import BadRequest

MAX_DEPTH = 32
"""Resolutions inside of each other."""
MAX_TOTAL = 1000
"""Resolutions that one brings about altogether."""


@dataclass(slots=True)
class _Count:
    total: int = 0


_spent: ContextVar[tuple[int, _Count] | None] = ContextVar("hyperbeam.budget.spent", default=None)


@contextmanager
def request() -> Iterator[None]:
    """Count what is resolved inside as brought about by one request."""
    token = _spent.set((0, _Count()))
    try:
        yield
    finally:
        _spent.reset(token)


@asynccontextmanager
async def spend() -> AsyncIterator[None]:
    """Count one resolution by a device, after others have had their turn.

    Raises BadRequest `too_deep` or `too_many_resolutions`.
    """
    depth, count = _spent.get() or (0, _Count())
    count.total += 1
    if depth >= MAX_DEPTH:
        raise BadRequest(f"resolutions are at most {MAX_DEPTH} deep", error="too_deep")
    if count.total > MAX_TOTAL:
        raise BadRequest(
            f"over {MAX_TOTAL} resolutions for one request", error="too_many_resolutions"
        )
    await asyncio.sleep(0)  # one may take long, and the next is not the only one that waits
    token = _spent.set((depth + 1, count))
    try:
        yield
    finally:
        _spent.reset(token)
