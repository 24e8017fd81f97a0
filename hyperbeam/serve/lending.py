"""The last words of a worker that is killed: its open event streams get an error event.

A killed process closes its connections without a word. So a worker lends the socket of each
event stream to the supervisor, and keeps in memory that both have mapped how many bytes it
handed to it. The supervisor writes to one only when the worker is gone, and only if the
kernel took just these bytes: then the stream stands between two chunks. Linux only, as no
other system tells how many bytes a connection took.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable

MOST = 4096
"""Streams of one worker that are lent at a time."""
FILES = 65_536
"""Files that the supervisor may have open, where the system lets it."""
_WORD = 8
_NUMBER = struct.Struct("!I")
_INFO_SIZE = 256
# Of struct tcp_info (linux/tcp.h).
_NOT_SENT, _SENT, _SENT_AGAIN, _INFO_END = 144, 200, 208, 216

log = logging.getLogger("hyperbeam.node")


def streams_for(workers: int) -> int:
    """How many streams each of `workers` may lend; 0 where the system cannot."""
    if sys.platform != "linux":
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return min(MOST, (wanted if soft == resource.RLIM_INFINITY else soft) // (2 * workers))


def taken(sock: socket.socket) -> int | None:
    """The bytes that the kernel has taken to send on a TCP connection; None: it does not tell."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    if len(info) < _INFO_END:
        return None
    (waiting,) = struct.unpack_from("=I", info, _NOT_SENT)
    sent, again = struct.unpack_from("=QQ", info, _SENT)
    return int(sent - again + waiting)


class Loan:
    """An event stream's socket while the supervisor has it too."""

    __slots__ = ("_at", "_cells", "_close")

    def __init__(self, cells: memoryview, at: int, close: Callable[[int], None]) -> None:
        self._cells = cells
        self._at = at
        self._close: Callable[[int], None] | None = close

    def wrote(self, size: int) -> None:
        """Count bytes that were handed to the socket, up to the end of a chunk."""
        self._cells[self._at] += size

    def close(self) -> None:
        """Take the socket back, before it closes or serves another request. Once is enough."""
        close, self._close = self._close, None
        if close is not None:
            close(self._at)


class Lender:
    """A worker's side: `sock` leads to the supervisor, `memory` is the file both have mapped."""

    def __init__(self, sock: socket.socket, memory: int) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._map = mmap.mmap(memory, os.fstat(memory).st_size)
        os.close(memory)
        self._cells = memoryview(self._map).cast("Q")
        self._free = list(range(len(self._cells) - 1, -1, -1))
        self._unsaid: list[bytes] = []

    def lend(self, transport: asyncio.Transport, path: bytes) -> Loan | None:
        """Lend the connection under `transport`, where that can be done now.

        `path` is the request's, so that its last words are in the right shape.
        """
        sock = transport.get_extra_info("socket")
        if not self._free or self._unsaid or transport.get_write_buffer_size():
            return None
        at = self._free[-1]
        try:
            before = taken(sock)
            if before is None:
                return None
            self._cells[at] = before
            socket.send_fds(self._sock, [_NUMBER.pack(at) + path[:1024]], [sock.fileno()])
        except OSError:
            return None
        self._free.pop()
        return Loan(self._cells, at, self._take_back)

    def _take_back(self, at: int) -> None:
        self._free.append(at)
        self._unsaid.append(_NUMBER.pack(at))
        if len(self._unsaid) == 1:
            self._say()

    def _say(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._unsaid:
                self._sock.send(self._unsaid[0])
                del self._unsaid[0]
        except BlockingIOError:
            loop.add_writer(self._sock, self._say)
            return
        except OSError:
            self._unsaid.clear()
        loop.remove_writer(self._sock)


class Holder:
    """The supervisor's side, one a worker: `files` are what the worker inherits.

    `last_words` makes the event for a stream that a request for this path began.
    """

    def __init__(self, streams: int, last_words: Callable[[bytes], bytes]) -> None:
        self._last_words = last_words
        self._held: dict[int, tuple[socket.socket, bytes]] = {}
        self._sock, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._memory = os.memfd_create("streams")
        os.ftruncate(self._memory, streams * _WORD)
        self._map = mmap.mmap(self._memory, streams * _WORD)
        self.files = (self._theirs.fileno(), self._memory)

    def start(self) -> None:
        """Begin to take sockets, once the worker has inherited its files."""
        self._theirs.close()
        os.close(self._memory)
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def close(self) -> None:
        """For a worker that did not come to be."""
        for closed in (self._sock, self._theirs):
            closed.close()
        os.close(self._memory)

    def _read(self) -> None:
        try:
            while True:
                message, files, _, _ = socket.recv_fds(self._sock, 4096, 1)
                if not message:
                    break
                self._take(message, files)
        except BlockingIOError:
            return
        except OSError as error:
            log.error("the sockets of a worker's streams cannot be taken: %s", error)
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        self._speak()

    def _take(self, message: bytes, files: list[int]) -> None:
        (at,) = _NUMBER.unpack_from(message)
        if (held := self._held.pop(at, None)) is not None:
            held[0].close()
        if files:
            self._held[at] = socket.socket(fileno=files[0]), message[_NUMBER.size :]

    def _speak(self) -> None:
        """The worker is gone: what it still had lent was cut."""
        with memoryview(self._map).cast("Q") as cells:
            for at, (sock, path) in self._held.items():
                with sock:
                    try:
                        if taken(sock) == cells[at]:
                            words = b"\n\n" + self._last_words(path)
                            sock.send(b"%x\r\n%b\r\n" % (len(words), words))
                    except OSError:
                        log.debug("a client left with the worker")
        self._held.clear()
        self._map.close()
