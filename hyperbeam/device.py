"""What a device is: a class whose marked methods are the keys that paths can name.

class Greeter(Device):
    name = "greeter@1.0"

    @key
    async def hello(self, base, request):
        return {"body": f"Hello, {request.get('name', 'world')}"}
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

from .codecs.structured import normalize_key
from .errors import HyperbeamError
from .message import Message, is_id, is_private

if TYPE_CHECKING:
    from .node import Node

_MARK = "__device_key__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a device as its paths name it.

    `rest`: the key takes all later parts of the path as its argument, as
    `request["rest"]`, a list of the parts' texts; resolution ends with it.
    `last`: True where nothing may follow it in a path, False where something has to.
    """

    name: str
    method: str
    is_async: bool
    rest: bool
    last: bool | None
    doc: str


@overload
def key(method: F) -> F: ...
@overload
def key(
    *, name: str | None = None, rest: bool = False, last: bool | None = None
) -> Callable[[F], F]: ...
def key(
    method: Any = None, *, name: str | None = None, rest: bool = False, last: bool | None = None
) -> Any:
    """Mark a method as a key. `name` when it differs from the method's name with `-` for `_`.

    The key named `index` answers a path that names the device and no key. Raises TypeError for what
    no path can call.
    """

    def mark(function: F) -> F:
        called = name or function.__name__.rstrip("_").replace("_", "-")
        if not called or normalize_key(called) != called or is_id(called) or is_private(called):
            raise TypeError(
                f"no path can name the key {called!r}: write it in lower case, and not as what is "
                'private, as in @key(name="some-name")'
            )
        if not _takes(function, None, None, None):
            raise TypeError(f"the key {called!r} has to take (self, base, request)")
        marked = Key(
            name=called,
            method=function.__name__,
            is_async=inspect.iscoroutinefunction(function),
            rest=rest,
            last=last,
            doc=inspect.getdoc(function) or "",
        )
        setattr(function, _MARK, marked)
        return function

    return mark if method is None else mark(method)


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with that many arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


