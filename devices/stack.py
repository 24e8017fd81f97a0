"""stack@1.0: several devices as one. Source: upstream dev_stack."""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import BadRequest, Device, Message, NotFound, Stream
from hyperbeam.message import without

_PREFIXES = ("input-prefix", "output-prefix")
_TRANSFORM = "stack-transform"


class Stack(Device):
    """A key is called on each device of `device-stack` (a list, or a message with the keys
    `1`, `2`, ...), on what the device before gave (`mode` `fold`), or on the message itself,
    the results by number (`map`).

    A device that has not the key is passed over. One that answers with a plain value ends
    the stack with it; `skip` (dedup@1.0) ends the pass, `pass` (multipass@1.0) begins another,
    counted in `pass`. `input-prefixes` and `output-prefixes` give each device its
    `input-prefix` and `output-prefix`. `transform/2/KEY` calls KEY on device 2 alone.
    """

    name = "stack@1.0"
    carries = True
    excludes: ClassVar[frozenset[str]] = frozenset({"keys", "set"})

    async def default(self, name: str, base: Any, request: Message) -> Any:
        """What the devices make of the key."""
        if not isinstance(base, dict):
            raise BadRequest("stack@1.0 works on messages")
        if base.get(_TRANSFORM) is True:
            return _transformed(without(base, (_TRANSFORM,)), name)
        if name == "transform":
            return {**base, _TRANSFORM: True}
        if name in ("prefix", *_PREFIXES):
            return base.get("output-prefix" if name == "prefix" else name, "")
        if not isinstance(base.get("device-stack"), list | dict):
            raise BadRequest(
                "stack@1.0 needs `device-stack`: a list of devices, or a message of 1, 2, ...",
                param="device-stack",
            )
        mode = str(request.get("mode", base.get("mode", "fold"))).lower()
        if mode not in ("fold", "map"):
            raise BadRequest(f"mode is fold or map, not {mode[:64]!r}", param="mode")
        asked = {**request, "path": name}
        return await (self._fold(base, asked) if mode == "fold" else self._map(base, asked))

    async def _fold(self, base: Message, request: Message) -> Any:
        own = {key: base[key] for key in ("device", "pass", *_PREFIXES) if key in base}
        state = {**base, "pass": 1}
        number = 1
        while _at(base, number) is not None:
            state = _transformed(state, str(number), base)
            number += 1
            try:
                result = await self._call(state, request)
            except NotFound as error:
                if error.name != request["path"]:
                    raise
                continue
            if not isinstance(result, dict):
                return result
            status = (result.get("priv") or {}).get("stack")
            state = without(result, ("priv",))
            if status == "skip":
                break
            if status == "pass":
                if str(base.get("allow-multipass", True)).lower() == "false":
                    raise BadRequest("a device wants another pass, and allow-multipass is false")
                state["pass"] = _pass(state) + 1
                number = 1
        state = without(state, ("device", "device-key", "pass", *_PREFIXES))
        return {**state, **own}

    async def _map(self, base: Message, request: Message) -> Message:
        results: Message = {}
        number = 1
        while _at(base, number) is not None:
            try:
                result = await self._call(_transformed(base, str(number)), request)
            except NotFound as error:
                if error.name != request["path"]:
                    raise
            else:
                results[str(number)] = (
                    without(result, ("priv",)) if isinstance(result, dict) else result
                )
            number += 1
        return results

    async def _call(self, state: Message, request: Message) -> Any:
        result = await self.node.resolve(state, request)
        if isinstance(result, Stream):
            await result.aclose()
            raise BadRequest("a device of a stack cannot give a stream")
        return result


def _transformed(base: Message, number: str, stack: Message | None = None) -> Message:
    """`base` with the device of that number, from `stack` where the state has lost it."""
    device = _at(stack or base, number)
    if device is None:
        raise NotFound(number, f"there is no device {number[:64]!r} in device-stack")
    prefixes = {name: _item((stack or base).get(f"{name}es"), number) for name in _PREFIXES}
    return {
        **without(base, _PREFIXES),
        "device": device,
        "device-key": number,
        **{name: prefix for name, prefix in prefixes.items() if prefix is not None},
    }


def _at(base: Message, number: int | str) -> str | None:
    device = _item(base.get("device-stack"), str(number))
    if isinstance(device, dict):
        device = device.get("device", device.get("name"))
    if device is not None and not isinstance(device, str):
        raise BadRequest("device-stack has to name devices", param="device-stack")
    return device


def _item(items: Any, number: str) -> Any:
    if isinstance(items, dict):
        return items.get(number)
    if isinstance(items, list) and number.isascii() and number.isdigit() and len(number) < 6:
        index = int(number)
        return items[index - 1] if 1 <= index <= len(items) else None
    return None


def _pass(state: Message) -> int:
    count = state.get("pass", 1)
    if type(count) is not int:
        raise BadRequest("pass has to be an integer", param="pass")
    return count
