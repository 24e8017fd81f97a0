"""What a stream's observer is told: every byte that the socket got, and one end."""

import asyncio
from typing import Any

import pytest

from hyperbeam import BadGateway, Message, Stream

from .support import soon, until
from .test_sse import DONE, EVENT, Source, begin

COMMENT = b": keep-alive\n\n"


class Observer:
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.ends: list[bool] = []
        self.end = asyncio.Event()

    def sent(self, data: bytes) -> None:
        assert not self.ends, "sent after the end"
        self.data.append(data)

    def ended(self, complete: bool) -> None:
        self.ends.append(complete)
        self.end.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.data)


@pytest.fixture
def observer() -> Observer:
    return Observer()


def observed(source: Any, observer: Any, **options: Any) -> Any:
    async def answer(request: Message) -> Stream:
        return Stream(source, observer=observer, **options)

    return answer


async def test_a_complete_stream(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    source.give(EVENT, b"", DONE, None)
    client = await connect(await serve(observed(source, observer)))
    reply = await client.get("/")
    assert reply.complete
    assert observer.data == reply.chunks == [EVENT, DONE]
    assert observer.ends == [True]
    assert source.closed.is_set()


async def test_http_1_0_and_an_empty_stream(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    source.give(EVENT, DONE, None)
    client = await connect(await serve(observed(source, observer)))
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.response()).body == observer.body == EVENT + DONE
    assert observer.ends == [True]
    empty, nothing = Source(), Observer()
    empty.give(None)
    await (await connect(await serve(observed(empty, nothing)))).get("/")
    assert (nothing.data, nothing.ends) == ([], [True])


async def test_head_sends_nothing(serve: Any, connect: Any, observer: Observer) -> None:
    client = await connect(await serve(observed(Source(), observer)))
    await client.get("/", method="HEAD")
    await soon(observer.end.wait())
    assert (observer.data, observer.ends) == ([], [False])


async def test_a_status_without_a_body(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    source.give(EVENT, None)
    client = await connect(await serve(observed(source, observer, status=204)))
    assert (await client.get("/")).status == 204
    assert (observer.data, observer.ends) == ([], [True])


@pytest.mark.parametrize("half", [b"", b"data: half"])
async def test_a_source_that_dies(
    serve: Any, connect: Any, observer: Observer, half: bytes
) -> None:
    source = Source()
    source.give(EVENT, half, BadGateway("it died"))
    client = await connect(await serve(observed(source, observer)))
    reply = await client.get("/")
    assert not reply.complete
    assert b'data: {"error"' in reply.body
    assert observer.body == reply.body
    assert observer.ends == [False]


async def test_a_source_that_fails_first(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    source.give(BadGateway("refused"))
    client = await connect(await serve(observed(source, observer)))
    assert (await client.get("/v1/x")).status == 502
    assert (observer.data, observer.ends) == ([], [False])


@pytest.mark.parametrize("source", [None, [b"a"]])
async def test_a_stream_that_cannot_be_sent(
    serve: Any, connect: Any, observer: Observer, source: Any
) -> None:
    client = await connect(await serve(observed(source, observer)))
    assert (await client.get("/")).status == 500
    assert (observer.data, observer.ends) == ([], [False])


@pytest.mark.parametrize("chunks", [0, 1], ids=["before the first chunk", "in mid-stream"])
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
async def test_a_client_that_leaves(
    serve: Any, connect: Any, observer: Observer, chunks: int, way: str
) -> None:
    source = Source()
    server = await serve(observed(source, observer))
    client = await connect(server)
    await begin(client)
    await soon(source.asked.wait())
    for _ in range(chunks):
        source.give(EVENT)
        await client.head()
        await client.chunk()
    client.leave(way)
    await soon(observer.end.wait())
    await until(lambda: not server.in_flight)
    assert (observer.data, observer.ends) == ([EVENT] * chunks, [False])


async def test_a_slow_reader_that_leaves(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    source.give(*[b"x" * 65_536] * 400, None)
    server = await serve(observed(source, observer))
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.asked.wait())
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    client.leave("reset")
    await soon(observer.end.wait())
    await until(lambda: not server.in_flight)
    assert len(observer.data) < 400
    assert observer.ends == [False]


@pytest.mark.parametrize("chunks", [0, 1])
async def test_a_drain_cuts(serve: Any, connect: Any, observer: Observer, chunks: int) -> None:
    source = Source()
    server = await serve(observed(source, observer))
    client = await connect(server)
    await begin(client)
    await soon(source.asked.wait())
    for _ in range(chunks):
        source.give(EVENT)
        await client.head()
        await client.chunk()
    await soon(server.drain(0.01))
    assert (observer.data[:1], observer.ends) == ([EVENT] * chunks, [False])
    assert [b'"draining"' in event for event in observer.data[1:]] == [True] * chunks


async def test_comments_are_told(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    client = await connect(await serve(observed(source, observer), keep_alive_comment=0.01))
    await begin(client)
    source.give(EVENT)
    await client.head()
    received = [await client.chunk() for _ in range(3)]
    assert received == [EVENT, COMMENT, COMMENT]
    source.give(DONE, None)
    while chunk := await client.chunk():
        received.append(chunk)
    assert observer.data == received
    assert observer.ends == [True]


async def test_comments_that_a_slow_reader_never_gets_are_not_told(
    serve: Any, connect: Any, observer: Observer
) -> None:
    source = Source()
    source.give(*[b"x" * 65_534 + b"\n\n"] * 100)
    server = await serve(observed(source, observer), keep_alive_comment=0.01)
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.asked.wait())
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    await asyncio.sleep(0.1)  # several intervals, in each a comment is dropped
    source.give(None)
    client.writer.transport.resume_reading()
    reply = await client.response()
    assert reply.complete
    assert observer.body == reply.body


async def test_a_stream_without_comments(serve: Any, connect: Any, observer: Observer) -> None:
    source = Source()
    server = await serve(observed(source, observer, comments=False), keep_alive_comment=0.01)
    client = await connect(server)
    await begin(client)
    source.give(EVENT)
    await client.head()
    assert await client.chunk() == EVENT
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.readexactly(1), 0.2)
    source.give(DONE, None)
    assert [await client.chunk(), await client.chunk()] == [DONE, b""]
    assert observer.data == [EVENT, DONE]


async def test_an_observer_that_fails_changes_nothing_for_the_client(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def sent(self, data: bytes) -> None:
            raise RuntimeError("sent")

        def ended(self, complete: bool) -> None:
            raise RuntimeError("ended")

    async def answer(request: Message) -> Stream:
        source = Source()
        source.give(EVENT, DONE, None)
        return Stream(source, observer=Failing())

    client = await connect(await serve(answer))
    for _ in range(2):
        reply = await client.get("/")
        assert (reply.chunks, reply.complete) == ([EVENT, DONE], True)
    assert caplog.text.count("what observes a stream failed") == 4


async def test_a_stream_that_is_never_sent_ends_when_it_is_closed(observer: Observer) -> None:
    stream = Stream(Source(), observer=observer)
    await stream.aclose()
    await stream.aclose()
    stream.end(True)
    assert (observer.data, observer.ends) == ([], [False])
