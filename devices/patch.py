"""patch@1.0: moves what some messages say into others. Source: upstream dev_patch."""

from __future__ import annotations

from typing import Any

from hyperbeam import BadRequest, Device, Message, NotFound, key
from hyperbeam.codecs.structured import normalize_key
from hyperbeam.message import is_private, public, without

MAX_PARTS = 64


class Patch(Device):
    """Moves messages within a message: from `patch-from` (or `from`) to `patch-to` (or `to`).

    Both are paths of keys, in the request or else the message; `/` is all of it. `req:a/b` and
    `base:a/b` say which of the two the source is in; without that it is the message.
    """

    name = "patch@1.0"
    pure = True
    carries = True

    @key
    async def init(self, base: Any, request: Message) -> Any:
        """The message as it is."""
        return base

    @key
    async def normalize(self, base: Any, request: Message) -> Any:
        """The message as it is."""
        return base

    @key
    async def snapshot(self, base: Any, request: Message) -> Any:
        """The message as it is."""
        return base

    @key
    async def compute(self, base: Any, request: Message) -> Message:
        """As `patches`."""
        return await self._move(base, request, every=False)

    @key
    async def patches(self, base: Any, request: Message) -> Message:
        """Move the source's messages with `method` PATCH or `device` patch@1.0, without these
        keys, onto the target, merged in the order of their names."""
        return await self._move(base, request, every=False)

    @key
    async def all(self, base: Any, request: Message) -> Message:
        """Move everything in the source to the target, by the names it has."""
        return await self._move(base, request, every=True)

    async def _move(self, base: Any, request: Message, *, every: bool) -> Message:
        if not isinstance(base, dict):
            raise BadRequest("patch@1.0 works on messages")
        scope, source = _source(_said("from", base, request))
        target = _keys(_said("to", base, request))
        if scope == "req":
            value = _get(await self._opened(public(request), source), source)
        else:
            base = await self._opened(base, source)
            value = _get(base, source)
        base = await self._opened(base, target)
        items = {
            name: await self.node.cache.found(item) for name, item in _items(value, source).items()
        }
        moved, left = (dict(items), Message()) if every else self._patches(items)
        result = base
        if scope != "req":
            result = _put(base, source, None if every else left) if source else left
        return _merged(result, target, moved)

    async def _opened(self, message: Message, keys: list[str]) -> Message:
        """`message` with what lies at links along `keys` in their place."""
        if not keys or keys[0] not in message:
            return message
        name, *rest = keys
        value = await self.node.cache.found(message[name])
        if isinstance(value, dict):
            value = await self._opened(value, rest)
        return {**message, name: value}

    def _patches(self, items: Message) -> tuple[Message, Message]:
        moved: Message = {}
        left: Message = {}
        owned = {id(moved)}
        for name in sorted(items, key=_order):
            one = items[name]
            if isinstance(one, dict) and (
                one.get("method") == "PATCH" or one.get("device") == self.name
            ):
                dropped = ("method", "commitments") + (
                    ("device",) if one.get("device") == self.name else ()
                )
                _merge_into(moved, without(one, dropped), owned)
            else:
                left[name] = one
        return moved, left


def _said(name: str, base: Message, request: Message) -> str:
    for key_ in (f"patch-{name}", name):
        for place in (request, base):
            value = place.get(key_)
            if value is not None:
                if not isinstance(value, str):
                    raise BadRequest(f"{key_} has to be a path of keys", param=key_)
                return value
    return "/"


def _source(path: str) -> tuple[str, list[str]]:
    scope, colon, rest = path.partition(":")
    if colon and scope.strip("/") in ("base", "req", "request"):
        return ("base" if scope.strip("/") == "base" else "req"), _keys(rest)
    return "base", _keys(path)


def _keys(path: str) -> list[str]:
    keys = [normalize_key(part) for part in path.split("/") if part]
    if len(keys) > MAX_PARTS:
        raise BadRequest(f"a path of keys has at most {MAX_PARTS} parts")
    if any(is_private(name) for name in keys):
        raise BadRequest("a private key cannot be patched")
    return keys


def _get(value: Any, keys: list[str]) -> Any:
    for count, name in enumerate(keys, 1):
        if isinstance(value, list):
            value = _items(value, keys)
        if not isinstance(value, dict) or name not in value:
            raise NotFound("/".join(keys[:count]))
        value = value[name]
    return value


def _items(value: Any, path: list[str]) -> Message:
    if isinstance(value, list):
        return {str(number): item for number, item in enumerate(value, 1)}
    if not isinstance(value, dict):
        raise BadRequest(f"{'/'.join(path)!r} is no message: there is nothing to move out of it")
    return value


def _put(message: Message, keys: list[str], value: Message | None) -> Message:
    """`message` with `value` at `keys`, which are there; None takes what is there away."""
    name, *rest = keys
    if not rest:
        return without(message, (name,)) if value is None else {**message, name: value}
    return {**message, name: _put(_items(message[name], keys), rest, value)}


def _merged(message: Message, keys: list[str], value: Message) -> Message:
    if not keys:
        return _merge(message, value)
    name, *rest = keys
    below = message.get(name)
    within: Message = below if isinstance(below, dict) else {}
    return {**message, name: _merged(within, rest, value)}


def _merge(old: Message, new: Message) -> Message:
    merged = dict(old)
    _merge_into(merged, new, {id(merged)})
    return merged


def _merge_into(merged: Message, new: Message, owned: set[int]) -> None:
    """`owned`: the ids of the messages that nobody else has; others are copied once."""
    for name, value in new.items():
        if is_private(name):
            continue
        below = merged.get(name)
        if not isinstance(below, dict) or not isinstance(value, dict):
            merged[name] = value
            continue
        if id(below) not in owned:
            merged[name] = below = dict(below)
            owned.add(id(below))
        _merge_into(below, value, owned)


def _order(name: str) -> tuple[int, str]:
    number = name.isascii() and name.isdigit() and len(name) < 10
    return (int(name), "") if number else (1 << 40, name)
