"""Streams: chunks as they come, back-pressure, comments, leaving clients, broken sources."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hyperbeam import BadGateway, Message, Stream

from .support import Client, soon, until

EVENT = b'data: {"a": 1}\n\n'
DONE = b"data: [DONE]\n\n"


class Source:
    """Chunks that the test hands out one by one; says when it is asked and closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.given = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.asked.set()
        item = await self.queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        self.given += 1
        return item

    async def aclose(self) -> None:
        self.closed.set()

    def give(self, *items: bytes | Exception | None) -> None:
        for item in items:
            self.queue.put_nowait(item)


def streaming(source: Any, **options: Any) -> Any:
    async def answer(request: Message) -> Stream:
        return Stream(source, **options)

    return answer


async def begin(client: Client, path: str = "/") -> None:
    await client.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())


async def test_chunks_arrive_one_by_one_as_they_were(serve: Any, connect: Any) -> None:
    source = Source()
    client = await connect(await serve(streaming(source, headers={"x-seed": "7"})))
    await begin(client)
    pieces = [EVENT, b"data: half", b" and half\n\n", "data: \u00fc\n\n".encode(), DONE]
    source.give(pieces[0])
    head = await client.head()
    assert head.status == 200
    assert head.headers["content-type"] == "text/event-stream"
    assert head.headers["cache-control"] == "no-store"
    assert head.headers["x-accel-buffering"] == "no"
    assert head.headers["access-control-allow-origin"] == "*"
    assert head.headers["x-seed"] == "7"
    assert head.headers["transfer-encoding"] == "chunked"
    assert await client.chunk() == pieces[0]
    for piece in pieces[1:]:
        source.give(piece)
        assert await client.chunk() == piece
    source.give(None)
    assert await client.chunk() == b""
    await soon(source.closed.wait())


async def test_the_connection_serves_on_after_a_stream(serve: Any, connect: Any) -> None:
    async def answer(request: Message) -> Stream:
        source = Source()
        source.give(EVENT, b"", DONE, None)
        return Stream(source)

    client = await connect(await serve(answer))
    for _ in range(3):
        reply = await client.get("/")
        assert (reply.chunks, reply.complete) == ([EVENT, DONE], True)


async def test_an_empty_stream(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(None)
    reply = await (await connect(await serve(streaming(source, status=201)))).get("/")
    assert (reply.status, reply.body, reply.complete) == (201, b"", True)


async def test_http_1_0_gets_the_bytes_until_the_close(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(EVENT, DONE, None)
    client = await connect(await serve(streaming(source)))
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    reply = await client.response()
    assert reply.body == EVENT + DONE
    assert "transfer-encoding" not in reply.headers


async def test_head_closes_the_source_unread(serve: Any, connect: Any) -> None:
    source = Source()
    client = await connect(await serve(streaming(source)))
    reply = await client.get("/", method="HEAD")
    assert reply.headers["content-type"] == "text/event-stream"
    await soon(source.closed.wait())
    assert not source.asked.is_set()


@pytest.mark.parametrize("chunks", [0, 1], ids=["before the first chunk", "in mid-stream"])
@pytest.mark.parametrize("pipelined", [False, True])
async def test_the_source_is_closed_when_the_client_goes(
    serve: Any, connect: Any, chunks: int, pipelined: bool
) -> None:
    source = Source()
    server = await serve(streaming(source))
    client = await connect(server)
    await begin(client)
    if pipelined:
        await begin(client)
    await soon(source.asked.wait())
    for _ in range(chunks):
        source.give(EVENT)
        await client.head()
        await client.chunk()
    client.leave("close")
    await soon(source.closed.wait())
    await until(lambda: not server.in_flight)


async def test_a_generator_is_ended_when_the_client_goes(serve: Any, connect: Any) -> None:
    ended = asyncio.Event()

    async def generate() -> AsyncIterator[bytes]:
        try:
            yield EVENT
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = await connect(await serve(streaming(generate())))
    await begin(client)
    await client.head()
    client.leave("reset")
    await soon(ended.wait())


async def test_a_slow_reader_holds_the_source_back(serve: Any, connect: Any) -> None:
    source = Source()
    chunk = b"data: " + b"x" * 65_528 + b"\n\n"
    count = 400
    source.give(*[chunk] * count, None)
    server = await serve(streaming(source))
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.asked.wait())
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    held = source.given
    assert held < count
    # a source that is asked again while the client sleeps would go on by now
    for _ in range(100):
        await asyncio.sleep(0)
    if connection.flow.write_paused:
        assert connection.transport.get_write_buffer_size() < 3 * len(chunk)
    client.writer.transport.resume_reading()
    reply = await client.response()
    assert reply.complete
    assert reply.body == chunk * count


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
async def test_a_slow_reader_that_leaves_closes_the_source(
    serve: Any, connect: Any, way: str
) -> None:
    source = Source()
    source.give(*[b"x" * 65_536] * 400, None)
    server = await serve(streaming(source))
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.asked.wait())
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    client.leave(way)
    await soon(source.closed.wait())


