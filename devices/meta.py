"""meta@1.0: what this node is. Source: upstream dev_meta."""

from __future__ import annotations

import logging
import platform
import time
from typing import Any

from hyperbeam import Device, Message, MethodNotAllowed, NotFound, __version__, key
from hyperbeam.about import about
from hyperbeam.faults import check
from hyperbeam.verify import jcs

log = logging.getLogger("hyperbeam.devices")


class Meta(Device):
    """Says what runs here, and takes the operator's orders."""

    name = "meta@1.0"

    async def start(self) -> None:
        self._started = int(time.time())

    @key
    async def info(self, base: Any, request: Message) -> Message:
        """The node's public settings. A POST that the operator has signed changes some of them.

        Without settings in it that POST gives those that can change, as they are.
        """
        if request.get("method") == "POST":
            operator = self.node.operator
            order = await operator.authorize(request)
            if order.keys:
                changed: Message = await operator.change(order)
                return changed
            return {**self._info(), "settings": operator.settings()}
        return self._info()

    @key
    async def claim(self, base: Any, request: Message) -> Message:
        """Makes who has signed this POST the operator, by the `token` that the node printed."""
        if request.get("method") != "POST":
            raise MethodNotAllowed("claim takes a signed POST: see `hyperbeam operator claim`")
        claimed: Message = await self.node.operator.claim(request)
        return claimed

    def _info(self) -> Message:
        config, operator = self.node.config, self.node.operator
        return {
            "node": "hyperbeam-node",
            "version": __version__,
            "host": config.http.host,
            "port": self.node.server.port,
            "address": self.node.identity.address,
            "profile": config.profile,
            "started": self._started,
            "store": config.store.kind,
            "operator": operator.address or "unclaimed",
            "initialized": "permanent" if operator.permanent else bool(operator.address),
            "node_history": operator.history,
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
        """Every device with its keys and what they do, and why others did not load.

        `devices`: by name `{name, version, docs, keys: {KEY: docs}}`, with `default` where other
        keys do something, and what the device itself adds. `failed`: the reasons by name.
        """
        loaded = {
            name: {**await _described(device), **about(type(device))}
            for name, device in sorted(self.node.devices.items())
        }
        failed: dict[str, str] = {}
        for failure in self.node.failures.values():
            others = [failed[failure.name]] if failure.name in failed else []
            failed[failure.name] = "; ".join([*others, failure.public])
        return {"devices": loaded, "failed": dict(sorted(failed.items()))}

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


async def _described(device: Device) -> Message:
    """What a device adds of itself; nothing where that fails: it is no reason to show none."""
    try:
        said = dict(await device.described())
        check(said, device.name, "describe", None, None)
        return said
    except Exception:
        log.exception("%s does not describe itself", device.name)
        return {}
