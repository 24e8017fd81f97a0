"""What the processes of a node tell each other: named values, written by one, read by all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

Callback = Callable[[Any], None]

log = logging.getLogger("hyperbeam.node")


class Board:
    """Named values of text, numbers, None, lists and messages of these.

    A single process or the supervisor publishes; a worker's board shows what the supervisor
    published, in that order, and after the key set that was made before it. Used on the event
    loop only.
    """

    def __init__(self, *, writable: bool = True) -> None:
        self._writable = writable
        self._values: dict[str, Any] = {}
        self._callbacks: dict[str, list[Callback]] = {}
        self._all: list[Callable[[str, Any], None]] = []

    def publish(self, name: str, value: Any) -> None:
        """Show `value` under `name` in every process. It is not to be changed afterwards.

        RuntimeError in a worker.
        """
        if not self._writable:
            raise RuntimeError(f"{name!r} is published by the supervisor, not by a worker")
        self.show(name, value)

    def show(self, name: str, value: Any) -> None:
        """Have this process's board show `value`, and tell who subscribed."""
        self._values[name] = value
        for seen in self._all:
            seen(name, value)
        for callback in self._callbacks.get(name, ()):
            try:
                callback(value)
            except Exception:
                log.exception("what waits for %r failed", name)

    def get(self, name: str, default: Any = None) -> Any:
        """What was published last under `name`."""
        return self._values.get(name, default)

    def subscribe(self, name: str, callback: Callback) -> None:
        """Call `callback` with every later value of `name`."""
        self._callbacks.setdefault(name, []).append(callback)

    def subscribe_all(self, callback: Callable[[str, Any], None]) -> None:
        """Call `callback` with every later name and value."""
        self._all.append(callback)

    def values(self) -> dict[str, Any]:
        """All that is shown now, by name."""
        return dict(self._values)
