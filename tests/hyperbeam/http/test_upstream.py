"""The outbound client against a scripted backend: framing, pool, limits, broken answers."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import BadGateway, BadRequest, GatewayTimeout
from hyperbeam.http import Upstream
from hyperbeam.http.connection import WINDOW
from hyperbeam.http.target import parse_url, request_head

from .support import Backend, Connection, soon, until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def always(*answers: bytes) -> Any:
    """A backend that gives each request the whole of `answers` and keeps the connection."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            for answer in answers:
                await connection.send(answer)

    return script


def once(*answers: bytes) -> Any:
    """A backend that answers one request and closes."""

    async def script(connection: Connection) -> None:
        await connection.request()
        for answer in answers:
            await connection.send(answer)

    return script


async def get(upstream: Upstream, backend: Backend, path: str = "/", **options: Any) -> Any:
    return await soon(upstream.request(backend.url + path, "GET", [], b"", **options))


async def test_what_is_sent_and_what_comes_back(backend: Any, upstream: Upstream) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(connection: Connection) -> None:
        seen.append(await connection.request())
        await connection.send(
            b"HTTP/1.1 404 Nope\r\nX-A: 1\r\nX-A: 2\r\ncontent-length: 2\r\n\r\nno"
        )

    server = await backend(script)
    headers = [(b"X-B", b"3"), (b"connection", b"close"), (b"content-length", b"99"), (b"te", b"x")]
    reply = await soon(upstream.request(server.url + "/a%2Fb?c=d&e", "POST", headers, b"body"))
    assert reply.status == 404
    assert reply.headers == [(b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"2")]
    assert (reply.header(b"x-a"), reply.header(b"x-c")) == (b"1", None)
    assert await soon(reply.read()) == b"no"
    host = server.url.removeprefix("http://").encode()
    assert seen == [
        (
            b"POST /a%2Fb?c=d&e HTTP/1.1\r\nhost: "
            + host
            + b"\r\nX-B: 3\r\ncontent-length: 4\r\n\r\n",
            b"body",
        )
    ]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"hello"),
        (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nt: 1\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, b"hello"),
    ],
    ids=["length", "chunked", "204", "empty", "interim"],
)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "bytewise"])
async def test_bodies_and_reuse(
    backend: Any, upstream: Upstream, answer: bytes, body: bytes, split: bool
) -> None:
    pieces = [answer[i : i + 1] for i in range(len(answer))] if split else [answer]
    server = await backend(always(*pieces))
    for _ in range(3):
        reply = await get(upstream, server)
        assert not any(name == b"link" for name, _ in reply.headers)
        assert await soon(reply.read()) == body
    assert server.connections == 1


