"""cache@1.0: messages and values of the node's store, over paths.

Source: upstream dev_cache.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from hyperbeam import BadRequest, Device, Forbidden, Link, Message, key
from hyperbeam.codecs import json
from hyperbeam.message import without
from hyperbeam.results import MISSING

MAX_PARTS = 64


class CacheConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[cache]`: who may write."""

    writers: Literal["none", "all"] = "none"
    """Who may write over HTTP: `none`, or `all` who can reach the node. The node's own
    devices always may."""


class CacheDevice(Device):
    """Reads and writes the node's store."""

    name = "cache@1.0"
    carries = True
    Config = CacheConfig
    changeable = frozenset({"writers"})

    @key
    async def read(self, base: Any, request: Message) -> Any:
        """What is stored under an id: `/~cache@1.0/read?target=ID`, or `?read=ID`.

        `ID/key/key` leads into a message, `data/ID` is a value that was written as bytes,
        `BASE/REQUEST`, a hashpath, is a result that was kept. Nested messages that lie under
        their own ids come as links. `scope=local` asks no other node.
        """
        target = _target(base, request)
        cache = self.node.cache
        local = request.get("scope") == "local"
        if isinstance(target, Link):
            return cache.load(target) if local else await cache.found(target)
        parts = [part for part in target.split("/") if part]
        if len(parts) > MAX_PARTS:
            raise BadRequest(f"target has {len(parts)} parts; the limit is {MAX_PARTS}")
        if not parts:
            raise BadRequest("target is empty: give an id, such as read?target=ID", param="target")
        if parts[0] == "data" and len(parts) == 2:
            return cache.read_value(parts[1]) if local else await cache.find_value(parts[1])
        if len(parts) == 2:
            found = cache.results.read("/".join(parts))
            if found is not MISSING:
                return found
        return cache.read(*parts) if local else await cache.find(*parts)

    @key
    async def write(self, base: Any, request: Message) -> Message:
        """Store the body, or without one the keys of the request; answers
        `{"status": 200, "path": ID}` once it is on the disk, for a body that is no message with
        `data/ID`, which `read` takes.

        A body of type application/json is read as a message. Names of HTTP headers are no keys
        of the message.
        """
        self._check_writer(request)
        cache = self.node.cache
        content = cache.load(_content(request))
        if isinstance(content, dict):
            path = await asyncio.to_thread(cache.write, content)
        elif isinstance(content, (str, bytes)):
            path = await asyncio.to_thread(cache.write_value, content)
        else:
            raise BadRequest(
                f"a {type(content).__name__} cannot be stored by itself: put it in a message",
                param="body",
            )
        await cache.flush()
        return {"status": 200, "path": path}

    def _check_writer(self, request: Message) -> None:
        remote = "client" in (request.get("priv") or {})
        if remote and self.config.writers != "all":
            raise Forbidden(
                'writing to the store over HTTP is off; `writers = "all"` under [cache] in '
                "hyperbeam.toml lets everybody who can reach the node write"
            )


def _target(base: Any, request: Message) -> str | Link:
    places = [request, base] if isinstance(base, dict) else [request]
    for place in places:
        for name in ("target", "read"):
            value = place.get(name)
            if isinstance(value, (str, Link)):
                return value
            if value is not None:
                raise BadRequest(f"{name} has to be an id", param=name)
    raise BadRequest("say what to read: read?target=ID", param="target")


def _content(request: Message) -> Any:
    """What a write request wants stored."""
    body = request.get("body")
    if body is None or body in ("", b""):
        head = (request.get("priv") or {}).get("request-headers", ())
        message = without(request, {"body", "method", "path", "priv", *head})
        if not message:
            raise BadRequest("nothing to write: send a body, or keys in the path", param="body")
        return message
    kind = str(request.get("content-type", "")).partition(";")[0].strip().lower()
    if kind == "application/json" and isinstance(body, (str, bytes)):
        return json.decode(body.encode() if isinstance(body, str) else body)
    return body
