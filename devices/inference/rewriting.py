"""A stream that is made from another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self


class Rewriting(ABC):
    """What `_run` makes of `source`. Closing it closes `source` too, also before it began."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._chunks = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """End the stream and the work behind it."""
        await self._chunks.aclose()
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    @abstractmethod
    def _run(self) -> AsyncGenerator[bytes, None]:
        """The chunks."""