async def test_a_body_that_ends_with_the_connection(backend: Any, upstream: Upstream) -> None:
    server = await backend(once(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"))
    for _ in range(2):
        assert await soon((await get(upstream, server)).read()) == b"hello"
    assert server.connections == 2


async def test_connection_close_is_heeded(backend: Any, upstream: Upstream) -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
    server = await backend(always(answer))
    for _ in range(2):
        assert await soon((await get(upstream, server)).read()) == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("kind", "connections"), [(b"text/event-stream", 2), (b"application/json", 1)]
)
async def test_llama_cpp_ends_the_connection_after_a_stream_unsaid(
    backend: Any, upstream: Upstream, kind: bytes, connections: int
) -> None:
    server = await backend(
        always(
            b"HTTP/1.1 200 OK\r\nserver: llama.cpp\r\ncontent-type: " + kind + b"\r\n"
            b"keep-alive: timeout=5, max=100\r\ncontent-length: 5\r\n\r\nhello"
        )
    )
    for _ in range(2):
        await soon((await get(upstream, server)).read())
    assert server.connections == connections


async def test_head_has_no_body_and_keeps_the_connection(backend: Any, upstream: Upstream) -> None:
    head = OK.removesuffix(b"hello")
    server = await backend(always(head))
    for _ in range(2):
        reply = await soon(upstream.request(server.url, "HEAD", [], b""))
        assert (reply.header(b"content-length"), await soon(reply.read())) == (b"5", b"")
    assert server.connections == 1


async def test_redirects_are_not_followed(backend: Any, upstream: Upstream) -> None:
    server = await backend(
        always(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n")
    )
    assert (await get(upstream, server)).status == 302


async def test_pieces_come_as_they_arrive(backend: Any, upstream: Upstream) -> None:
    turn: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        while piece := await turn.get():
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await connection.send(b"0\r\n\r\n")

    server = await backend(script)
    reply = await get(upstream, server)
    for piece in (b"data: 1\n\n", b"data: 2", b"\n\n"):
        turn.put_nowait(piece)
        assert await soon(anext(reply)) == piece
    turn.put_nowait(b"")
    assert [chunk async for chunk in reply] == []


async def test_a_unix_socket(backend: Any, upstream: Upstream, tmp_path: Path) -> None:
    path = str(tmp_path / "b.sock")
    server = await backend(always(OK), path=path)
    url = f"http+unix://{quote(path, safe='')}/v1?x=1"
    for _ in range(2):
        assert await soon((await upstream.request(url, "GET", [], b"")).read()) == b"hello"
    assert server.connections == 1
    with pytest.raises(BadGateway) as caught:
        await upstream.request(url.replace("b.sock", "none"), "GET", [], b"")
    assert caught.value.error == "backend_unreachable"


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    backend: Any, upstream: Upstream, certificate: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = await backend(always(OK), ssl=context)
    with pytest.raises(BadGateway) as caught:
        await get(upstream, server)
    assert caught.value.error == "backend_unreachable"
    upstream._ssl = ssl.create_default_context(cafile=str(certificate))
    for _ in range(2):
        assert await soon((await get(upstream, server)).read()) == b"hello"


async def test_a_refused_connection(upstream: Upstream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(BadGateway) as caught:
            await upstream.request(url, "GET", [], b"")
    assert caught.value.error == "backend_unreachable"


async def test_a_connection_that_takes_too_long(upstream: Upstream) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            with pytest.raises(GatewayTimeout) as caught:
                url = f"http://127.0.0.1:{address[1]}/"
                await soon(upstream.request(url, "GET", [], b"", connect_timeout=0.05))
        finally:
            for filler in fillers:
                filler.close()
    assert caught.value.error == "connect_timeout"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_no_head_in_time(backend: Any, upstream: Upstream, answer: bytes) -> None:
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(answer)
        await connection.closed()
        gone.set()

    server = await backend(script)
    with pytest.raises(GatewayTimeout) as caught:
        await get(upstream, server, first_byte_timeout=0.05)
    assert caught.value.error == "first_byte_timeout"
    await soon(gone.wait())


async def test_silence_in_the_body(backend: Any, upstream: Upstream) -> None:
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + b"1\r\na\r\n")
        await connection.closed()
        gone.set()

    server = await backend(script)
    reply = await get(upstream, server, idle_timeout=0.05)
    assert await soon(anext(reply)) == b"a"
    with pytest.raises(GatewayTimeout) as caught:
        await soon(anext(reply))
    assert caught.value.error == "idle_timeout"
    await soon(gone.wait())
    assert [chunk async for chunk in reply] == []


async def test_a_timer_of_an_earlier_request_does_not_strike_later(
    backend: Any, upstream: Upstream
) -> None:
    release = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.request()
        await release.wait()
        await connection.send(OK)

    server = await backend(script)
    await soon((await get(upstream, server, first_byte_timeout=0.05)).read())
    second = asyncio.create_task(get(upstream, server, first_byte_timeout=60))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    release.set()
    assert await soon((await second).read()) == b"hello"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nconte"], ids=["nothing", "half a head"]
)
async def test_a_backend_that_dies_before_its_answer(
    backend: Any, upstream: Upstream, answer: bytes
) -> None:
    server = await backend(once(answer))
    with pytest.raises(BadGateway) as caught:
        await get(upstream, server)
    assert caught.value.error == "backend_died"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK[:-1],
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
    ],
    ids=["length", "in a chunk", "between chunks", "in the end"],
)
async def test_a_body_cut_short_raises(backend: Any, upstream: Upstream, answer: bytes) -> None:
    server = await backend(once(answer))
    reply = await get(upstream, server)
    with pytest.raises(BadGateway) as caught:
        await soon(reply.read())
    assert caught.value.error == "backend_died"


INVALID = {
    "no HTTP": b"SSH-2.0-OpenSSH_9\r\n",
    "bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "large head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 201 + b"\r\n",
    "endless interim": b"HTTP/1.1 103 Early\r\n\r\n" * 4_000,
}


@pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID.keys())
async def test_an_answer_that_is_no_http(backend: Any, upstream: Upstream, answer: bytes) -> None:
    server = await backend(always(answer))
    with pytest.raises(BadGateway) as caught:
        await soon((await get(upstream, server)).read())
    assert caught.value.error == "backend_invalid"


@pytest.mark.parametrize(
    "junk", [b"zz\r\n", b"1;" + b"x" * 200_000, b"0\r\n" + b"t: v\r\n" * 40_000]
)
async def test_a_body_that_is_no_body(backend: Any, upstream: Upstream, junk: bytes) -> None:
    server = await backend(always(CHUNKED + b"1\r\na\r\n", junk))
    reply = await get(upstream, server)
    with pytest.raises(BadGateway) as caught:
        await soon(reply.read())
    assert caught.value.error == "backend_invalid"