async def test_comments_fill_silence_between_events(serve: Any, connect: Any) -> None:
    source = Source()
    client = await connect(await serve(streaming(source), keep_alive_comment=0.02))
    await begin(client)
    await soon(source.asked.wait())
    source.give(EVENT)
    await client.head()
    assert await client.chunk() == EVENT
    assert await client.chunk() == b": keep-alive\n\n"
    assert await client.chunk() == b": keep-alive\n\n"
    source.give(b"data: half")
    while (chunk := await client.chunk()) == b": keep-alive\n\n":
        pass
    assert chunk == b"data: half"
    with pytest.raises(TimeoutError):  # many intervals, and nothing within the event
        await asyncio.wait_for(client.reader.readexactly(1), 0.2)
    source.give(b"\n", b"\n", None)
    assert [await client.chunk(), await client.chunk()] == [b"\n", b"\n"]


async def test_no_comment_before_the_first_byte_or_elsewhere(serve: Any, connect: Any) -> None:
    source = Source()
    client = await connect(await serve(streaming(source), keep_alive_comment=0.01))
    await begin(client)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.readexactly(1), 0.2)
    other = Source()
    other.give(b"\n\n")
    plain = streaming(other, content_type="text/plain")
    client = await connect(await serve(plain, keep_alive_comment=0.01))
    await begin(client)
    await client.head()
    assert await client.chunk() == b"\n\n"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.readexactly(1), 0.2)


async def test_comments_do_not_pile_up_before_a_slow_reader(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(*[b"x" * 65_534 + b"\n\n"] * 100)
    server = await serve(streaming(source), keep_alive_comment=0.01)
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.asked.wait())
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    before = len(asyncio.all_tasks())
    await asyncio.sleep(0.2)  # many intervals: a comment that waits would be a task
    assert len(asyncio.all_tasks()) <= before + 1


