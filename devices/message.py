"""message@1.0: what a message without a device answers: its own keys.

Source: upstream dev_message.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from hyperbeam import Atom, BadRequest, Device, Message, NotFound, commitments, key
from hyperbeam.codecs.siginfo import BadSignature
from hyperbeam.codecs.structured import normalize_key
from hyperbeam.message import is_private, without

# Names that a request cannot set: the keys of this device and what steers `set` itself.
_RESERVED = frozenset(
    {
        "commitments",
        "committed",
        "committers",
        "get",
        "id",
        "keys",
        "method",
        "path",
        "remove",
        "set",
        "set-mode",
        "verify",
    }
)


class MessageDevice(Device):
    """The identity device: a key that is not one of its own is looked up in the message.

    `GET /~message@1.0&hello=world/hello` is `world`. Keys match whatever their case.
    """

    name: ClassVar[str] = "message@1.0"
    pure = True
    carries = True

    @key
    async def get(self, base: Any, request: Message) -> Any:
        """The value of the key that the request names in `key`."""
        name = request.get("key")
        if not isinstance(name, str):
            raise BadRequest("get needs the name of a key: get&key=NAME", param="key")
        return self.default(name, base, request)

    @key
    async def keys_(self, base: Any, request: Message) -> list[str]:
        """The names of the message's keys, sorted, without private ones."""
        return sorted(name for name in _as_message(base) if not is_private(name))

    @key
    async def set(self, base: Any, request: Message) -> Message:
        """The message with the request's keys in it; nested messages are merged.

        None or the atom `unset` removes a key. `set-mode=explicit` replaces nested
        messages. HTTP headers and an empty body of the request are not set.
        """
        message = _as_message(base)
        deep = request.get("set-mode") != "explicit"
        names = {name.lower(): name for name in message}
        for given, value in _settable(request).items():
            name = names.get(given.lower(), given)
            if value is None or (isinstance(value, Atom) and value == "unset"):
                message.pop(name, None)
            elif deep and isinstance(value, dict) and isinstance(message.get(name), dict):
                message[name] = _merge(message[name], value)
            else:
                message[name] = value
        return without(message, ("commitments",))

    @key(name="set-path")
    async def set_path(self, base: Any, request: Message) -> Message:
        """The message with the request's `value` as its key `path`; the atom `unset` removes it."""
        value = request.get("value")
        if value is None:
            raise BadRequest("set-path needs value=PATH", param="value")
        message = without(_as_message(base), ("commitments", "path"))
        unset = isinstance(value, Atom) and value == "unset"
        return message if unset else {**message, "path": value}

    @key
    async def remove(self, base: Any, request: Message) -> Message:
        """The message without the key `item` or the list of keys `items`."""
        items = request["item"] if "item" in request else request.get("items")
        names = [items] if isinstance(items, str) else items
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest("remove needs item=NAME or items+list=NAME,NAME", param="item")
        gone = {name.lower() for name in names}
        return {
            name: value for name, value in _as_message(base).items() if name.lower() not in gone
        }

    @key
    async def id(self, base: Any, request: Message) -> str:
        """The message's id (43 characters); of text or bytes their SHA-256.

        `committers`: whose commitments are in it, a list of addresses or `all`; without it none,
        and of a message that names itself by an HMAC that holds, that name.
        """
        if isinstance(base, (str, bytes)):
            data = base.encode() if isinstance(base, str) else base
            return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        message, wanted = _as_message(base), _wanted(request)
        if wanted in (None, "none"):
            named = commitments.named_id(_with_path(message, request))
            return commitments.unsigned_id(message) if named is None else named
        return commitments.message_id(message, wanted)

    @key
    async def committers(self, base: Any, request: Message) -> list[str]:
        """The addresses that the message's commitments name; `verify` says whether they hold."""
        return commitments.committers(_as_message(base))

    @key
    async def committed(self, base: Any, request: Message) -> list[str]:
        """The keys that all of the message's commitments are for, or those of `committers`."""
        message = _as_message(base)
        return commitments.committed(message, _chosen(message, request))

    @key
    async def verify(self, base: Any, request: Message) -> bool:
        """Whether the message's commitments hold, all or those of `committers`.

        False also where one of `committers` has none. A message without commitments is true.
        """
        message = _with_path(_as_message(base), request)
        wanted = _wanted(request)
        if isinstance(wanted, list) and set(wanted) - set(commitments.committers(message)):
            return False
        try:
            await asyncio.to_thread(commitments.verify, message, _chosen(message, request))
        except BadSignature:
            return False
        return True

    @key
    async def commit(self, base: Any, request: Message) -> Message:
        """The message with a commitment by the node's key, for the operator alone.

        `keys`: a list of those that it is for; without it all. What only says the order is left
        out: headers, and the body.
        """
        order = await self.node.operator.authorize(request)
        message = _without_request(_as_message(base), request)
        wanted = order.keys.get("keys", request.get("keys"))
        names = [wanted] if isinstance(wanted, str) else wanted
        if names is None:
            names = sorted(name for name in message if _is_own(name))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest("keys has to be a list of names", param="keys")
        missing = [name for name in names if name not in message]
        if missing:
            raise NotFound(missing[0])
        committed: Message = await self.node.operator.commit(
            order, message, [str(name) for name in names]
        )
        return committed

    def default(self, name: str, base: Any, request: Message) -> Any:
        """The value of the key `name`, in a list of the item with that number from 1."""
        if is_private(name.lower()):
            raise NotFound(name)
        if isinstance(base, list):
            return _item(base, name)
        if not isinstance(base, Mapping):
            raise NotFound(name)
        if name in base:
            return base[name]
        folded = name.lower()
        for found, value in base.items():
            if found.lower() == folded:
                return value
        raise NotFound(name)