async def test_a_second_response_is_never_used(backend: Any, upstream: Upstream) -> None:
    server = await backend(always(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"))
    for _ in range(2):
        assert await soon((await get(upstream, server)).read()) == b"hello"
    assert server.connections == 2


async def test_an_idle_connection_that_speaks_is_dropped(backend: Any, upstream: Upstream) -> None:
    speak = asyncio.Event()
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        await speak.wait()
        await connection.send(b"HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n")
        await connection.closed()
        gone.set()

    server = await backend(script)
    await soon((await get(upstream, server)).read())
    speak.set()
    await soon(gone.wait())
    assert (await get(upstream, server)).status == 200
    assert server.connections == 2


async def test_a_reused_connection_that_was_closed_is_replaced(
    backend: Any, upstream: Upstream
) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        if server.connections == 1:
            await connection.request()  # and closes without a word
        else:
            await connection.closed()

    server = await backend(script)
    for _ in range(2):
        assert await soon((await get(upstream, server)).read()) == b"hello"
    assert server.connections == 2


async def test_a_request_is_tried_again_once_only(backend: Any, upstream: Upstream) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        if server.connections == 1:
            await connection.send(OK)
            await connection.request()

    server = await backend(script)
    await soon((await get(upstream, server)).read())
    with pytest.raises(BadGateway) as caught:
        await get(upstream, server)
    assert caught.value.error == "backend_died"
    assert server.connections == 2


async def test_a_request_that_was_half_answered_is_not_tried_again(
    backend: Any, upstream: Upstream
) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.request()
        await connection.send(b"HTTP/1.1 2")

    server = await backend(script)
    await soon((await get(upstream, server)).read())
    with pytest.raises(BadGateway) as caught:
        await get(upstream, server)
    assert caught.value.error == "backend_died"
    assert server.connections == 1


@pytest.mark.parametrize(
    ("method", "idempotent", "sent"),
    [
        ("POST", None, 1),
        ("POST", True, 2),
        ("GET", None, 2),
        ("GET", False, 1),
    ],
)
async def test_what_a_backend_may_have_begun_is_sent_again_only_if_that_is_allowed(
    backend: Any, upstream: Upstream, method: str, idempotent: bool | None, sent: int
) -> None:
    asked: list[bytes] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        asked.append((await connection.request())[1])  # and dies at work

    server = await backend(script)
    await soon((await get(upstream, server)).read())
    request = upstream.request(server.url, method, [], b"work", idempotent=idempotent)
    if sent == 1:
        with pytest.raises(BadGateway) as caught:
            await soon(request)
        assert caught.value.error == "backend_died"
    else:
        assert await soon((await soon(request)).read()) == b"hello"
    assert (asked, server.connections) == ([b"work"], sent)


async def test_a_kept_connection_is_looked_at_before_it_is_used(
    backend: Any, upstream: Upstream
) -> None:
    close = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        if server.connections == 1:
            await close.wait()
        else:
            await connection.closed()

    server = await backend(script)
    await soon((await get(upstream, server)).read())
    ((kept,),) = upstream._idle.values()
    assert kept._transport is not None
    kept._transport.pause_reading()  # the event loop does not see the end
    close.set()
    await until(lambda: not kept.quiet())
    assert kept.usable
    reply = await soon(upstream.request(server.url, "POST", [], b"work"))
    assert await soon(reply.read()) == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize("first", [b"", CHUNKED + b"1\r\na\r\n"], ids=["head", "body"])
async def test_a_request_that_takes_too_long_altogether(
    backend: Any, upstream: Upstream, first: bytes
) -> None:
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        await connection.closed()
        gone.set()

    server = await backend(script)
    with pytest.raises(GatewayTimeout) as caught:
        reply = await get(upstream, server, idle_timeout=60, total_timeout=0.05)
        await soon(reply.read())
    assert caught.value.error == "total_timeout"
    await soon(gone.wait())


async def test_a_body_that_never_pauses_ends_at_the_total_limit(
    backend: Any, upstream: Upstream
) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        while True:
            await connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n")

    server = await backend(script)
    reply = await get(upstream, server, total_timeout=0.05)
    with pytest.raises(GatewayTimeout) as caught:
        async with asyncio.timeout(10):
            async for _ in reply:
                pass
    assert caught.value.error == "total_timeout"


async def test_idle_connections_are_closed_in_time(backend: Any) -> None:
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK)
        await connection.closed()
        gone.set()

    upstream = Upstream(keep_idle=0.05)
    server = await backend(script)
    await soon((await get(upstream, server)).read())
    await soon(gone.wait())
    assert not upstream._idle
    await upstream.close()


async def test_back_pressure_bounds_what_waits_unread(backend: Any, upstream: Upstream) -> None:
    size = 16 * 1024 * 1024

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        await connection.send(b"x" * size)

    server = await backend(script)
    reply = await get(upstream, server)
    connection = reply._connection
    await until(lambda: connection._paused)
    for _ in range(100):
        await asyncio.sleep(0)
    assert WINDOW < connection._size <= WINDOW + 256 * 1024
    assert len(await soon(reply.read())) == size


async def test_read_stops_at_its_limit(backend: Any, upstream: Upstream) -> None:
    server = await backend(always(OK))
    reply = await get(upstream, server)
    with pytest.raises(BadGateway) as caught:
        await soon(reply.read(4))
    assert caught.value.error == "response_too_large"
    assert await soon((await get(upstream, server)).read(5)) == b"hello"


async def test_aclose_ends_the_backends_work(backend: Any, upstream: Upstream) -> None:
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + b"1\r\na\r\n")
        await connection.closed()
        gone.set()

    server = await backend(script)
    reply = await get(upstream, server)
    await reply.aclose()
    await reply.aclose()
    await soon(gone.wait())
    assert [chunk async for chunk in reply] == []


