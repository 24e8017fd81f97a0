"""What a verifier may remember between checks: RIMs that verified and OCSP answers that stand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Any

LONGEST = timedelta(hours=24)


class Cache:
    """Bounded memory of verified things, safe to share between threads.

    Keys are made of digests, so that nothing stands under a name that a sender chose.
    """

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, ...], tuple[datetime | None, Any]] = OrderedDict()

    def get(self, key: tuple[str, ...], now: datetime) -> Any:
        """What stands under `key` at `now`, or None."""
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            until, value = found
            if until is not None and now > until:
                return None
            self._items.move_to_end(key)
            return value

    def put(self, key: tuple[str, ...], value: Any, until: datetime | None = None) -> None:
        """Keep `value` until `until`, or as long as there is room."""
        with self._lock:
            self._items[key] = (until, value)
            self._items.move_to_end(key)
            while len(self._items) > self._size:
                self._items.popitem(last=False)

    def drop(self, key: tuple[str, ...]) -> None:
        """Forget what stands under `key`."""
        with self._lock:
            self._items.pop(key, None)
