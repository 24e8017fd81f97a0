"""Records in memory, the least recently used of which go when it is full."""

from __future__ import annotations

import threading
from collections import OrderedDict

DEFAULT_SIZE = 32 * 1024 * 1024
_OVERHEAD = 200
"""Bytes that a record takes beside its key and value."""


class Recent:
    """`size`: bytes of keys and values together; 0 keeps nothing. For any thread."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.size = size
        self._held = 0
        self._records: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, or None."""
        with self._lock:
            value = self._records.get(key)
            if value is not None:
                self._records.move_to_end(key)
            return value

    def put(self, key: bytes, value: bytes) -> bool:
        """Keep `value`, dropping older records; False where it is larger than all the space."""
        growth = len(key) + len(value) + _OVERHEAD
        if growth > self.size:
            return False
        with self._lock:
            self._drop(key)
            self._records[key] = value
            self._held += growth
            while self._held > self.size:
                self._drop(next(iter(self._records)))
        return True

    def _drop(self, key: bytes) -> None:
        value = self._records.pop(key, None)
        if value is not None:
            self._held -= len(key) + len(value) + _OVERHEAD
