"""A node of one process, as `hyperbeam serve` runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..config import Config
from ..errors import HyperbeamError
from ..node import Node
from ..routing import load_routes, routes_file
from .settings import differences

log = logging.getLogger("hyperbeam.node")


class Single:
    """A node that answers in this process. `reread` reads the configuration anew."""

    def __init__(self, config: Config, reread: Callable[[], Config]) -> None:
        self.node = Node(config)
        self._reread = reread

    async def start(self) -> None:
        """Returns when the node serves. Raises ConfigError."""
        await self.node.start()

    async def stop(self, seconds: float) -> None:
        """Finish running answers for at most `seconds`, then end everything."""
        await self.node.stop(seconds)

    async def cut(self) -> None:
        """Do not wait any longer for running answers."""
        await self.node.server.drain(0)

    def kill(self) -> None:
        """End what would go on without this process: nothing would."""

    async def running(self) -> int:
        """Requests that are being answered."""
        return self.node.server.in_flight

    async def reload(self) -> None:
        """Take the route table anew; say which other settings need a restart.

        What is wrong is refused with a line in the log, and all stays as it was.
        """
        node = self.node
        try:
            later = differences(node.config, self._reread())
            await node.use_routes(await asyncio.to_thread(load_routes, routes_file(node.config)))
        except HyperbeamError as error:
            log.error("not reloaded, all goes on as it was: %s", error.detail)
            return
        if later:
            log.warning("not reloaded, as it needs a restart: %s", ", ".join(later))
        log.info("reloaded: the routes of %s", node.routes.source)
