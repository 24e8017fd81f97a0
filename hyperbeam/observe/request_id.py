"""What is known of the request that is being answered: its id, and where it went.

`x-request-id` is a custom of proxies and of OpenAI's API; the node takes a client's where it
is sound, sends it to backends and gives it back with every reply.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol

HEADER = "x-request-id"
RAW_HEADER = HEADER.encode()

_SOUND = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}\Z")


class Trace(Protocol):
    """The trace that a request belongs to."""

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What a request to a backend has to carry: W3C Trace Context."""

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[None]:
        """A span inside the current one."""

    def end(self, info: RequestInfo) -> None:
        """The request has ended as `info` says."""


class RequestInfo:
    """One request as metrics, the access line and traces tell of it.

    Whoever knows fills in: `route` and `node` are ids of the route table, `model` is the name
    of the model that answers (never just what a client wrote), `key` the id of an API key.
    `status` is 0 until the reply has begun; `started` is in seconds of `perf_counter`; `size`
    counts the bytes of the body that were sent.
    """

    # In the class, so that a request costs no more than what is known of it.
    route: str = ""
    node: str = ""
    model: str = ""
    key: str = ""
    status: int = 0
    size: int = 0
    trace: Trace | None = None

    def __init__(
        self, id: str, method: str = "", path: str = "", client: str = "", started: float = 0.0
    ) -> None:
        self.id = id
        self.method = method
        self.path = path
        self.client = client
        self.started = started


_current: ContextVar[RequestInfo | None] = ContextVar("hyperbeam_request", default=None)


def current() -> RequestInfo | None:
    """The request that this task is answering, where it is answering one."""
    return _current.get()


def enter(info: RequestInfo) -> None:
    """Let this task, and those it starts, be about `info`. A request has a task of its own."""
    _current.set(info)


def asked(node: str) -> None:
    """The current request is sent to `node`, or `node` has answered it."""
    info = _current.get()
    if info is not None:
        info.node = node


def outbound() -> list[tuple[bytes, bytes]]:
    """The headers by which a backend learns which request it works for, and of which trace."""
    info = _current.get()
    return [] if info is None else [(RAW_HEADER, info.id.encode()), *trace_headers()]


def trace_headers() -> list[tuple[bytes, bytes]]:
    """What a request to a backend carries of the current request's trace, if it has one."""
    info = _current.get()
    return [] if info is None or info.trace is None else info.trace.headers()


class RequestIds:
    """Gives every request its id."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._count = itertools.count(1)

    def of(self, headers: Mapping[str, object]) -> str:
        """The client's own if it is 1 to 128 letters, digits and `._:/+=@~-`, else a new one."""
        given = headers.get(HEADER)
        if isinstance(given, str) and _SOUND.match(given):
            return given
        return f"{self._prefix}{next(self._count):08x}"
