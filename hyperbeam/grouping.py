"""The same call once: who asks for what is under way already waits for that answer.

A device takes part by `grouper(called, base, request)`, which gives the name of the group, or None
for a call of its own; `same_call` is one for keys whose answer depends on these alone. Callers with
other credentials or signatures never share. Each process has its own groups.
Source: upstream hb_persistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any

from . import hashpath
from .device import Device, Stream
from .errors import HyperbeamError, Unavailable
from .faults import DeviceFault
from .message import Message

Start = Callable[[], Awaitable[Any]]

_within: ContextVar[_Flight | None] = ContextVar("hyperbeam.grouping.within", default=None)


def same_call(called: str, base: Any, request: Message) -> str | None:
    """The hashpath of a call, as a group's name; None for what has none."""
    try:
        return hashpath.after(hashpath.root(base), called, request)
    except HyperbeamError:
        return None


def group_of(device: Device, called: str, base: Any, request: Message) -> Hashable | None:
    """The group of a call, by the device and by whose call it is; None for none."""
    if device.grouper is None or device.sealed:
        return None
    name = device.grouper(called, base, request)
    if name is None:
        return None
    try:
        hash(name)
    except TypeError as error:
        kind = type(name).__name__
        raise DeviceFault(
            f"{device.name}.grouper gives a {kind} for {called}: a group's name has to be hashable"
        ) from error
    private = request.get("priv") or {}
    credentials = tuple(sorted((private.get("headers") or {}).items()))
    signers = tuple(private.get("signers") or ())
    committed = frozenset(private.get("committed") or ())
    return (device.name, called, name, credentials, signers, committed, "client" in private)


class _Flight:
    """One execution: its task, how many wait for it, and what it waits for itself."""

    __slots__ = ("awaits", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.waiting = 0
        self.awaits: list[_Flight] = []

    def leads_to(self, other: _Flight) -> bool:
        """Whether it waits, itself or through others, for `other`."""
        return self is other or any(flight.leads_to(other) for flight in self.awaits)


class Groups:
    """What is under way in this process. For one event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def run(self, group: Hashable, start: Start) -> Any:
        """What `start` gives, or what the group's execution does that is under way.

        One caller's cancellation is no other's; with the last one the execution is cancelled.
        A Stream goes to one caller, the others start anew. What would wait for itself does not
        wait, but starts too.
        """
        own = _within.get()
        flight = self._flights.get(group)
        if flight is None:
            flight = self._begin(group, start)
        elif own is not None and flight.leads_to(own):
            return await start()
        task = flight.task
        assert task is not None
        flight.waiting += 1
        if own is not None:
            own.awaits.append(flight)
        try:
            await asyncio.wait({task})
        finally:
            flight.waiting -= 1
            if own is not None:
                own.awaits.remove(flight)
            if not flight.waiting and not task.done():
                self._end(group, flight)
                task.cancel()
        if task.cancelled():
            raise Unavailable("the call that this one waited for was given up; ask again")
        result = task.result()
        if isinstance(result, _Once):
            stream = result.take()
            return await start() if stream is None else stream
        return _copy(result)

    def _begin(self, group: Hashable, start: Start) -> _Flight:
        flight = _Flight()
        self._flights[group] = flight

        async def execute() -> Any:
            _within.set(flight)
            result = await start()
            return _Once(result) if isinstance(result, Stream) else result

        def done(task: asyncio.Task[Any]) -> None:
            self._end(group, flight)
            if not task.cancelled() and task.exception() is None and not flight.waiting:
                result = task.result()
                if isinstance(result, _Once):
                    result.close()

        flight.task = asyncio.create_task(execute())
        flight.task.add_done_callback(done)
        return flight

    def _end(self, group: Hashable, flight: _Flight) -> None:
        if self._flights.get(group) is flight:
            del self._flights[group]


class _Once:
    """A stream that one caller gets."""

    __slots__ = ("_closing", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream: Stream | None = stream
        self._closing: asyncio.Task[None] | None = None

    def take(self) -> Stream | None:
        stream, self._stream = self._stream, None
        return stream

    def close(self) -> None:
        stream = self.take()
        if stream is not None:
            self._closing = asyncio.create_task(stream.aclose())


def _copy(result: Any) -> Any:
    """Each caller has its own, so that one's changes are not the others'."""
    if isinstance(result, dict):
        return {key: _copy(value) for key, value in result.items()}
    return [_copy(item) for item in result] if isinstance(result, list) else result
