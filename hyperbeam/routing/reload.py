"""The route table read again when its file changes, while the node runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..errors import ConfigError, HyperbeamError
from .reading import load_routes
from .table import RouteTable

INTERVAL = 0.25
"""Seconds between looks at the file. A change counts once two looks have seen the same."""

Version = tuple[int, int, int, int]

log = logging.getLogger("hyperbeam.routing")


class RouteWatcher:
    """Calls `apply` with each new sound table of the file `path`; `apply` may refuse it too.

    A table that is refused, and a file that is gone, leave what there is; `error` says why,
    and is "" again once a table was taken. `on_error` is told of every change of it.
    The file is looked at, not watched, which works the same for every editor and file system.
    """

    def __init__(
        self,
        path: Path,
        apply: Callable[[RouteTable], Awaitable[None]],
        on_error: Callable[[str], None] = lambda error: None,
    ) -> None:
        self.path = path
        self.error = ""
        self._apply = apply
        self._on_error = on_error
        self._read = self._version()
        self._seen = self._read
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look: changes since this object was made count."""
        self._task = asyncio.create_task(self._run(), name="routes")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def reload(self) -> None:
        """Read the file now, changed or not. Raises ConfigError; then the old table stays."""
        self._read = self._seen = self._version()
        try:
            table = await asyncio.to_thread(load_routes, self.path)
            if not table.routes:
                raise ConfigError(f"{self.path}: it has no routes now")
            await self._apply(table)
        except ConfigError as error:
            self._failed(error.detail)
            raise
        self._failed("")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self._look()
            except HyperbeamError as error:
                log.error("%s: the routes stay as they are", error.detail)
            except Exception:
                log.exception("the routes stay as they are")

    async def _look(self) -> None:
        seen, self._seen = self._seen, self._version()
        # A file that is being written changes from look to look.
        if self._seen == self._read or self._seen != seen:
            return
        if self._seen is None:
            self._read = None
            self._failed(f"{self.path}: the file is gone")
            raise ConfigError(self.error)
        await self.reload()
        log.info("routes read again: %s", self.path)

    def _failed(self, error: str) -> None:
        if error != self.error:
            self.error = error
            self._on_error(error)

    def _version(self) -> Version | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
