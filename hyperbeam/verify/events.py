"""A saved event stream's events, with their places in it. Source: WHATWG HTML, 9.2.6."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """`data` of an event whose bytes, comments before it left out, are `start` to `end`."""

    data: bytes
    kind: str
    start: int
    end: int


def read_events(body: bytes) -> tuple[list[Event], bytes]:
    """The complete events that have data, and the bytes of one that nothing ends."""
    events: list[Event] = []
    data: list[bytes] = []
    kind = ""
    start = -1
    end = 0
    for line in _LINE.finditer(body):
        end = line.end()
        text = line[1].removeprefix(_BOM) if line.start() == 0 else line[1]
        if not text:
            if data:
                events.append(Event(b"\n".join(data), kind, start, end))
            data, kind, start = [], "", -1
            continue
        if text.startswith(b":"):
            continue
        if start < 0:
            start = line.start()
        name, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
    rest = body[start:] if start >= 0 else body[end:]
    return events, rest
