"""Streams: bytes go to the client as they come, and the source ends when the client goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Send

from ..device import Stream
from ..faults import DeviceFault, contained
from ..message import Message
from ..observe.watch import StreamWatch
from .headers import EVENT_STREAM, Headers, cors, device_fields, guards
from .limits import draining

COMMENT = b": keep-alive\n\n"
EMPTY_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_END = object()

log = logging.getLogger("hyperbeam.http")


async def send_stream(
    stream: Stream,
    request: Message,
    send: Send,
    *,
    comment_after: float,
    error_event: Callable[[Exception], bytes],
    ending: Callable[[], bool],
    watch: StreamWatch,
) -> None:
    """Send `stream`; its source is closed whatever happens.

    An exception before the first chunk is raised, so that the caller can answer with a
    status. One after it becomes a last event made by `error_event` (in event streams),
    and the reply stays incomplete: the connection closes without the last chunk, so that
    any client can tell a cut from an end. The same goes for a task that is cancelled while
    the server is `ending`.
    """
    source = stream.source
    try:
        if not isinstance(source, AsyncIterator):
            kind = type(source).__name__
            raise TypeError(f"the source of a stream is a {kind}, not an async iterator")
        start = {
            "type": "http.response.start",
            "status": stream.status,
            "headers": stream_headers(stream, request) + watch.headers,
        }
        if request["method"] == "HEAD":
            watch.begin(stream.status)
            await send(start)
            await send({"type": "http.response.body"})
            return
        item = await _first(stream)
        sender = _Sender(send, stream)
        if item is _END:
            watch.begin(stream.status)
            await send(start)
            await sender.finish()
            return
        first = _bytes(item, stream)
        watch.begin(stream.status)
        await send(start)
        await _send_chunks(first, stream, sender, comment_after, error_event, ending, watch)
    finally:
        await _close(stream)


def stream_headers(stream: Stream, request: Message) -> Headers:
    """Raises TypeError or ValueError for a value that is no header value."""
    values = {"content-type": stream.content_type, "cache-control": "no-store"}
    values["x-accel-buffering"] = "no"
    for name, value in stream.headers.items():
        values.setdefault(name, value)
    headers = device_fields(values.items())
    return headers + guards(headers) + cors(request)


def is_events(stream: Stream) -> bool:
    return stream.content_type.partition(";")[0].strip().lower() == EVENT_STREAM


async def _send_chunks(
    first: bytes,
    stream: Stream,
    sender: _Sender,
    comment_after: float,
    error_event: Callable[[Exception], bytes],
    ending: Callable[[], bool],
    watch: StreamWatch,
) -> None:
    end = "left"
    events = is_events(stream)
    heart = Heart(sender, comment_after)
    try:
        if first:
            await sender.send(first)
            watch.chunk(len(first))
            heart.beat(first)
        if events and stream.comments and comment_after > 0:
            heart.start()
        async for item in stream.source:
            chunk = _bytes(item, stream)
            if chunk:
                await sender.send(chunk)
                watch.chunk(len(chunk))
                heart.beat(chunk)
        end = "complete"
    except BaseException as raised:
        error = contained(raised, stream.giver)
        if not isinstance(error, Exception):
            if ending():
                end = "failed"
                if events:
                    await sender.send(heart.gap + error_event(draining()), last=True)
            raise
        end = "failed"
        event = error_event(error)
        if events:
            await sender.send(heart.gap + event)
        return
    finally:
        heart.stop()
        watch.end(end)
    await sender.finish()


class _Sender:
    """Hands a stream's body on, and tells its observer what the socket has got."""

    __slots__ = ("_send", "_stream", "_written")

    def __init__(self, send: Send, stream: Stream) -> None:
        self._send = send
        self._stream = stream
        self._written = None if stream.observer is None else self._on_written

    async def send(self, body: bytes, *, optional: bool = False, last: bool = False) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": True}
        if optional:
            message["optional"] = True
        if last:
            message["last"] = True
        if self._written is not None:
            message["written"] = self._written
        await self._send(message)

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "written": self._on_end})

    def _on_written(self, body: bytes) -> None:
        observer = self._stream.observer
        if observer is not None and body:
            try:
                observer.sent(body)
            except Exception:
                log.exception("what observes a stream failed")
                self._written = None

    def _on_end(self, body: bytes) -> None:
        try:
            self._stream.end(True)
        except Exception:
            log.exception("what observes a stream failed")


async def _first(stream: Stream) -> Any:
    """The first chunk, or `_END`. Raises what the source raises."""
    try:
        return await anext(stream.source, _END)
    except Exception:
        raise
    except BaseException as error:
        raised = contained(error, stream.giver)
        raise raised from raised.__cause__


def _bytes(chunk: Any, stream: Stream) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    kind = type(chunk).__name__
    raise DeviceFault(f"{stream.giver} gives a stream with a {kind} as a chunk: chunks are bytes")


class Heart:
    """Sends a comment after `interval` seconds of silence, between events only."""

    __slots__ = ("_interval", "_last", "_loop", "_sender", "_tail", "_task", "_timer")

    def __init__(self, sender: _Sender, interval: float) -> None:
        self._sender = sender
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._tail = b""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def between_events(self) -> bool:
        """Whether what was sent ends with an empty line (or nothing was sent)."""
        return not self._tail or self._tail.endswith(EMPTY_LINES)

    @property
    def gap(self) -> bytes:
        """What has to stand before an event of the node's own."""
        return b"" if self.between_events else b"\n\n"

    def beat(self, chunk: bytes) -> None:
        self._last = self._loop.time()
        self._tail = chunk if len(chunk) >= 4 else self._tail[-4:] + chunk

    def start(self) -> None:
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._interval, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _tick(self) -> None:
        quiet = self._loop.time() - self._last
        if quiet >= self._interval:
            self._task = self._loop.create_task(self._comment())
            quiet = 0.0
            self._last = self._loop.time()
        self._timer = self._loop.call_later(self._interval - quiet, self._tick)

    async def _comment(self) -> None:
        # Checked in the step that writes: a chunk may have been sent since the timer fired.
        if self.between_events:
            await self._sender.send(COMMENT, optional=True)


async def _close(stream: Stream) -> None:
    try:
        await stream.aclose()
    except BaseException as error:
        if not isinstance(contained(error, stream.giver), Exception):
            raise
        log.exception("the source of the stream of %s did not close cleanly", stream.giver)
