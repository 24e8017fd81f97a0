"""What a path's parts before the last say to it, and who asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from hyperbeam import Message

from .validate import API

_MARK = "inference.api"
_TEE = "inference.tee"


def api(base: Message) -> API | None:
    return "chat" if mark(base) == "chat" else None


def mark(base: Message) -> str:
    """The part of the path that was taken before, `v1` or `chat`."""
    return str(_private(base).get(_MARK, ""))


def marked(base: Message, part: str, request: Message) -> Message:
    private = {**_private(base), _MARK: part}
    if asks_tee(request):
        private[_TEE] = True
    return {**base, "priv": private}


def tee_before(base: Message) -> bool:
    """Whether an earlier part of the path asks for evidence."""
    return bool(_private(base).get(_TEE)) or asks_tee(base)


def asks_tee(message: Message) -> bool:
    return message.get("tee") is not None or message.get("x-tee") is not None


def client(request: Message) -> str:
    return str(_private(request).get("client", ""))


def target(request: Message) -> str:
    """The path and query as they were sent; "" of a call from inside the node."""
    return str(_private(request).get("target", ""))


def head(request: Message) -> Collection[str]:
    """The names of the headers that were sent; none of a call from inside the node."""
    return cast(Collection[str], _private(request).get("request-headers", ()))


def in_sub_path(request: Message) -> bool:
    """Whether what is called stands in a sub-path of the target."""
    return bool(_private(request).get("sub-path"))


def _private(base: Message) -> Mapping[str, Any]:
    private = base.get("priv")
    return private if isinstance(private, Mapping) else {}