async def test_comments_can_be_turned_off(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(EVENT)
    client = await connect(await serve(streaming(source), keep_alive_comment=0))
    await begin(client)
    await client.head()
    assert await client.chunk() == EVENT
    source.give(DONE, None)
    assert await client.chunk() == DONE


async def test_a_source_that_fails_first_is_an_ordinary_error(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(BadGateway("refused"))
    client = await connect(await serve(streaming(source)))
    reply = await client.get("/v1/x")
    assert (reply.status, reply.json["error"]["code"]) == (502, "bad_gateway")
    assert source.closed.is_set()
    assert (await client.get("/", method="OPTIONS")).status == 204


async def test_a_source_that_dies_gives_an_error_event_and_a_cut(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(EVENT, BadGateway("it died", error="backend_died"))
    client = await connect(await serve(streaming(source)))
    reply = await client.get("/")
    assert not reply.complete
    assert reply.chunks[0] == EVENT
    assert reply.body.endswith(b"}\n\n")
    error = json.loads(reply.chunks[1].removeprefix(b"data: "))["error"]
    assert (error["message"], error["code"]) == ("it died", "backend_died")
    assert set(error) == {"message", "type", "param", "code"}
    assert source.closed.is_set()
    assert await client.at_end()


async def test_the_error_event_has_the_shape_of_its_path(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(EVENT, BadGateway("it died", error="backend_died"))
    reply = await (await connect(await serve(streaming(source)))).get("/v1/x")
    value = json.loads(reply.chunks[1].removeprefix(b"data: "))
    assert value == {"error": {"message": "it died", "code": "backend_died"}}


async def test_an_error_event_starts_on_a_line_of_its_own(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(b"data: half", BadGateway("it died"))
    reply = await (await connect(await serve(streaming(source)))).get("/")
    assert b'data: half\n\ndata: {"error"' in reply.body


async def test_an_unforeseen_error_in_a_stream_tells_only_an_id(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    source.give(EVENT, RuntimeError("secret"))
    client = await connect(await serve(streaming(source)))
    with caplog.at_level(logging.ERROR, "hyperbeam.http"):
        reply = await client.get("/")
    assert not reply.complete
    assert b"secret" not in reply.body
    name = caplog.records[0].getMessage().split()[1]
    assert name.encode() in reply.body


async def test_another_kind_of_stream_is_only_cut(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(b"abc", BadGateway("it died"))
    client = await connect(await serve(streaming(source, content_type="text/plain")))
    reply = await client.get("/")
    assert (reply.body, reply.complete) == (b"abc", False)


async def test_headers_of_a_stream_cannot_break_its_framing(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(EVENT, None)
    headers = {
        "content-length": "3",
        "transfer-encoding": "gzip",
        "connection": "x",
        "x ": "y",
    }
    client = await connect(await serve(streaming(source, headers=headers)))
    reply = await client.get("/")
    assert (reply.body, reply.complete) == (EVENT, True)
    assert reply.names.count("transfer-encoding") == 1
    assert "content-length" not in reply.headers


async def fails_at_once(server: Any, client: Client, caplog: Any, why: str) -> None:
    """A logged 500 to a GET, on a connection that serves on."""
    with caplog.at_level(logging.ERROR, "hyperbeam.http"):
        reply = await client.get("/", "accept: application/json")
    assert (reply.status, reply.json["error"], reply.complete) == (500, "internal_error", True)
    assert why in caplog.text
    assert (await client.get("/", method="OPTIONS")).status == 204


@pytest.mark.parametrize("chunk", ["text", None, 7, [b"a"]])
async def test_a_first_chunk_that_is_no_bytes_is_a_500(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, chunk: Any
) -> None:
    ended = asyncio.Event()

    async def generate() -> AsyncIterator[Any]:
        try:
            yield chunk
        finally:
            ended.set()

    server = await serve(streaming(generate()))
    await fails_at_once(server, await connect(server), caplog, "chunks are bytes")
    await soon(ended.wait())


@pytest.mark.parametrize("chunk", ["text", None])
async def test_a_later_chunk_that_is_no_bytes_cuts_the_stream(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, chunk: Any
) -> None:
    async def generate() -> AsyncIterator[Any]:
        yield EVENT
        yield chunk
        yield DONE

    client = await connect(await serve(streaming(generate())))
    reply = await client.get("/")
    assert (reply.status, reply.complete, reply.chunks[0]) == (200, False, EVENT)
    assert b"internal_error" in reply.body
    assert DONE not in reply.body
    assert "chunks are bytes" in caplog.text


async def test_other_kinds_of_bytes_are_bytes(serve: Any, connect: Any) -> None:
    async def generate() -> AsyncIterator[Any]:
        yield bytearray(b"one")
        yield memoryview(b"two")

    reply = await (await connect(await serve(streaming(generate())))).get("/")
    assert (reply.chunks, reply.complete) == ([b"one", b"two"], True)


@pytest.mark.parametrize("source", [[b"a"], (b"a" for _ in "a"), None])
async def test_a_source_that_is_no_async_iterator_is_a_500(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, source: Any
) -> None:
    server = await serve(streaming(source))
    await fails_at_once(server, await connect(server), caplog, "not an async iterator")


@pytest.mark.parametrize("end", ["\r\nx-evil: 1", "\n", "\0"])
@pytest.mark.parametrize("where", ["content_type", "headers"])
async def test_a_line_end_in_a_header_of_a_stream_is_a_500(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, end: str, where: str
) -> None:
    source = Source()
    bad: Any = f"text/plain{end}"
    server = await serve(streaming(source, **{where: bad if where != "headers" else {"x-a": bad}}))
    await fails_at_once(server, await connect(server), caplog, "has a line end")
    assert source.closed.is_set()


@pytest.mark.parametrize(("kind", "policy"), [("text/html", "sandbox"), ("text/plain", None)])
async def test_a_stream_is_no_page_of_this_node(
    serve: Any, connect: Any, kind: str, policy: str | None
) -> None:
    source = Source()
    source.give(b"<script>", None)
    reply = await (await connect(await serve(streaming(source, content_type=kind)))).get("/")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers.get("content-security-policy") == policy


@pytest.mark.parametrize(
    ("kind", "said", "gap"),
    [("text/event-stream", EVENT, b""), ("text/event-stream", b"data: 1", b"\n\n")],
)
async def test_drain_cuts_a_stream_by_an_error_event_without_an_end(
    serve: Any, connect: Any, kind: str, said: bytes, gap: bytes
) -> None:
    source = Source()
    server = await serve(streaming(source, content_type=kind))
    client = await connect(server)
    await begin(client)
    source.give(said)
    await client.head()
    assert await client.chunk() == said
    await soon(server.drain(0.05))
    assert source.closed.is_set()
    event = await client.chunk()
    assert event.startswith(gap + b"data: {")
    assert json.loads(event.removeprefix(gap)[6:])["error"]["code"] == "draining"
    assert await client.at_end()


async def test_drain_cuts_a_stream_of_other_bytes(serve: Any, connect: Any) -> None:
    source = Source()
    server = await serve(streaming(source, content_type="audio/wav"))
    client = await connect(server)
    await begin(client)
    source.give(EVENT)
    await client.head()
    assert await client.chunk() == EVENT
    await soon(server.drain(0.05))
    assert await client.at_end()


async def test_drain_does_not_wait_for_a_slow_reader(serve: Any, connect: Any) -> None:
    source = Source()
    server = await serve(streaming(source))
    client = await connect(server)
    await begin(client)
    source.give(*[bytes(1 << 20)] * 64)
    await client.head()
    (connection,) = server._state.connections
    await until(lambda: connection.flow.write_paused)
    await soon(server.drain(0))
    assert source.closed.is_set()
    assert not server.in_flight


async def test_a_reader_that_takes_nothing_is_cut(serve: Any, connect: Any) -> None:
    source = Source()
    source.give(*[b"x" * 65_536] * 400, None)
    server = await serve(streaming(source), send_timeout=0.05)
    client = await connect(server)
    client.writer.transport.pause_reading()
    await begin(client)
    await soon(source.closed.wait())
    await until(lambda: not server.in_flight)
