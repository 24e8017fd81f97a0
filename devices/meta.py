"""meta@1.0: what this node is. Source: upstream dev_meta."""

from __future__ import annotations

import platform
import time
from typing import Any

from hyperbeam import Device, Message, NotFound, __version__, key
from hyperbeam.verify import jcs


class Meta(Device):
    """Says what runs here; nothing here changes the node."""

    name = "meta@1.0"

    async def start(self) -> None:
        self._started = int(time.time())

    @key
    async def info(self, base: Any, request: Message) -> Message:
        """The node's public settings."""
        config = self.node.config
        return {
            "node": "hyperbeam-node",
            "version": __version__,
            "host": config.http.host,
            "port": self.node.server.port,
            "address": self.node.identity.address,
            "profile": config.profile,
            "started": self._started,
            "store": config.store.kind,
            "devices": sorted(self.node.devices),
            "routes": [route.describe() for route in self.node.routes.routes],
        }

    @key
    async def build(self, base: Any, request: Message) -> Message:
        """Which software this is."""
        return {
            "node": "hyperbeam-node",
            "version": __version__,
            "python": platform.python_version(),
            "system": platform.system().lower(),
            "machine": platform.machine(),
        }

    @key
    async def devices(self, base: Any, request: Message) -> Message:
        """Every device with its keys and what they do, and why others did not load."""
        loaded = {
            name: {
                "name": name,
                "description": _first_paragraph(device.__doc__),
                "keys": {key.name: _first_paragraph(key.doc) for key in type(device).keys.values()},
                **await device.described(),
            }
            for name, device in sorted(self.node.devices.items())
        }
        return {"devices": loaded, "failed": dict(self.node.failures)}

    @key(rest=True)
    def keyset(self, base: Any, request: Message) -> Message:
        """The keys that sign this node's answers, signed by its identity: now, or those of a name.

        `/keyset` or `/keyset/<name>`, as JSON of RFC 8785.
        """
        names: list[str] = request["rest"]
        if len(names) > 1:
            raise NotFound(names[1], "a key set's name is the end of its path")
        found = self.node.keys.find(names[0]) if names else self.node.keys.current.message
        if found is None:
            raise NotFound(names[0], f"no key set {names[0][:100]!r} is known here")
        return {
            "content-type": "application/json",
            "cache-control": "no-cache",
            "body": jcs.encode(found),
        }

    @key
    async def live(self, base: Any, request: Message) -> Message:
        """Whether the process answers, ready or not."""
        return {"live": True}


def _first_paragraph(doc: str | None) -> str:
    return " ".join((doc or "").strip().partition("\n\n")[0].split())
