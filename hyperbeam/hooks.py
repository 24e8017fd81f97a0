"""Hooks: what the operator has done to every request, step and response, and at the start.

A handler is a message with a `device`; its `path` (else the hook's name) is called on it with

    start     {body: {address, url}}
    request   {request, body: [messages]}    what will be resolved: the base, then a step each
    step      {base, request, body}          body: what the step gave
    response  {request, body}                body: what the whole path gave

and gives the next one's message; the last one's `body` is what counts. `hook/result = ignore`
lets the message pass as it was, `error` makes what the handler gives the refusal. A handler
that raises, or gives a `status` from 400 on, refuses the request. Handlers see no private
part of a message and no credentials; theirs says who calls, no more than the caller may.
Source: upstream dev_hook, dev_meta, hb_ao.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .device import Device, Stream, is_sealed
from .errors import BadRequest, ConfigError, HyperbeamError
from .faults import DeviceFault, check
from .message import Message, is_device_name, is_private, public, status_of, without
from .observe.waiting import waiting_for
from .path import Resolve, Step, parse
from .resolver import resolve_steps

if TYPE_CHECKING:
    from .node import Node

NAMES = ("start", "request", "step", "response")
RESULTS = ("return", "ignore", "error")
_OPTIONS = frozenset({"path", "method", "hook", "hook/result"})
_RESULTS = frozenset({"step", "response"})
"""The hooks whose `body` is a result, so that its `status` is one of HTTP."""
_CALLER = ("client", "signers", "committed")

_inside: ContextVar[bool] = ContextVar("hyperbeam.hooks.inside", default=False)

log = logging.getLogger("hyperbeam.hooks")


@dataclass(frozen=True, slots=True)
class Handler:
    """`message` is the base that `path` is called on."""

    message: Message
    path: str
    method: str = "GET"
    result: str = "return"

    @property
    def device(self) -> str:
        return str(self.message["device"])

    def __str__(self) -> str:
        return f"{self.device}/{self.path.strip('/')}"

    def describe(self) -> Message:
        return {
            **self.message,
            "path": self.path,
            "method": self.method,
            "hook/result": self.result,
        }


class Hooks:
    """The handlers of a node, by hook. `configured`: by name a handler or a list of them.

    A handler is a table, or `device` or `device/path` as a text. Raises ConfigError.
    """

    def __init__(self, node: Node, configured: Mapping[str, Any]) -> None:
        unknown = sorted(set(configured) - set(NAMES))
        if unknown:
            known = ", ".join(NAMES)
            raise ConfigError(f"[hooks]: there is no hook {unknown[0]!r}; there is: {known}")
        self._node = node
        self.start = _handlers("start", configured)
        self.request = _handlers("request", configured)
        self.step = _handlers("step", configured)
        self.response = _handlers("response", configured)
        self.outer = bool(self.request or self.response)
        self.seals = bool(self.step or self.response)

    def check(self, devices: Mapping[str, Device]) -> None:
        """Raise ConfigError for a handler whose device or key there is not."""
        for name in NAMES:
            for handler in self._of(name):
                device = devices.get(handler.device)
                if device is None:
                    raise ConfigError(f"the hook {name}: there is no device {handler.device}")
                called = handler.path.strip("/").partition("/")[0].partition("&")[0]
                if called not in device.keys and not hasattr(device, "default"):
                    raise ConfigError(f"the hook {name}: {handler.device} has no key {called!r}")

    def describe(self) -> list[Message]:
        """Every handler, for the node's key set."""
        return [{"on": name, **handler.describe()} for name in NAMES for handler in self._of(name)]

    async def run(
        self, name: str, message: Message, caller: Mapping[str, Any] | None = None
    ) -> Message:
        """Pass `message` through the handlers of the hook `name`.

        `caller`: the private part of the request that it is about. Raises what a handler
        raises, and HyperbeamError `hook_failed` for one that gives no message.
        """
        handlers = self._of(name)
        if not handlers or _inside.get():
            return message
        private = {key: caller[key] for key in _CALLER if key in caller} if caller else {}
        token = _inside.set(True)
        try:
            for handler in handlers:
                message = await self._call(name, handler, message, private)
        finally:
            _inside.reset(token)
        return message

    async def begin(self, message: Message) -> None:
        """Run the hook `start`. Raises ConfigError that names the handler at fault."""
        token = _inside.set(True)
        try:
            for handler in self.start:
                try:
                    with waiting_for(f"the hook start, {handler}"):
                        message = await self._call("start", handler, message, {})
                except HyperbeamError as error:
                    raise ConfigError(f"the hook start, {handler}: {error.detail}") from error
                except Exception as error:
                    log.debug("the hook start, %s", handler, exc_info=True)
                    # What a device did wrong is a sentence that names it, of an error that it had.
                    cause = "" if isinstance(error, DeviceFault) else f"{type(error).__name__}: "
                    said = f"{cause}{error}".partition("\n")[0]
                    raise ConfigError(f"the hook start, {handler}: {said}") from error
        finally:
            _inside.reset(token)

    async def before(self, steps: list[Step], request: Message) -> list[Step] | None:
        """The steps that the `request` hook makes of a request's; None where it leaves them."""
        if not self.request:
            return None
        given = [_described(step) for step in steps]
        message = {"request": public(request), "body": given}
        wanted = _body("request", await self.run("request", message, request.get("priv")))
        if wanted == given:
            return None
        return _steps(wanted, given, steps, request)

    async def after_step(self, base: Any, request: Message, result: Any) -> Any:
        """What the `step` hook makes of a step's result."""
        return await self._after("step", {"base": _public(base)}, request, result)

    async def after(self, request: Message, result: Any) -> Any:
        """What the `response` hook makes of a path's result."""
        return await self._after("response", {}, request, result) if self.response else result

    async def _after(self, name: str, about: Message, request: Message, result: Any) -> Any:
        stream = isinstance(result, Stream)
        body = _head(result) if stream else _public(result)
        message = {**about, "request": public(request), "body": body}
        try:
            changed = _body(name, await self.run(name, message, request.get("priv")))
        except BaseException:
            if stream:
                await result.aclose()
            raise
        if stream or changed is body or is_sealed(result):
            return result
        if isinstance(changed, dict) and isinstance(result, dict) and "priv" in result:
            return {**changed, "priv": result["priv"]}
        return changed

    async def _call(
        self, name: str, handler: Handler, message: Message, private: Message
    ) -> Message:
        steps = [
            replace(step, message={**step.message, **message, "priv": dict(private)})
            for step in parse(handler.path)
            if step.key
        ]
        for step in steps:
            step.message["method"] = handler.method
        result = await resolve_steps(self._node, steps, dict(handler.message))
        if isinstance(result, Stream):
            await result.aclose()
        refused = isinstance(result, dict) and (status_of(result) or 200) >= 400
        if handler.result == "error" or refused:
            raise _refusal(name, result)
        if handler.result == "ignore":
            return message
        if not isinstance(result, dict):
            kind = type(result).__name__
            raise _failed(name, f"{handler} gives a {kind}, not a message")
        if name in _RESULTS and not self._node.device(handler.device).carries:
            check(result.get("body"), handler.device, handler.path, message.get("body"), message)
        return public(result)

    def _of(self, name: str) -> tuple[Handler, ...]:
        handlers: tuple[Handler, ...] = getattr(self, name)
        return handlers


