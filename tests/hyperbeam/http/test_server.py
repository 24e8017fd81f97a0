"""The server as a whole: start and end, leaving clients, errors, CORS, HEAD."""

import asyncio
import logging
from typing import Any

import pytest

from hyperbeam import Atom, BadRequest, ConfigError, Link, Message, Unavailable
from hyperbeam.http import Server
from hyperbeam.http import server as module
from hyperbeam.http.limits import PIPELINE_LIMIT

from .support import Handler, soon, until


async def hello(request: Message) -> str:
    return "hello"


async def test_a_taken_port_is_a_clear_config_error(serve: Any) -> None:
    first = await serve(hello)
    second = Server(Handler(hello), port=first.port)
    with pytest.raises(ConfigError, match=f"port {first.port} on 127.0.0.1 is taken"):
        await second.start()
    await second.drain(0)


async def test_a_host_that_is_not_ours_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        await Server(Handler(hello), host="192.0.2.1", port=0).start()
    with pytest.raises(ConfigError, match="no such host"):
        await Server(Handler(hello), host="no such host", port=0).start()


async def test_all_addresses_of_a_host_share_one_port(serve: Any, connect: Any) -> None:
    server = await serve(hello, host="localhost")
    assert (await (await connect(server)).get("/")).status == 200


async def test_a_server_that_was_never_started_ends() -> None:
    await Server(Handler(hello)).drain(1)


async def test_the_request_message(serve: Any, connect: Any) -> None:
    seen: list[Message] = []

    async def keep(request: Message) -> str:
        seen.append(request)
        return "ok"

    client = await connect(await serve(keep))
    await client.get(
        "/~a@1.0/b%2Fc?x=%20&y",
        "X-Case: One",
        "x-case: two",
        "Authorization: Bearer secret",
        "Cookie: a=1",
        "Cookie: b=2",
        "Proxy-Authorization: p",
        "X-Api-Key: k",
        "connection: keep-alive",
        "te: trailers",
        "n+integer: 42",
        "priv: x",
        "priv.headers: x",
        "method: DELETE",
        "path: /other",
        "body: forged",
        "x-name: \u00fc",
    )
    (request,) = seen
    private = request.pop("priv")
    assert request == {
        "method": "GET",
        "path": "/~a@1.0/b%2Fc?x=%20&y",
        "body": b"",
        "host": "x",
        "x-case": "One, two",
        "n+integer": "42",
        "x-name": "\u00fc",
        "accept-bundle": False,
    }
    assert private["client"] == "127.0.0.1"
    assert private["headers"] == {
        "authorization": "Bearer secret",
        "cookie": "a=1; b=2",
        "proxy-authorization": "p",
        "x-api-key": "k",
    }
    assert {"host", "x-case", "n+integer"} <= private["request-headers"]
    assert "authorization" not in private["request-headers"]


async def test_options_is_answered_without_the_node(serve: Any, connect: Any) -> None:
    async def unreachable(request: Message) -> str:
        raise AssertionError

    client = await connect(await serve(unreachable))
    reply = await client.get(
        "/v1/chat/completions",
        "origin: http://a.example",
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,content-type",
        method="OPTIONS",
    )
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == "*"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "content-length" not in reply.headers
    assert (await client.get("*", method="OPTIONS")).status == 204


async def test_head_has_the_headers_of_get_and_no_body(serve: Any, connect: Any) -> None:
    client = await connect(await serve(hello))
    get = await client.get("/")
    head = await client.get("/", method="HEAD")
    get.headers.pop("date")
    head.headers.pop("date")
    assert get.headers.pop("x-request-id") != head.headers.pop("x-request-id")
    assert head.headers == get.headers
    assert head.headers["content-length"] == str(len(get.body)) != "0"


async def test_a_refusal_is_rendered_by_the_node(serve: Any, connect: Any) -> None:
    async def refuse(request: Message) -> str:
        raise Unavailable("loading", retry_after=3, error="loading")

    client = await connect(await serve(refuse))
    reply = await client.get("/", "accept: application/json")
    assert reply.status == 503
    assert reply.headers["retry-after"] == "3"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.json == {"status": 503, "error": "loading", "body": "loading"}
    reply = await client.get("/v1/x")
    assert (reply.status, reply.json["error"]["code"]) == (503, "loading")
    assert reply.headers["retry-after"] == "3"


