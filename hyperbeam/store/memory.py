"""A store that lives and dies with its process: for tests and nodes that keep nothing."""

from __future__ import annotations

from ..errors import Unavailable
from .paths import GROUP, PathStore

DEFAULT_MAX_BYTES = 256 * 1024 * 1024


class MemoryStore(PathStore):
    """Records in a dict. `max_bytes`: keys and values together; a write past it is refused."""

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._records: dict[bytes, bytes] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._size = 0

    def open(self) -> None:
        """Nothing to do: it is ready when it is made."""

    def close(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._children.clear()
        self._size = 0

    async def flush(self) -> None:
        """Return at once: memory is as durable here as it gets."""

    def _get(self, key: bytes) -> bytes | None:
        return self._records.get(key)

    def _put(self, key: bytes, record: bytes) -> None:
        old = self._records.get(key)
        if record == GROUP and old is not None:
            return
        growth = len(record) - len(old) if old is not None else len(key) + len(record)
        if self._size + growth > self.max_bytes:
            raise Unavailable(
                f"the memory store is full ({self.max_bytes} bytes)", error="store_full"
            )
        self._size += growth
        self._records[key] = record
        while key:
            parent, slash, name = key.rpartition(b"/")
            self._children.setdefault(parent + slash, set()).add(name)
            key = parent

    def _names(self, prefix: bytes) -> set[bytes]:
        return self._children.get(prefix, set())

    def _any(self, prefix: bytes) -> bool:
        return prefix in self._children