def _handlers(name: str, configured: Mapping[str, Any]) -> tuple[Handler, ...]:
    given = configured.get(name, ())
    listed = given if isinstance(given, list | tuple) else [given]
    return tuple(_handler(name, one) for one in listed)


def _handler(name: str, given: Any) -> Handler:
    if isinstance(given, str):
        named, _, called = given.strip("/~").partition("/")
        given = {"device": named, "path": called or name}
    if not isinstance(given, dict):
        raise ConfigError(f"the hook {name}: a handler is a table, or a text: device/key")
    device = given.get("device")
    if not isinstance(device, str) or not is_device_name(device):
        raise ConfigError(f"the hook {name}: a handler needs a device, such as faff@1.0")
    nested = given.get("hook", {})
    options = {
        **{key.removeprefix("hook/"): given[key] for key in given if key.startswith("hook/")},
        **(nested if isinstance(nested, dict) else {"": nested}),
    }
    unknown = sorted(set(options) - {"result"})
    if unknown:
        raise ConfigError(f"the hook {name}: there is no setting hook/{unknown[0]}")
    result = options.get("result", "return")
    path, method = given.get("path", name), given.get("method", "GET")
    if not (isinstance(path, str) and isinstance(method, str) and isinstance(result, str)):
        raise ConfigError(f"the hook {name}: path, method and hook/result are texts")
    if result not in RESULTS:
        raise ConfigError(f"the hook {name}: hook/result is one of {', '.join(RESULTS)}")
    private = next((key for key in given if is_private(key)), None)
    if private is not None:
        raise ConfigError(f"the hook {name}: {private!r} is a private key")
    try:
        steps = [step for step in parse(path) if step.key]
    except BadRequest as error:
        raise ConfigError(f"the hook {name}: path: {error.detail}") from None
    if not steps:
        raise ConfigError(f"the hook {name}: the path {path!r} names no key")
    return Handler(without(given, _OPTIONS), path, method, result)


