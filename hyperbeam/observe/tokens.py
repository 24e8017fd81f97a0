"""How many tokens a relayed answer takes: as it says itself, else estimated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..device import Stream
from ..message import Message

_TAIL = 4096
_TOTAL = re.compile(rb'"total_tokens"\s*:\s*([0-9]{1,12})')
_PARTS = re.compile(rb'"(?:prompt|completion|input|output)_tokens"\s*:\s*([0-9]{1,12})')
_BYTES = 4
"""A token, where nobody counts: four bytes of the request or the answer, or an event."""


def counted(reply: Message | Stream, request: int, used: Callable[[int], None]) -> None:
    """Tell `used` the tokens of `reply` to a request of so many bytes, once it was sent."""
    if isinstance(reply, Stream):
        reply.observer = _Counting(request, used)
        return
    used(sum(_of_message(one, request) for one in _replies(reply)))


def _replies(reply: Message) -> list[Any]:
    return [reply] if "body" in reply else [one for key, one in reply.items() if key != "priv"]


def _of_message(reply: Message, request: int) -> int:
    body = reply.get("body") or b""
    data = body.encode() if isinstance(body, str) else body
    if reply.get("status", 200) >= 400:
        return 0
    return _said(data[-_TAIL:]) or (request + len(data)) // _BYTES


def _said(data: bytes) -> int:
    total = _TOTAL.findall(data)
    return int(total[-1]) if total else sum(map(int, _PARTS.findall(data)[-2:]))


class _Counting:
    """Counts what of a stream the client got."""

    def __init__(self, request: int, used: Callable[[int], None]) -> None:
        self._request = request
        self._used = used
        self._events = 0
        self._tail = b""

    def sent(self, data: bytes) -> None:
        self._events += data.count(b"data:")
        self._tail = (self._tail + data)[-_TAIL:]

    def ended(self, complete: bool) -> None:
        self._used(_said(self._tail) or self._request // _BYTES + self._events)