async def test_an_unforeseen_error_is_a_500_with_the_id_of_the_log(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: Message) -> str:
        raise RuntimeError("the secret reason")

    client = await connect(await serve(fail))
    with caplog.at_level(logging.ERROR, "hyperbeam.http"):
        reply = await client.get("/a?token=t0ken", "accept: application/json")
    assert reply.status == 500
    assert set(reply.json) == {"status", "error", "body"}
    assert b"secret" not in reply.body
    (record,) = caplog.records
    name = record.getMessage().split()[1]
    assert name in reply.json["body"]
    assert "the secret reason" in caplog.text
    assert "t0ken" not in caplog.text


async def test_an_error_in_rendering_an_error_is_a_500(
    serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: Message) -> str:
        raise BadRequest("no")

    def broken(*arguments: Any) -> Message:
        raise RuntimeError("secret")

    server = await serve(refuse)
    monkeypatch.setattr(server.handler, "render_error", broken)
    client = await connect(server)
    reply = await client.get("/")
    assert (reply.status, reply.json["error"]) == (500, "internal_error")
    assert b"secret" not in reply.body


async def test_a_result_that_no_codec_can_write_is_an_error_not_a_hang(
    serve: Any, connect: Any
) -> None:
    async def odd(request: Message) -> Any:
        return {"a": object()}

    client = await connect(await serve(odd))
    for accept in ("application/json", "*/*"):
        assert 400 <= (await client.get("/", f"accept: {accept}")).status < 600
    assert (await client.get("/", "accept: text/html")).status == 200


@pytest.mark.parametrize("result", [{1}, (1,), (n for n in "a"), object(), bytearray(b"a")])
async def test_a_result_that_is_no_message_value_is_a_logged_500(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture, result: Any
) -> None:
    async def odd(request: Message) -> Any:
        return result

    client = await connect(await serve(odd))
    for accept in ("application/json", "*/*", "text/html"):
        assert (await client.get("/", f"accept: {accept}")).status == 500
    assert len(caplog.records) == 3
    assert "which is no message value" in caplog.text


@pytest.mark.parametrize(
    "result", [{}, [], "a", b"a", 1, 1.5, True, None, Atom("a"), Link("a" * 43)]
)
async def test_every_message_value_is_a_result(serve: Any, connect: Any, result: Any) -> None:
    async def plain(request: Message) -> Any:
        return result

    reply = await (await connect(await serve(plain))).get("/", "accept: text/html")
    assert reply.status == 200


async def test_a_relayed_head_keeps_its_length(serve: Any, connect: Any) -> None:
    async def relayed(request: Message) -> Message:
        given = {
            "reply-headers": [("content-length", "33"), ("set-cookie", "a"), ("set-cookie", "b")]
        }
        return {"status": 200, "content-type": "text/plain", "body": b"", "priv": given}

    client = await connect(await serve(relayed))
    for _ in range(2):
        reply = await client.get("/", method="HEAD")
        assert reply.headers["content-length"] == "33"
        assert reply.names.count("set-cookie") == 2


