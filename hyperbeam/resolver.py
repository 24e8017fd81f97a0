"""resolve(base, request): the one operation of the node.

Each step of a path is called on the result of the step before it: find the device
of the base message, call its key, go on with what it gives.
Source: upstream hb_ao, hb_singleton.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import hashpath
from .device import Device, Key, Stream, seal
from .errors import BadRequest, HyperbeamError, NotFound
from .faults import DeviceFault, check, check_raised, contained
from .grouping import group_of
from .message import DEFAULT_DEVICE, Link, Message, is_private, without
from .path import Resolve, Step
from .results import MISSING, SILENT, control_of, may_store, not_cached

if TYPE_CHECKING:
    from .node import Node

INDEX = "index"
TURN = 4
"""Steps of a path after which others have their turn: each may take long with a large message."""
_PRIV = frozenset({"priv"})

log = logging.getLogger("hyperbeam.resolver")


async def resolve_steps(node: Node, steps: Sequence[Step], base: Any = None) -> Any:
    """Resolve parsed steps. Without `base` the first step makes it (`path.parse` puts it there).

    Raises NotFound for an unknown id, device or key, and whatever the keys raise.
    """
    trail: str | None = None
    made = base is None and steps[0].id is None and steps[0].sub is None
    if base is None:
        kept = _kept(node, steps)
        if kept is MISSING:
            base = await _make_base(node, steps[0])
            steps = steps[1:] or _index(node, base, steps[0])
        else:
            base, steps = kept, steps[2:]
    for index, step in enumerate(steps):
        if index % TURN == TURN - 1:
            await asyncio.sleep(0)
        if isinstance(base, Stream):
            await base.aclose()
            raise BadRequest(
                f"{step.text!r} cannot follow a stream: it has to be the path's last part"
            )
        device_name = await _device_name(node, step, base)
        request = await _values(node, step.message)
        called = step.id or step.key
        if step.sub is not None:
            called = await _key_of_sub(node, step)
        elif not called:
            base, trail = {**_as_message(base), **request, "device": device_name}, None
            made = True
            continue
        device = node.device(device_name)
        if step.device is not None:
            base, trail = _named(base, device_name), None
        key = device.keys.get(called)
        request["path"] = called
        log.debug("%s/%s", device_name, called)
        if key is not None and key.last is not None:
            _check_place(key, steps[index + 1 :])
        if key is not None and key.rest:
            request["rest"] = [later.text for later in steps[index + 1 :]]
            return (await _execute(node, device, key, called, base, request, trail, made))[0]
        base, trail = await _execute(node, device, key, called, base, request, trail, made)
        made = False
    return base


async def _execute(
    node: Node,
    device: Device,
    key: Key | None,
    called: str,
    base: Any,
    request: Message,
    trail: str | None,
    made: bool,
) -> tuple[Any, str | None]:
    """One step: what the key gives, as the `step` hook leaves it, and its hashpath.

    `trail`: the base's hashpath, where it is known. `made`: the base is of the request's own keys,
    of which those that say how to answer do not count. A hashpath is made only where the request
    asks for it or for what is kept, or the result is to be kept.
    """
    path = None
    if trail is None and "cache-control" not in request and "hashpath" not in request:
        if device.grouper is None:
            result = await _call_named(node, device, key, called, base, request)
        else:
            result = await _call_once(node, device, key, called, base, request)
        if isinstance(result, Link):
            result = await _load(node, result)
        elif isinstance(result, dict) and "priv" in result and may_store(device, SILENT, result):
            path = _hashpath(None, base, device, called, request, made, strict=False)
            if path is not None:
                node.cache.results.write(path, result)
    else:
        result, path = await _controlled(node, device, key, called, base, request, trail, made)
    hooks = node.hooks
    if hooks.seals:
        result = seal(result) if device.sealed else result
        if hooks.step:
            result = await _load(node, await hooks.after_step(base, request, result))
    return result, path


async def _controlled(
    node: Node,
    device: Device,
    key: Key | None,
    called: str,
    base: Any,
    request: Message,
    trail: str | None,
    made: bool,
) -> tuple[Any, str | None]:
    """As `_execute`, by `cache-control` and with a hashpath, before the hook."""
    control = control_of(request.get("cache-control"))
    asked = request.get("hashpath")
    path = None
    if trail is not None or asked is not None or control.lookup or control.store:
        strict = asked is not None or control.only
        path = _hashpath(trail, base, device, called, request, made, strict=strict)
    result = MISSING
    if control.lookup and path is not None and not device.sealed:
        result = node.cache.results.read(path)
    if result is MISSING and control.only:
        raise not_cached(path or called)
    if result is MISSING:
        result = await _load(node, await _call_once(node, device, key, called, base, request))
        if may_store(device, control, result):
            path = path or _hashpath(trail, base, device, called, request, made, strict=False)
            if path is not None:
                node.cache.results.write(path, result)
    if asked is not None and "priv" in request and not isinstance(result, Stream):
        request["priv"]["hashpath"] = path
    return result, path


async def _call_once(
    node: Node, device: Device, key: Key | None, called: str, base: Any, request: Message
) -> Any:
    """As `_call_named`, but what is under way already for the same group is waited for."""
    if device.grouper is not None:
        group = group_of(device, called, base, request)
        if group is not None:
            return await node.groups.run(
                group, lambda: _call_named(node, device, key, called, base, request)
            )
    return await _call_named(node, device, key, called, base, request)


def _hashpath(
    trail: str | None,
    base: Any,
    device: Device,
    called: str,
    request: Message,
    made: bool,
    *,
    strict: bool,
) -> str | None:
    """None for what has no id, unless `strict`: then it raises what is wrong."""
    if isinstance(base, dict):
        base = without(base, hashpath.META) if made else base
    elif device.name != DEFAULT_DEVICE:
        called = f"{called}~{device.name}"  # what is no message cannot say whose key it is
    try:
        return hashpath.after(trail or hashpath.root(base), called, request)
    except HyperbeamError:
        if strict:
            raise
        return None


def _kept(node: Node, steps: Sequence[Step]) -> Any:
    """The result that a path begins with which begins with a hashpath; else MISSING."""
    if len(steps) < 2 or steps[0].id is None or steps[1].device or steps[0].message.keys() - _PRIV:
        return MISSING
    called = steps[1].id or steps[1].key
    return node.cache.results.read(f"{steps[0].id}/{called}") if called else MISSING


def _index(node: Node, base: Any, first: Step) -> Sequence[Step]:
    """The step that a path takes which names a device and no key."""
    if first.device is None or INDEX not in node.device(base["device"]).keys:
        return ()
    return (Step(INDEX, first.message, text=INDEX),)


def _check_place(key: Key, later: Sequence[Step]) -> None:
    if key.last and later:
        raise NotFound(later[0].text, f"nothing follows {key.name!r}: no {later[0].text[:100]!r}")
    if not key.last and not later:
        raise NotFound(key.name, f"{key.name!r} is not the end of a path")


async def call(device: Device, key: Key | None, called: str, base: Any, request: Message) -> Any:
    """Call one key, or what answers those that are not marked: an async one here, a sync key in a
    worker thread. Raises what it raises, and DeviceFault for what no device may give or raise.
    """
    try:
        if key is None:
            default = getattr(device, "default", None)
            if default is None:
                raise NotFound(called)
            result = default(called, base, request)
            if hasattr(result, "__await__"):
                result = await result
        elif key.is_async:
            result = await getattr(device, key.method)(base, request)
        else:
            method = getattr(device, key.method)
            result = await asyncio.to_thread(_in_thread, method, base, request)
    except HyperbeamError as error:
        check_raised(error, device.name, called)
        raise
    except Exception:
        raise
    except BaseException as error:
        raised = contained(error, f"{device.name}/{called}")
        raise raised from raised.__cause__
    if not device.carries:
        try:
            check(result, device.name, called, base, request)
        except DeviceFault:
            if isinstance(result, Stream):
                await result.aclose()
            raise
    return result


def _in_thread(method: Callable[[Any, Message], Any], base: Any, request: Message) -> Any:
    """What would be lost on the way to the event loop, or end it, comes there as an error."""
    try:
        return method(base, request)
    except StopIteration as error:
        raise RuntimeError(f"{method.__qualname__} raised {error!r}") from error


def _call_named(
    node: Node, device: Device, key: Key | None, called: str, base: Any, request: Message
) -> Awaitable[Any]:
    if is_private(called):
        raise NotFound(called)
    if key is None and not _answers(device, called):
        # What a device does not know, the message itself answers.
        device = node.device(DEFAULT_DEVICE)
        key = device.keys.get(called)
        if key is None and not _answers(device, called):
            raise NotFound(called)
    return call(device, key, called, base, request)


def _answers(device: Device, called: str) -> bool:
    """Whether a device answers a key that is not one of its marked ones."""
    return called not in device.excludes and hasattr(device, "default")


async def _make_base(node: Node, step: Step) -> Any:
    """The first part: an id's message or a sub-path's result, with what is set on it."""
    values = await _values(node, step.message)
    if step.device is not None:
        values["device"] = await _device_name(node, step, values)
    if step.id is not None:
        found = await node.cache.find(step.id)
    elif step.sub is not None:
        found = await _resolve_sub(node, step.sub, step.message)
    else:
        return values
    return {**_as_message(found), **values} if values.keys() - {"priv"} else found


async def _device_name(node: Node, step: Step, base: Any) -> str:
    device = step.device
    if device is None:
        device = base.get("device") if isinstance(base, Mapping) else None
        if device is None:
            return DEFAULT_DEVICE
    if isinstance(device, Resolve):
        device = await _resolve_sub(node, device, step.message)
    if isinstance(device, bytes):
        device = device.decode("utf-8", "replace")
    if not isinstance(device, str):
        raise BadRequest(f"{step.text!r}: a device is named by a text such as {DEFAULT_DEVICE}")
    device = device.lower()
    node.device(device)
    return device


async def _resolve_sub(node: Node, sub: Resolve, inherited: Message) -> Any:
    """A sub-path sees the private part of the request it stands in, with `sub-path` true."""
    private = {**(inherited.get("priv") or {}), "sub-path": True}
    result = await resolve_steps(node, _with_private(sub.steps, private))
    if isinstance(result, Stream):
        await result.aclose()
        raise BadRequest("a sub-path cannot give a stream")
    return result


async def _key_of_sub(node: Node, step: Step) -> str:
    """A sub-path behind the first part says which key is called next."""
    assert step.sub is not None
    called = await _resolve_sub(node, step.sub, step.message)
    if isinstance(called, bytes):
        called = called.decode("utf-8", "replace")
    if not isinstance(called, str) or not called:
        raise BadRequest(f"{step.text!r} gives no text, so it names no key to call")
    return called.lower()


def _with_private(steps: Sequence[Step], private: Any) -> list[Step]:
    return [
        Step(
            key=step.key,
            message={**step.message, "priv": private},
            device=step.device,
            id=step.id,
            sub=step.sub,
            text=step.text,
        )
        for step in steps
    ]


async def _values(node: Node, message: Message) -> Message:
    """A copy of a step's keys, sub-paths replaced by what they give."""
    values = dict(message)
    for name, value in message.items():
        if isinstance(value, Resolve):
            values[name] = await _resolve_sub(node, value, message)
    return values


def _as_message(value: Any) -> Message:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(value, 1)}
    return {"body": value}


def _named(base: Any, device: str) -> Any:
    """A base that a step names the device of has that name, as in upstream's `as`."""
    if isinstance(base, Mapping | list) and not isinstance(base, str):
        return {**_as_message(base), "device": device}
    return base


async def _load(node: Node, value: Any) -> Any:
    return await node.cache.found(value) if isinstance(value, Link) else value