class Device:
    """Base class of every device. `name` is `name@version`; `self.node` is the node it serves.

    `Config`, where defined, is a msgspec Struct that reads the device's own section
    of hyperbeam.toml (the name before the `@`); its value is `self.config`.

    A node of several processes has every device in each of them; `self.node.role` says which
    one this is. Of a `single` device there is one, in the supervisor: what other processes ask
    of it is sent there, so its keys give message values and no streams.
    `fixed`: its section counts as it was when the node started; a reload does not change it.
    That is so for every single device.
    `sealed`: what its keys give is signed, or in a receipt, as it is: hooks see it, none
    changes it.
    `pure`: what its keys give depends on the base and the request's own keys alone, never on who
    asks, when, or where; so a request may have it kept (`cache-control: store`).
    `grouper(called, base, request)` names calls that are the same: while one is under way the
    others wait for its answer (`grouping.same_call` is one, as a staticmethod).
    `raw_body`: it reads bodies itself, so what a form has in it is not made keys of the request.
    `changeable`: settings of its section that the operator may change while the node runs.
    `carries`: it gives what clients or other nodes have sent, in parts or put together anew, so
    that a value in it which no reply can hold is not the device's fault: it is not looked for.
    `excludes`: keys that its `default` leaves to message@1.0, such as `keys` and `set`.
    """

    name: ClassVar[str] = ""
    single: ClassVar[bool] = False
    fixed: ClassVar[bool] = False
    sealed: ClassVar[bool] = False
    pure: ClassVar[bool] = False
    raw_body: ClassVar[bool] = False
    carries: ClassVar[bool] = False
    changeable: ClassVar[frozenset[str]] = frozenset()
    excludes: ClassVar[frozenset[str]] = frozenset()
    grouper: Callable[[str, Any, Message], Hashable | None] | None = None
    Config: ClassVar[type | None] = None
    keys: ClassVar[Mapping[str, Key]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own: dict[str, Key] = {}
        for name, attribute in vars(cls).items():
            mark = getattr(attribute, _MARK, None)
            if isinstance(mark, Key):
                if name in _OWN:
                    raise TypeError(
                        f"{cls.__name__}.{name} is not free to be a key's: every device has a "
                        f'{name} of that name; mark another method by @key(name="{mark.name}")'
                    )
                if mark.name in own:
                    others = f"{own[mark.name].method} and {name}"
                    raise TypeError(f"the key {mark.name!r} of {cls.__name__} is twice: {others}")
                own[mark.name] = mark
            elif name in _ASYNC and not inspect.iscoroutinefunction(attribute):
                raise TypeError(f"{cls.__name__}.{name} has to be `async def`")
            elif name in _SYNC and inspect.iscoroutinefunction(attribute):
                raise TypeError(f"{cls.__name__}.{name} has to be `def`, without async")
        cls.keys = {**cls.keys, **own}

    def __init__(self, node: Node, config: Any = None) -> None:
        self.node = node
        self.config = config

    async def start(self) -> None:
        """Called once before the node listens."""

    async def ready(self, url: str) -> str:
        """Wait until the device can do its work; gives a line for the operator, or nothing.

        `url` is the node's own address, for an example to try.
        """
        return ""

    async def stop(self) -> None:
        """Called once when the node ends, after the last request."""

    def describe(self) -> Message:
        """What `/~meta@1.0/devices` adds about this device."""
        return {}

    async def described(self) -> Message:
        """What `describe` gives, in whichever process the device is."""
        return self.describe()

    def render_error(self, error: HyperbeamError) -> Message | None:
        """The reply message for `error` on this device's paths; None: the node's own shape."""
        return None


_ASYNC = frozenset({"start", "ready", "stop", "described"})
_SYNC = frozenset({"describe", "render_error", "grouper"})
_OWN = frozenset(vars(Device)) | {"node", "config", "default"}


class StreamObserver(Protocol):
    """Sees what of a stream went to the client. Called on the event loop, so both are quick."""

    def sent(self, data: bytes) -> None:
        """`data` was handed to the socket: chunks, keep-alive comments, the error event."""

    def ended(self, complete: bool) -> None:
        """Called once: True where the whole body and its end were handed to the socket.

        False for a source that failed, a client that left, a node that stops, a HEAD request.
        """


@dataclass(slots=True)
class Stream:
    """A reply that is sent while it is made; the reply layer's only streaming value.

    `source` gives the body's bytes, a chunk at a time; each is sent at once, as it is.
    It is closed at its end and when the client goes, also before its first chunk.
    `comments`: whether keep-alive comments may stand between an event stream's events.
    `observer` is told what was sent, and how it ended.
    `giver`: the device and key that it is of, for the log; the node says it.
    """

    source: AsyncIterator[bytes]
    content_type: str = "text/event-stream"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    comments: bool = True
    observer: StreamObserver | None = None
    giver: str = field(default="a device", init=False, repr=False)
    _ended: bool = field(default=False, init=False, repr=False)

    def end(self, complete: bool) -> None:
        """Tell the observer how the stream ended; the first call counts."""
        if not self._ended:
            self._ended = True
            if self.observer is not None:
                self.observer.ended(complete)

    async def aclose(self) -> None:
        """Close the source, where it can be closed. A stream that was not sent ends with it."""
        try:
            self.end(False)
        finally:
            close = getattr(self.source, "aclose", None)
            if close is not None:
                await close()


def seal(result: Any) -> Any:
    """A message of a sealed device, marked as one that no hook changes."""
    if not isinstance(result, dict):
        return result
    return {**result, "priv": {**(result.get("priv") or {}), "sealed": True}}


def is_sealed(result: Any) -> bool:
    """Whether no hook may change a result."""
    return isinstance(result, dict) and bool((result.get("priv") or {}).get("sealed"))