def _described(step: Step) -> Message:
    """A step as a hook sees it; sub-paths, which are not resolved yet, are left out."""
    message = public({k: v for k, v in step.message.items() if not isinstance(v, Resolve)})
    if isinstance(step.device, str):
        message["device"] = step.device
    called = step.id or step.key or (step.text if step.sub is not None else "")
    return {**message, "path": called} if called else without(message, ("path",))


def _steps(
    wanted: Any, given: list[Message], steps: Sequence[Step], request: Message
) -> list[Step]:
    """The steps for what a hook gave: those that it left are the request's own."""
    private = request.get("priv")
    made: list[Step] = []
    for place, one in enumerate(wanted if isinstance(wanted, list) else [wanted]):
        one = {"path": one} if isinstance(one, str) else one
        if not isinstance(one, dict):
            raise _failed("request", f"a {type(one).__name__} is no message to resolve")
        if place < len(given) and given[place] == one:
            made.append(steps[place])
        elif one in given:
            made.append(steps[given.index(one)])
        else:
            made += _made(one, private, first=not made)
    if not made:
        raise _failed("request", "nothing is left to resolve")
    if made[0].key:
        made.insert(0, Step("", {"priv": private}))
    return made


def _made(message: Message, private: Any, *, first: bool) -> list[Step]:
    keys = {**public(without(message, ("path", "device"))), "priv": private}
    device = message.get("device")
    path = message.get("path", "")
    if not isinstance(path, str) or not isinstance(device, str | None):
        raise _failed("request", "path and device of a message are texts")
    parts = parse(path) if path else [Step("")]
    parts = parts if first or len(parts) == 1 else [part for part in parts if part != Step("")]
    made = [replace(part, message={**part.message, **keys}) for part in parts]
    if device:
        made[0] = replace(made[0], device=made[0].device or device)
    return made


def _head(stream: Stream) -> Message:
    """What a hook sees of a stream."""
    return {"status": stream.status, "content-type": stream.content_type, "stream": True}


def _public(value: Any) -> Any:
    return public({"value": value})["value"]


def _body(name: str, message: Message) -> Any:
    if "body" not in message:
        raise _failed(name, "its message has no body")
    return message["body"]


def _refusal(name: str, result: Any) -> HyperbeamError:
    message = result if isinstance(result, dict) else {"body": result}
    status, body = status_of(message) or 400, message.get("body")
    detail = body if isinstance(body, str) and body else f"the node's {name} hook refuses this"
    return HyperbeamError(detail, status=max(status, 400), error="hook_refused")


def _failed(name: str, why: str) -> HyperbeamError:
    log.error("the hook %s: %s", name, why)
    return HyperbeamError(
        f"the node's {name} hook does not work: the node's log says why", error="hook_failed"
    )
