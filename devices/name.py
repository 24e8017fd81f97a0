"""name@1.0: names for messages. Source: upstream dev_name."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from hyperbeam import BadRequest, ConfigError, Device, Message, NotFound
from hyperbeam.message import is_id


class NameConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[name]`: what names stand for."""

    names: dict[str, str] = {}
    """Values by name, such as ids of messages; asked before the resolvers."""
    resolvers: tuple[dict[str, Any], ...] = ()
    """Messages with a `device` whose key `lookup` gives the value of the name in `key`; the
    first that knows it counts."""


class Name(Device):
    """`/~name@1.0/NAME` is the message whose id the name stands for; `NAME&load=false` the id."""

    name = "name@1.0"
    carries = True
    Config = NameConfig
    excludes: ClassVar[frozenset[str]] = frozenset({"keys", "set"})

    async def start(self) -> None:
        for resolver in self.config.resolvers:
            if not isinstance(resolver.get("device"), str):
                raise ConfigError("[name]: a resolver needs a device")
            self.node.device(resolver["device"])

    async def default(self, name: str, base: Any, request: Message) -> Any:
        """What the name stands for, loaded where it is an id or `ID/key`."""
        value = await self._lookup(name, request)
        load = str(request.get("load", True)).lower()
        if load not in ("true", "false"):
            raise BadRequest("load is true or false", param="load")
        parts = value.split("/") if isinstance(value, str) else []
        if load == "true" and parts and is_id(parts[0]):
            return await self.node.cache.find(*parts)
        return value

    async def _lookup(self, name: str, request: Message) -> Any:
        if name in self.config.names:
            return self.config.names[name]
        asked = {"path": "lookup", "key": name, "priv": request.get("priv")}
        for resolver in self.config.resolvers:
            try:
                return await self.node.resolve(dict(resolver), asked)
            except NotFound:
                continue
        raise NotFound(name, f"the name {name[:200]!r} is not known here")