def _with_path(message: Message, request: Message) -> Message:
    """A request that was signed with its path has it in its private part alone."""
    private = request.get("priv")
    if "path" in message or not isinstance(private, Mapping) or "target" not in private:
        return message
    target = private["target"]
    bare = target.partition("?")[0]
    said = private.get("path-header")
    return {**message, "path": said if said in (target, bare) else bare}


def _without_request(message: Message, request: Message) -> Message:
    """`message` without what it has of the request's own head and body."""
    private = request.get("priv")
    head = private.get("request-headers", ()) if isinstance(private, Mapping) else ()
    return {
        name: value
        for name, value in message.items()
        if not ((name in head or name in ("body", "method")) and value == request.get(name))
    }


def _is_own(name: str) -> bool:
    return not is_private(name) and name not in ("body", "commitments", "method", "path")


def _wanted(request: Message) -> str | list[str] | None:
    """`committers` of a request: `all`, `none` or addresses; None where it says nothing."""
    wanted = request.get("committers")
    if wanted is None or wanted in ("all", "none"):
        return None if wanted is None else str(wanted)
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise BadRequest(
            "committers has to be all, none or a list of addresses", param="committers"
        )
    return [str(one) for one in wanted]


def _chosen(message: Message, request: Message) -> list[str] | None:
    wanted = _wanted(request)
    return None if wanted is None else commitments.of_committers(message, wanted)


def _item(items: list[Any], number: str) -> Any:
    if number.isascii() and number.isdigit() and len(number) < 10:
        index = int(number)
        if 1 <= index <= len(items):
            return items[index - 1]
    raise NotFound(number)


def _as_message(base: Any) -> Message:
    """A copy of `base` as a message; a list has the keys `1`, `2`, ..."""
    if isinstance(base, Mapping):
        return dict(base)
    if isinstance(base, list):
        return {str(number): item for number, item in enumerate(base, 1)}
    raise BadRequest(f"a {type(base).__name__} has no keys: this works on messages and lists")


def _settable(request: Message) -> Message:
    private = request.get("priv")
    headers = private.get("request-headers", ()) if isinstance(private, Mapping) else ()
    return {
        normalize_key(name): value
        for name, value in request.items()
        if name.lower() not in _RESERVED
        and not is_private(name.lower())
        and name not in headers
        and not (name == "body" and not value)
    }


def _merge(old: Message, new: Message) -> Message:
    merged = dict(old)
    for name, value in new.items():
        there = merged.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            merged[name] = _merge(there, value)
        else:
            merged[name] = value
    return merged
