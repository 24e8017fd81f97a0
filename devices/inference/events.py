"""Server-sent events, read as they arrive. Source: WHATWG HTML, 9.2.6."""

from __future__ import annotations

import re

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event: more of what no blank line ends is no stream of events."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(ValueError):
    """An event that is over MAX_EVENT bytes, and has not ended."""


class EventParser:
    """Takes a stream's bytes cut anywhere, gives the data of each event that is complete.

    Several `data` lines of an event are joined by a line feed; comments and other
    fields are dropped, and so is an event that no blank line ends. `feed` raises EventTooLarge.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False
        self._size = 0

    @property
    def between_events(self) -> bool:
        """Whether all that was taken belongs to events that are complete."""
        return not (self._partial or self._data or self._after_cr)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk)
        events: list[bytes] = []
        self._size += len(chunk)
        for line in lines:
            if self._partial:
                line = b"".join(self._partial) + line
                self._partial.clear()
            self._read_line(line, events)
        if rest:
            self._partial.append(rest)
        if events:
            self._size = len(rest)
        elif self._size > MAX_EVENT:
            raise EventTooLarge
        return events

    def _read_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