async def test_aclose_of_a_whole_response_keeps_the_connection(
    backend: Any, upstream: Upstream
) -> None:
    server = await backend(always(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
    for _ in range(2):
        await (await get(upstream, server)).aclose()
    assert server.connections == 1


@pytest.mark.parametrize("moment", ["head", "body"])
async def test_a_cancelled_request_closes_its_connection(
    backend: Any, upstream: Upstream, moment: str
) -> None:
    asked = asyncio.Event()
    gone = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        if moment == "body":
            await connection.send(CHUNKED)
        asked.set()
        await connection.closed()
        gone.set()

    server = await backend(script)

    async def work() -> None:
        reply = await upstream.request(server.url, "GET", [], b"")
        await reply.read()

    task = asyncio.create_task(work())
    await soon(asked.wait())
    task.cancel()
    await soon(gone.wait())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not upstream._idle


async def test_close_ends_everything(backend: Any) -> None:
    upstream = Upstream()
    server = await backend(always(CHUNKED + b"1\r\na\r\n"))
    reply = await get(upstream, server)
    assert await soon(anext(reply)) == b"a"
    await upstream.close()
    with pytest.raises(BadGateway):
        await soon(anext(reply))
    await until(lambda: not server.open)


async def test_many_at_once(backend: Any, upstream: Upstream) -> None:
    server = await backend(always(OK))

    async def one() -> None:
        for _ in range(20):
            assert await soon((await get(upstream, server)).read()) == b"hello"

    await asyncio.gather(*(one() for _ in range(16)))
    assert server.connections <= 16


@pytest.mark.parametrize(
    "url",
    [
        "http://h/a b",
        "http://h/a\r\nx: y",
        "http://h/\0",
        "http://h/\u00fc",
        "http://h\r\n/",
        "http://h/a#b",
        "http://user:pass@h/",
        "http:///a",
        "http://h:99999/",
        "http://h:x/",
        "ftp://h/",
        "/a",
        "",
        "http+unix://relative/a",
        "http+unix://%2Fa%00b/",
        "http://[::1/",
    ],
)
async def test_urls_that_cannot_be_asked(upstream: Upstream, url: str) -> None:
    with pytest.raises(BadRequest):
        await upstream.request(url, "GET", [], b"")


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET\r\nx: y", []),
        ("GET /", []),
        ("", []),
        ("GET", [(b"a", b"b\r\nc: d")]),
        ("GET", [(b"a", b"b\nc: d")]),
        ("GET", [(b"a", b"b\rc")]),
        ("GET", [(b"a", b"b\0c")]),
        ("GET", [(b"a: b\r\nc", b"d")]),
        ("GET", [(b"a b", b"c")]),
        ("GET", [(b"", b"c")]),
        ("GET", [(b"host", b"a"), (b"Host", b"b")]),
    ],
)
async def test_headers_that_cannot_be_sent(
    upstream: Upstream, method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(BadRequest):
        await upstream.request("http://127.0.0.1:1/", method, headers, b"")


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4))
def test_no_header_ever_adds_a_line(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        head = request_head("GET", b"h", b"/", headers, b"")
    except BadRequest:
        return
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert len(lines) <= 2 + len(headers)
    assert not any(b"\n" in line or b"\r" in line for line in lines)


@given(st.text(max_size=20))
def test_no_url_ever_adds_a_line(text: str) -> None:
    try:
        _, host, target = parse_url(f"http://h/{text}")
    except BadRequest:
        return
    assert host == b"h"
    assert all(0x21 <= byte <= 0x7E for byte in target)
