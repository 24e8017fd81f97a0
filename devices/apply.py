"""apply@1.0: resolves what a message holds. Source: upstream dev_apply."""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import BadRequest, Device, Message, NotFound, Stream, key
from hyperbeam.message import is_private, public, without

MAX_MESSAGES = 64


class Apply(Device):
    """`/KEY` resolves what lies under KEY: a path, a message with a `path`, or a list of
    messages, the first of which is the base of the next.

    Where the request has `base` and `request` (names of keys), KEY is called on the message
    under the one with the message under the other; `pair` does so without a KEY of its own.
    A name is looked up in the request, then in the message; `request:NAME` and `base:NAME`
    say in which, `request:` and `base:` are all of it. What is resolved has the rights of
    the request.
    """

    name = "apply@1.0"
    carries = True
    excludes: ClassVar[frozenset[str]] = frozenset({"keys", "set"})

    @key
    async def pair(self, base: Any, request: Message) -> Any:
        """The message or path under `request`, resolved on what lies under `base`."""
        return await self._pair(None, _message(base), request)

    async def default(self, name: str, base: Any, request: Message) -> Any:
        """What lies under `name`, resolved."""
        base = _message(base)
        if request.get("base") is not None and request.get("request") is not None:
            return await self._pair(name, base, request)
        asked = {**request, "source": name}
        found = _find(_named("source", base, asked), base, asked)
        return await self._resolve(None, found, request)

    async def _pair(self, path: str | None, base: Message, request: Message) -> Any:
        asked = _find(_named("request", base, request), base, request)
        on = _find(_named("base", base, request), base, request)
        if path is not None:
            asked = {**_message(asked), "path": path}
        return await self._resolve(on, asked, request)

    async def _resolve(self, base: Any, asked: Any, request: Message) -> Any:
        private = request.get("priv") or {}
        if not isinstance(asked, list):
            return await self.node.resolve(base, _request(asked, private))
        if not 1 <= len(asked) <= MAX_MESSAGES:
            raise BadRequest(f"a list to resolve has 1 to {MAX_MESSAGES} messages")
        result, *later = asked
        for one in later:
            if isinstance(result, Stream):
                await result.aclose()
                raise BadRequest("nothing can follow a stream")
            result = await self.node.resolve(result, _request(one, private))
        return result


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise BadRequest(f"a {type(value).__name__} is no message that could be applied")
    return value


def _request(asked: Any, private: Message) -> Message:
    if isinstance(asked, bytes):
        asked = asked.decode("utf-8", "replace")
    message = {"path": asked} if isinstance(asked, str) else public(_message(asked))
    if not isinstance(message.get("path"), str) or not message["path"].strip("/"):
        raise BadRequest("a message that is to be resolved needs a path", param="path")
    return {**message, "priv": private}


def _named(name: str, base: Message, request: Message) -> str:
    path = request.get(name, base.get(name))
    if not isinstance(path, str):
        raise NotFound(name, f"nothing says where the {name} is: {name} names a key")
    return path


def _find(path: str, base: Message, request: Message) -> Any:
    scope, colon, rest = path.strip("/").partition(":")
    if colon and scope in ("base", "request", "req"):
        places = [base if scope == "base" else without(request, ("priv",))]
        path = rest
    else:
        places = [without(request, ("priv",)), base]
    parts = [part for part in path.split("/") if part]
    for place in places:
        try:
            return _at(place, parts)
        except KeyError:
            continue
    raise NotFound(path, f"there is no {path[:200]!r} to apply")


def _at(value: Any, parts: list[str]) -> Any:
    for part in parts:
        if is_private(part):
            raise KeyError(part)
        if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 6:
            value = {str(number): item for number, item in enumerate(value, 1)}
        if not isinstance(value, dict):
            raise KeyError(part)
        value = value[part]
    return public(value) if isinstance(value, dict) else value