class Held:
    """A handler that says when it runs, when it ends and when it is cancelled."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, request: Message) -> str:
        self.running.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"


GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
@pytest.mark.parametrize("pipelined", [0, 3])
async def test_a_leaving_client_cancels_its_request(
    serve: Any, connect: Any, way: str, pipelined: int
) -> None:
    held = Held()
    server = await serve(held)
    client = await connect(server)
    await client.send(b"".join(GET % n for n in range(1 + pipelined)))
    await soon(held.running.wait())
    assert server.in_flight == 1
    client.leave(way)
    if way == "half-close":
        assert await client.at_end()
    await soon(held.cancelled.wait())
    await until(lambda: not server.in_flight)


async def test_what_waits_behind_a_request_is_bounded_and_hides_no_leaving(
    serve: Any, connect: Any
) -> None:
    held = Held()
    server = await serve(held)
    client = await connect(server)
    await client.send(GET % 1)
    await soon(held.running.wait())
    (connection,) = server._state.connections
    await soon(client.send(*[b"x" * 65_536] * 100))
    assert len(connection._waiting) <= PIPELINE_LIMIT
    client.leave("close")
    await soon(held.cancelled.wait())


async def test_a_leaving_client_is_no_error_in_the_log(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    server = await serve(held)
    client = await connect(server)
    await client.send(GET % 1)
    await soon(held.running.wait())
    client.leave("reset")
    await soon(held.cancelled.wait())
    await until(lambda: not server.in_flight)
    assert not caplog.records


async def test_a_client_that_leaves_before_its_body_is_complete(serve: Any, connect: Any) -> None:
    server = await serve(hello)
    client = await connect(server)
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhel")
    client.writer.close()
    assert (await (await connect(server)).get("/")).status == 200
    assert server.in_flight == 0


async def test_drain_lets_running_requests_end_and_refuses_new_ones(
    serve: Any, connect: Any
) -> None:
    held = Held()
    server = await serve(held)
    running, idle, slow = [await connect(server) for _ in range(3)]
    await running.send(GET % 1)
    await soon(held.running.wait())
    await slow.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
    await until(lambda: len(server._state.connections) == 3)
    drained = asyncio.create_task(server.drain(30))
    await until(lambda: server.draining)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    await slow.send(b"b")
    for client, request in ((idle, GET % 2), (slow, b"")):
        await client.send(request)
        refused = await client.response()
        assert (refused.status, refused.json["error"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) > 0
    assert not drained.done()
    held.release.set()
    reply = await running.response()
    assert (reply.status, reply.body) == (200, b"done")
    assert reply.headers["connection"] == "close"
    await soon(drained)
    assert await running.at_end()


async def test_drain_cuts_what_takes_too_long(serve: Any, connect: Any) -> None:
    held = Held()
    server = await serve(held)
    client = await connect(server)
    await client.send(GET % 1)
    await soon(held.running.wait())
    await soon(server.drain(0.05))
    assert held.cancelled.is_set()
    reply = await client.response()
    assert (reply.status, reply.json["error"]) == (503, "draining")
    assert await client.at_end()
    assert server.in_flight == 0


async def test_drain_closes_idle_connections(serve: Any, connect: Any) -> None:
    server = await serve(hello)
    client = await connect(server)
    assert (await client.get("/")).status == 200
    await soon(server.drain(30))
    assert await client.at_end()


async def test_a_retired_server_answers_what_its_connections_ask(
    serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", 0.2)
    held = Held()
    server = await serve(held)
    running, slow, idle, silent = [await connect(server) for _ in range(4)]
    await running.send(GET % 1)
    await soon(held.running.wait())
    await slow.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
    await until(lambda: len(server._state.connections) == 4)
    retired = asyncio.create_task(server.retire())
    await until(lambda: server.retiring)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    await idle.send(GET % 2)
    assert await silent.at_end()
    held.release.set()
    for client, rest in ((slow, b"b"), (idle, b""), (running, b"")):
        await client.send(rest)
        reply = await client.response()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.at_end()
    await soon(retired)


async def test_two_processes_may_listen_on_one_socket(serve: Any, connect: Any) -> None:
    first = await serve(hello)
    second = Server(Handler(hello))
    copy = first.sockets[0].dup()
    copy.setblocking(False)
    await second.start([copy])
    assert second.port == first.port
    await soon(first.retire())
    assert (await (await connect(second)).get("/")).status == 200
    await second.drain(0)


async def test_two_servers_in_one_process(serve: Any, connect: Any) -> None:
    first, second = await serve(hello), await serve(hello)
    assert first.port != second.port
    await first.drain(0)
    assert (await (await connect(second)).get("/")).status == 200


async def test_many_requests_on_one_connection(serve: Any, connect: Any) -> None:
    client = await connect(await serve(hello))
    for _ in range(300):
        assert (await client.get("/")).body == b"hello"
