"""Streams whose worker is gone, ended by the supervisor."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from hyperbeam.serve.lending import Holder, Lender, Loan, streams_for, taken

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what was sent")
WORDS = b"data: the end\n\n"
CHUNK = b"5\r\nhello\r\n"
LAST = b"11\r\n\n\n" + WORDS + b"\r\n"


class Lent:
    """A worker's and the supervisor's side in one process, and connections between them."""

    def __init__(self, streams: int) -> None:
        self.paths: list[bytes] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.holder = Holder(streams, self.words)
        sock, memory = map(os.dup, self.holder.files)
        self.sock = socket.socket(fileno=sock)
        self.lender = Lender(self.sock, memory)
        self.holder.start()
        self.accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    def words(self, path: bytes) -> bytes:
        self.paths.append(path)
        return WORDS

    async def open(self) -> None:
        self.server = await asyncio.start_server(
            lambda _, writer: self.accepted.put_nowait(writer), "127.0.0.1", 0
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.Transport]:
        """A client's side, and the transport of the worker's."""
        reader, client = await asyncio.open_connection(*self.server.sockets[0].getsockname())
        self.clients.append(client)
        writer = await self.accepted.get()
        return reader, cast(asyncio.Transport, writer.transport)

    def lend(self, transport: asyncio.Transport, path: bytes = b"/v1/x") -> Loan:
        loan = self.lender.lend(transport, path)
        assert loan is not None
        return loan

    def die(self, *transports: asyncio.Transport) -> None:
        """As a process that is killed: all that it has is closed."""
        self.sock.close()
        for transport in transports:
            transport.abort()


@pytest.fixture
async def lent() -> AsyncIterator[Lent]:
    lent = Lent(2)
    await lent.open()
    yield lent
    lent.die()
    for client in lent.clients:
        client.close()
    lent.server.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 5)


async def test_a_stream_between_two_chunks_gets_last_words(lent: Lent) -> None:
    reader, transport = await lent.connect()
    transport.write(b"an earlier answer")
    loan = lent.lend(transport, b"/v1/chat?a=1")
    for _ in range(3):
        transport.write(CHUNK)
        loan.wrote(len(CHUNK))
    await reader.readexactly(17)
    lent.die(transport)
    assert await read_all(reader) == 3 * CHUNK + LAST
    assert lent.paths == [b"/v1/chat?a=1"]


async def test_a_stream_in_the_middle_of_a_chunk_does_not(lent: Lent) -> None:
    reader, transport = await lent.connect()
    loan = lent.lend(transport)
    transport.write(CHUNK[:4])
    loan.wrote(len(CHUNK))
    lent.die(transport)
    assert await read_all(reader) == CHUNK[:4]


async def test_a_stream_whose_client_is_slow_gets_none_in_its_middle(lent: Lent) -> None:
    reader, transport = await lent.connect()
    loan = lent.lend(transport)
    transport.write(bytes(64 << 20))
    loan.wrote(64 << 20)
    assert transport.get_write_buffer_size()
    lent.die(transport)
    assert WORDS not in await read_all(reader)


async def test_what_was_taken_back_closes_with_the_worker(lent: Lent) -> None:
    reader, transport = await lent.connect()
    loan = lent.lend(transport)
    transport.write(CHUNK)
    loan.wrote(len(CHUNK))
    loan.close()
    loan.close()
    transport.close()
    assert await read_all(reader) == CHUNK
    again, transport = await lent.connect()
    lent.lend(transport, b"/again")
    lent.die(transport)
    assert await read_all(again) == LAST
    assert lent.paths == [b"/again"]


async def test_no_more_are_lent_than_there_is_room_for(lent: Lent) -> None:
    pairs = [await lent.connect() for _ in range(3)]
    loans = [lent.lender.lend(transport, b"/") for _, transport in pairs]
    assert loans[2] is None
    assert loans[0] is not None
    loans[0].close()
    assert lent.lender.lend(pairs[2][1], b"/2") is not None


async def test_when_the_supervisor_is_gone_nothing_is_lent(lent: Lent) -> None:
    _, transport = await lent.connect()
    loan = lent.lend(transport)
    holder: Any = lent.holder
    asyncio.get_running_loop().remove_reader(holder._sock)
    holder._sock.close()
    loan.close()
    assert lent.lender.lend(transport, b"/") is None


def test_what_a_connection_took_counts_what_is_not_sent_yet() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as sock,
    ):
        sock.setblocking(False)
        wrote = 0
        with pytest.raises(BlockingIOError):
            while True:
                wrote += sock.send(bytes(65_536))
        assert taken(sock) == wrote
        client.recv(100)
        assert taken(sock) == wrote


def test_workers_share_what_files_there_may_be() -> None:
    assert streams_for(1) >= streams_for(8) > 0
