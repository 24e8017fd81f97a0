"""Calls and news between two processes of a node, many at a time over one socket.

A frame is its length (4 bytes, big-endian) and a msgpack list. Who gives a call up, or
goes, cancels what runs for it at the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..errors import HyperbeamError, Unavailable
from ..faults import said_of
from .values import describe_error, error_of, pack, unpack

CALL, NEWS, RESULT, ERROR, CANCEL = range(5)
MAX_FRAME = 1 << 30

Answer = Callable[[Any], Awaitable[Any]]
Hear = Callable[[Any], None]

log = logging.getLogger("hyperbeam.node")


class Channel:
    """One end of the pair `sock`.

    `answers` answer the other end's calls, each in a task of its own; `news` hear what it
    tells, in the order in which it was sent, before the result of any later call.
    """

    def __init__(
        self, sock: socket.socket, answers: Mapping[str, Answer], news: Mapping[str, Hear]
    ) -> None:
        self.ended = asyncio.Event()
        self._sock = sock
        self._answers = answers
        self._news = news
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to read. `ended` is set once the other end has gone, or `close` was called."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._reading = asyncio.create_task(self._read(reader), name="channel")

    async def close(self) -> None:
        """Send what is waiting to be sent, then end; calls that run are given up."""
        if self._writer is not None and not self._writer.is_closing():
            with contextlib.suppress(OSError):
                await self._writer.drain()
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def call(self, name: str, value: Any = None) -> Any:
        """What the other end's `name` answers to `value`.

        Raises the HyperbeamError that it raises; Unavailable once the other end has gone.
        """
        if self.ended.is_set():
            raise _gone()
        id = next(self._ids)
        result = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            self._send([CALL, id, name, value])
            await self._drain()
            return await result
        except asyncio.CancelledError:
            self._send([CANCEL, id])
            raise
        finally:
            del self._waiting[id]

    def tell(self, name: str, value: Any = None) -> None:
        """Send news; nothing where the other end has gone."""
        self._send([NEWS, name, value])

    def _send(self, frame: list[Any]) -> None:
        data = pack(frame)
        writer = self._writer
        if writer is not None and not self.ended.is_set():
            writer.writelines((len(data).to_bytes(4, "big"), data))

    async def _drain(self) -> None:
        assert self._writer is not None
        try:
            await self._writer.drain()
        except OSError:
            raise _gone() from None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes")
                self._take(unpack(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except Exception:
            log.exception("the channel to another process of the node fails")
        finally:
            self._end()

    def _take(self, frame: list[Any]) -> None:
        kind, *rest = frame
        if kind == CALL:
            id, name, value = rest
            task = asyncio.create_task(self._work(id, name, value))
            self._working[id] = task
            task.add_done_callback(lambda _: self._working.pop(id, None))
        elif kind == NEWS:
            self._hear(*rest)
        elif kind == CANCEL:
            if task_of := self._working.get(rest[0]):
                task_of.cancel()
        else:
            id, value = rest
            future = self._waiting.get(id)
            if future is not None and not future.done():
                if kind == RESULT:
                    future.set_result(value)
                else:
                    future.set_exception(error_of(value))

    def _hear(self, name: str, value: Any) -> None:
        try:
            self._news[name](value)
        except Exception:
            log.exception("news of %s is not understood", name)

    async def _work(self, id: int, name: str, value: Any) -> None:
        try:
            result = await self._answers[name](value)
            self._send([RESULT, id, result])
        except HyperbeamError as error:
            self._send([ERROR, id, describe_error(error)])
        except Exception as error:
            self._send([ERROR, id, describe_error(_unforeseen(name, error))])
        with contextlib.suppress(HyperbeamError):
            await self._drain()

    def _end(self) -> None:
        self.ended.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_gone())
        for task in self._working.values():
            task.cancel()
        if self._writer is not None:
            self._writer.close()


def _unforeseen(name: str, error: Exception) -> HyperbeamError:
    id = secrets.token_hex(8)
    said, cause = said_of(error)
    log.error("error %s in %s for another process%s", id, name, said, exc_info=cause)
    return HyperbeamError(f"internal error {id}: the node's log has the reason")


def _gone() -> Unavailable:
    return Unavailable("this part of the node ends or starts anew; try again", error="restarting")
