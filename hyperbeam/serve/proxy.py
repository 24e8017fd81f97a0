"""What stands in a worker for a device of which there is one, in the supervisor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..device import Device, Key, Stream
from ..faults import DeviceFault
from ..message import Message
from ..observe.request_id import RequestInfo, current, enter
from ..resolver import call

if TYPE_CHECKING:
    from ..node import Node

Ask = Callable[[str, Any], Awaitable[Any]]
"""Calls a name of the supervisor's end of the channel."""
CALL, DESCRIBE = "device-call", "device-describe"


class Proxy(Device):
    """A device whose keys are called in the supervisor, with the same name, keys and words."""

    ask: Ask

    async def described(self) -> Message:
        found: Message = await self.ask(DESCRIBE, self.name)
        return found


def proxy(device: type[Device], ask: Ask) -> type[Proxy]:
    """The class that stands for `device`; `ask` reaches the supervisor."""
    keys = {name: replace(key, is_async=True) for name, key in device.keys.items()}
    members: dict[str, Any] = {key.method: _forward(key) for key in keys.values()}
    default = getattr(device, "default", None)
    if default is not None:
        members["default"] = _any_key(default.__doc__)
    members |= {
        "__doc__": device.__doc__,
        "__module__": device.__module__,
        "name": device.name,
        "single": True,
        "carries": True,
        "excludes": device.excludes,
        "Config": device.Config,
        "keys": keys,
        "ask": staticmethod(ask),
    }
    return type(device.__name__, (Proxy,), members)


async def answer_call(node: Node, asked: Any) -> Any:
    """The result of a key that a worker's proxy calls. Raises what the key raises."""
    name, called, base, request, request_id = asked
    if request_id:
        enter(RequestInfo(request_id))
    device = node.device(name)
    result = await call(device, device.keys.get(called), called, base, request)
    if isinstance(result, Stream):
        await result.aclose()
        raise DeviceFault(f"{name}/{called} gives a stream, which a single device cannot")
    return result


async def answer_describe(node: Node, name: Any) -> Message:
    """What a device says of itself."""
    return await node.device(name).described()


def _forward(key: Key) -> Callable[..., Awaitable[Any]]:
    async def forward(self: Proxy, base: Any, request: Message) -> Any:
        return await _call(self, key.name, base, request)

    forward.__doc__ = key.doc
    return forward


def _any_key(doc: str | None) -> Callable[..., Awaitable[Any]]:
    async def default(self: Proxy, called: str, base: Any, request: Message) -> Any:
        return await _call(self, called, base, request)

    default.__doc__ = doc
    return default


async def _call(device: Proxy, called: str, base: Any, request: Message) -> Any:
    info = current()
    request_id = "" if info is None else info.id
    return await device.ask(CALL, [device.name, called, base, request, request_id])
