"""What the server refuses before a request reaches the node, and how it says so."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hyperbeam import Message

from .support import Client, soon, until


async def echo(request: Message) -> Any:
    return {
        "content-type": "application/octet-stream",
        "body": request["body"],
        "path-seen": request["path"],
    }


HOST = b"host: x\r\n"
POST = b"POST /a HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"

MALFORMED = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "length and chunked": POST
    + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST
    + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "equal lengths": POST + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "different lengths": POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "length list": POST + b"content-length: 5, 5\r\n\r\nhello",
    "signed length": POST + b"content-length: +5\r\n\r\nhello",
    "negative length": POST + b"content-length: -5\r\n\r\nhello",
    "hex length": POST + b"content-length: 0x5\r\n\r\nhello",
    "huge length": POST + b"content-length: 99999999999999999999999\r\n\r\n",
    "empty length": POST + b"content-length: \r\n\r\n",
    "obs-fold": POST + b"x: a\r\n b\r\n\r\n",
    "obs-fold framing": POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare LF in headers": POST + b"x: a\ny: b\r\n\r\n",
    "bare LF ends": b"GET / HTTP/1.1\nhost: x\n\n",
    "bare CR": POST + b"x: a\rb: c\r\n\r\n",
    "space before colon": POST + b"content-length : 5\r\n\r\nhello",
    "leading space": b"GET / HTTP/1.1\r\n host: x\r\n\r\n",
    "NUL in a value": POST + b"x: a\0b\r\n\r\n",
    "NUL in a name": POST + b"x\0: a\r\n\r\n",
    "NUL in the target": b"GET /a\0b HTTP/1.1\r\n" + HOST + b"\r\n",
    "no name": POST + b": a\r\n\r\n",
    "gzip coding": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size no number": CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
    "chunk size negative": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk size 0x": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size too large": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    "chunk size and space": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk ends in LF": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "chunk longer than said": CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
    "raw UTF-8 target": "GET /é HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "target with a space": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "target with a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "target without slash": b"GET a HTTP/1.1\r\n" + HOST + b"\r\n",
    "asterisk": b"GET * HTTP/1.1\r\n" + HOST + b"\r\n",
    "CONNECT": b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("split", [False, True], ids=["whole", "bytewise"])
async def test_malformed_requests_are_400_in_our_shape(
    serve: Any, connect: Any, raw: bytes, split: bool
) -> None:
    seen = []

    async def answer(request: Message) -> str:
        seen.append(request)
        return "reached"

    server = await serve(answer)
    client: Client = await connect(server)
    for piece in [raw[i : i + 1] for i in range(len(raw))] if split else [raw]:
        await client.send(piece)
        if split:
            await asyncio.sleep(0)
    reply = await client.response()
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["connection"] == "close"
    assert reply.headers["access-control-allow-origin"] == "*"
    assert set(reply.json) == {"status", "error", "body"}
    assert (reply.json["status"], reply.json["error"]) == (400, "bad_request")
    assert await client.at_end()
    assert not seen


@pytest.mark.parametrize("version", [b" HTTP/0.9", b" HTTP/2.0", b""])
async def test_other_versions_are_505(serve: Any, connect: Any, version: bytes) -> None:
    client = await connect(await serve(echo))
    await client.send(b"GET /" + version + b"\r\nhost: x\r\n\r\n")
    assert (await client.response()).status == 505


async def test_a_head_over_64_kib_is_refused(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 66_000)
    reply = await client.response()
    assert (reply.status, reply.json["error"]) == (431, "head_too_large")
    assert await client.at_end()


async def test_a_head_of_60_kb_is_served(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    reply = await client.get("/", "x: " + "a" * 60_000)
    assert reply.status == 200


async def test_a_target_of_60_kb_is_served_as_received(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    path = "/%2F" + "a" * 60_000 + "?b=%20"
    assert (await client.get(path)).headers["path-seen"] == path


async def test_headers_are_counted(serve: Any, connect: Any) -> None:
    server = await serve(echo)
    client = await connect(server)
    assert (await client.get("/", *(f"x{n}: 1" for n in range(199)))).status == 200
    reply = await client.get("/", *(f"x{n}: 1" for n in range(200)))
    assert (reply.status, reply.json["error"]) == (431, "head_too_large")


async def test_an_endless_line_of_empty_lines_is_refused(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(b"\r\n" * 40_000)
    assert (await client.response()).status == 431


async def test_a_head_that_is_never_finished_times_out(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, header_timeout=0.1))
    await client.send(b"GET / HTTP/1.1\r\nhost:")
    reply = await client.response()
    assert (reply.status, reply.json["error"]) == (408, "request_timeout")
    assert await client.at_end()


async def test_a_connection_that_says_nothing_is_closed(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, header_timeout=0.1))
    assert await client.at_end()


async def test_a_second_head_times_out_too(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, header_timeout=0.1, idle_timeout=60))
    assert (await client.get("/")).status == 200
    await client.send(b"GET /")
    assert (await client.response()).status == 408


async def test_an_idle_connection_is_closed(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, idle_timeout=0.1))
    assert (await client.get("/")).status == 200
    assert await client.at_end()


async def test_a_body_that_is_never_finished_times_out(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_timeout=0.1))
    await client.send(POST + b"content-length: 5\r\n\r\nhel")
    reply = await client.response()
    assert reply.status == 408
    assert "body" in reply.json["body"]


async def test_a_body_that_trickles_times_out(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_timeout=0.2))
    await client.send(POST + b"content-length: 100000\r\n\r\n")
    answer = asyncio.create_task(client.response())
    while not answer.done():
        await client.send(b"x")
        await asyncio.wait([answer], timeout=0.02)
    assert (await answer).status == 408


async def test_a_slow_body_that_goes_on_is_read(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(POST + b"content-length: 5\r\n\r\n")
    for letter in b"hello":
        await client.send(bytes([letter]))
        await asyncio.sleep(0)
    assert (await client.response()).body == b"hello"


async def test_a_body_over_the_limit_is_413_before_it_is_read(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_limit=1000))
    await client.send(POST + b"content-length: 1001\r\n\r\n")
    reply = await client.response()
    assert reply.status == 413
    assert reply.headers["connection"] == "close"
    assert await client.at_end()


async def test_a_body_at_the_limit_is_served(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_limit=1000))
    await client.send(POST + b"content-length: 1000\r\n\r\n" + b"a" * 1000)
    assert (await client.response()).body == b"a" * 1000
    await client.send(CHUNKED + b"3e8\r\n" + b"b" * 1000 + b"\r\n0\r\n\r\n")
    assert (await client.response()).body == b"b" * 1000


async def test_a_chunked_body_over_the_limit_is_413_as_it_comes(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_limit=1000))
    await client.send(CHUNKED + b"258\r\n" + b"a" * 600 + b"\r\n")
    await client.send(b"258\r\n" + b"a" * 600 + b"\r\n")
    assert (await client.response()).status == 413
    assert await client.at_end()


async def test_a_client_that_sends_a_refused_body_still_reads_the_answer(
    serve: Any, connect: Any
) -> None:
    client = await connect(await serve(echo, body_limit=1000))
    size = 8 * 1024 * 1024
    await soon(client.send(POST + b"content-length: %d\r\n\r\n" % size, b"a" * size))
    assert (await client.response()).status == 413


async def test_an_error_after_the_head_has_the_shape_of_its_path(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_limit=10))
    await client.send(b"POST /v1/chat HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n")
    reply = await client.response()
    assert reply.status == 413
    assert reply.json["error"]["code"] == "too_large"


@pytest.mark.parametrize("junk", [b"1;" + b"x" * 70_000, b"0\r\n" + b"t: v\r\n" * 20_000])
async def test_endless_extensions_and_trailers_are_refused(
    serve: Any, connect: Any, junk: bytes
) -> None:
    client = await connect(await serve(echo))
    await client.send(CHUNKED)
    for start in range(0, len(junk), 1000):
        await client.send(junk[start : start + 1000])
    assert (await client.response()).status == 400


async def test_trailers_and_extensions_are_not_headers(serve: Any, connect: Any) -> None:
    keys = []

    async def answer(request: Message) -> str:
        keys.append(set(request))
        return "ok"

    client = await connect(await serve(answer))
    await client.send(CHUNKED + b"5;a=b\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n")
    assert (await client.response()).status == 200
    assert keys == [{"accept-bundle", "host", "method", "path", "body", "priv"}]


async def test_expect_continue(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(POST + b"content-length: 5\r\nexpect: 100-continue\r\n\r\n")
    interim = await soon(client.reader.readuntil(b"\r\n\r\n"))
    assert interim.startswith(b"HTTP/1.1 100 ")
    await client.send(b"hello")
    assert (await client.response()).body == b"hello"


async def test_expect_continue_of_too_large_a_body_is_413_at_once(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo, body_limit=4))
    await client.send(POST + b"content-length: 5\r\nexpect: 100-continue\r\n\r\n")
    assert (await client.response()).status == 413


@pytest.mark.parametrize("framing", ["length", "chunked", "none"])
async def test_an_upgrade_is_ignored_and_the_body_read(
    serve: Any, connect: Any, framing: str
) -> None:
    client = await connect(await serve(echo))
    head = POST + b"connection: upgrade\r\nupgrade: h2c\r\n"
    tail = {
        "length": b"content-length: 5\r\n\r\nhello",
        "chunked": b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "none": b"\r\n",
    }[framing]
    for _ in range(2):
        await client.send(head + tail)
        reply = await client.response()
        assert (reply.status, reply.body) == (200, b"" if framing == "none" else b"hello")


async def test_the_absolute_form_names_a_path(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    for target, path in [
        ("http://x/a?b=c", "/a?b=c"),
        ("HTTP://x", "/"),
        ("https://x?b=/c", "/?b=/c"),
    ]:
        assert (await client.get(target)).headers["path-seen"] == path


async def test_http_1_0(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(b"POST /a HTTP/1.0\r\ncontent-length: 2\r\n\r\nhi")
    reply = await client.response()
    assert (reply.status, reply.body) == (200, b"hi")
    assert reply.headers["connection"] == "close"
    assert await client.at_end()


async def test_connection_close_is_kept(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    reply = await client.get("/", "connection: close")
    assert reply.headers["connection"] == "close"
    assert await client.at_end()


async def test_requests_that_arrive_byte_by_byte(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    for raw in (POST + b"content-length: 3\r\n\r\nabc", CHUNKED + b"3\r\nabc\r\n0\r\n\r\n") * 2:
        for at in range(len(raw)):
            await client.send(raw[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.response()).body == b"abc"


async def test_pipelined_requests_are_answered_in_order(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    one = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n%d"
    await client.send(b"".join(one % (n, n) for n in range(10)))
    for n in range(10):
        reply = await client.response()
        assert (reply.headers["path-seen"], reply.body) == (f"/{n}", str(n).encode())


async def test_many_pipelined_bytes_arrive(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    body = b"a" * 1_000
    one = POST + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    sending = asyncio.create_task(client.send(one * 40))
    for _ in range(40):
        assert (await client.response()).body == body
    await soon(sending)


async def test_what_follows_a_chunked_body_is_not_half_served(serve: Any, connect: Any) -> None:
    client = await connect(await serve(echo))
    await client.send(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n" + POST + b"content-length: 1\r\n\r\nx")
    reply = await client.response()
    assert (reply.body, reply.headers["connection"]) == (b"abc", "close")
    assert await client.at_end()


async def test_a_malformed_second_request_does_not_spoil_the_first(
    serve: Any, connect: Any
) -> None:
    client = await connect(await serve(echo))
    await client.send(POST + b"content-length: 3\r\n\r\nabc" + b"BREW / HTTP/1.1\r\n\r\n")
    assert (await client.response()).body == b"abc"
    assert (await client.response()).status == 400
    assert await client.at_end()


async def test_unfinished_bodies_are_bounded_altogether(serve: Any, connect: Any) -> None:
    server = await serve(echo)
    server.limits = replace(server.limits, unfinished=100_000)
    first, second = [await connect(server) for _ in range(2)]
    head = POST + b"content-length: 90000\r\n\r\n"
    await first.send(head + b"a" * 60_000)
    await until(lambda: server.unfinished == 60_000)
    await second.send(head + b"a" * 60_000)
    reply = await second.response()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    await first.send(b"a" * 30_000)
    assert (await first.response()).body == b"a" * 90_000
    assert server.unfinished == 0
