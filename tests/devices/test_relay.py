import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from devices.relay import MAX_CASTS
from hyperbeam.access import KeyStore, Quota
from hyperbeam.node import Node
from hyperbeam.routing import load_routes
from tests.hyperbeam.conftest import StartNode


class Backend:
    """Answers with what it was asked; `/v1/stream` sends events and then waits for `release`."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = await reader.readexactly(length)
                self.requests.append(head + body)
                self.asked.set()
                await self.answer(head.split(b" ")[1], head + body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    async def answer(
        self, path: bytes, text: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path.startswith(b"/v1/stream"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
            await reader.readexactly(1)
        if path.startswith(b"/v1/large"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000)
            return
        if path.startswith(b"/v1/cookies"):
            writer.write(
                b"HTTP/1.1 302 Found\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nlocation: /y\r\n"
                b"connection: x-hop\r\nx-hop: 1\r\ncontent-length: 0\r\n"
                b"access-control-allow-credentials: true\r\n\r\n"
            )
            return
        if text.startswith(b"HEAD"):
            text = b""
        status = path.rpartition(b"/")[2] if b"/status/" in path else b"200"
        writer.write(
            b"HTTP/1.1 %b X\r\ncontent-type: text/plain\r\nx-backend: dummy\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, len(text), text)
        )


@pytest.fixture
async def backend() -> AsyncIterator[tuple[Backend, int]]:
    backend = Backend()
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
    async with server:
        yield backend, server.sockets[0].getsockname()[1]


@pytest.fixture
def node_of() -> list[Node]:
    """The node behind `relaying`."""
    return []


@pytest.fixture
async def relaying(
    start_node: StartNode, backend: tuple[Backend, int], tmp_path: Path, node_of: list[Node]
) -> AsyncIterator[httpx.AsyncClient]:
    routes = tmp_path / "routes.toml"
    routes.write_text(
        f'[[routes]]\ntemplate = "/v1/.*"\nnode = "http://127.0.0.1:{backend[1]}"\n'
        '[[routes]]\ntemplate = "/dead"\nnode = "http://127.0.0.1:1"\n'
    )
    node = await start_node(routes=str(routes))
    node_of.append(node)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/x?y=%2F", "/~relay@1.0/call?relay-path=/v1/x%3Fy=%252F"])
async def test_a_request_goes_along_a_route(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int], path: str
) -> None:
    headers = {"x-mine": "1", "authorization": "Bearer s3cret", "cookie": "s3cret"}
    reply = await relaying.post(path, content=b"hello", headers=headers)
    assert reply.status_code == 200
    assert reply.headers["x-backend"] == "dummy"
    (seen,) = backend[0].requests
    assert seen.startswith(b"POST /v1/x?y=%2F HTTP/1.1\r\n")
    assert seen.endswith(b"\r\n\r\nhello")
    assert b"x-mine: 1" in seen
    assert b"s3cret" not in seen
    assert reply.content == seen


@pytest.mark.parametrize("status", [201, 404, 429, 500, 503])
async def test_statuses_pass_through(relaying: httpx.AsyncClient, status: int) -> None:
    assert (await relaying.get(f"/v1/status/{status}")).status_code == status


async def test_a_stream_passes_through_and_its_end_reaches_the_backend(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int]
) -> None:
    async with relaying.stream("GET", "/v1/stream") as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        async for chunk in reply.aiter_bytes():
            assert chunk == b"data: 1\n\n"
            break
    await asyncio.wait_for(backend[0].left.wait(), 10)


async def test_a_stream_that_nobody_reads_leaves_its_node_free(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int], node_of: list[Node]
) -> None:
    assert (await relaying.head("/v1/stream")).status_code == 200
    await asyncio.wait_for(backend[0].left.wait(), 10)
    assert not any(node.in_flight for node in node_of[0].dispatch.nodes())


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/~relay@1.0/call?relay-path=/zzz", 404, "no_route"),
        ("/~relay@1.0/call?relay-path=http://127.0.0.1:1/x", 403, "forbidden"),
        ("/~relay@1.0/call?relay-path=HTTP://127.0.0.1:1/x", 403, "forbidden"),
        ("/~relay@1.0/call?relay-path=/v1/a%0d%0ax:y", 400, "bad_encoding"),
        ("/~relay@1.0/call?relay-path=/v1/a%20b", 400, "bad_request"),
        ("/~relay@1.0/call?relay-path=/v1/../secret", 400, "bad_request"),
        ("/v1/%2e%2e/secret", 400, "bad_request"),
        ("/v1/.%2E/secret", 400, "bad_request"),
        ("/v1/..%2fsecret", 400, "bad_request"),
        ("/~relay@1.0/call?relay-path=/v1/a/..", 400, "bad_request"),
        ("/v1/..%5csecret", 400, "bad_request"),
        ("/v1/status/999", 502, "bad_gateway"),
        ("/v1/status/100000", 502, "backend_invalid"),
        ("/~relay@1.0/call", 400, "bad_request"),
        ("/~relay@1.0/call?relay-path=/v1/x&relay-method=G%20T", 400, "bad_request"),
        ("/dead", 502, "backend_unreachable"),
    ],
)
async def test_refusals(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int], path: str, status: int, word: str
) -> None:
    reply = await relaying.get(path, headers={"accept": "application/json"})
    assert (reply.status_code, reply.json()["error"]) == (status, word)
    assert backend[0].requests == [] or "/status/" in path


async def test_the_clients_address_is_the_nodes_to_say(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int]
) -> None:
    forged = {"x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4", "x-real-ip": "1.2.3.4"}
    await relaying.get("/v1/x", headers=forged)
    sent = backend[0].requests[0].lower()
    assert b"1.2.3.4" not in sent and b"x-forwarded-for: 127.0.0.1\r\n" in sent


async def test_what_a_backend_may_say(relaying: httpx.AsyncClient) -> None:
    reply = await relaying.get("/v1/cookies")
    assert (reply.status_code, reply.headers["location"]) == (302, "/y")
    assert reply.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert not {"x-hop", "access-control-allow-credentials"} & reply.headers.keys()
    large = await relaying.get("/v1/large")
    assert len(large.content) == 3_000_000


async def test_a_route_to_the_node_itself_is_noticed(start_node: StartNode, tmp_path: Path) -> None:
    routes = tmp_path / "loop.toml"
    routes.write_text("")
    node = await start_node(routes=str(routes))
    port = node.server.port
    routes.write_text(f'[[routes]]\ntemplate = "/.*"\nnode = "http://127.0.0.1:{port}"')
    node.routes = load_routes(routes)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        reply = await client.get("/x", headers={"accept": "application/json"})
        assert (reply.status_code, reply.json()["error"]) == (508, "loop_detected")


async def test_casts_are_bounded(relaying: httpx.AsyncClient, node_of: list[Node]) -> None:
    statuses = []
    for _ in range(MAX_CASTS + 1):
        reply = await relaying.get("/~relay@1.0/cast?relay-path=/v1/stream")
        statuses.append(reply.status_code)
    assert statuses == [200] * MAX_CASTS + [503]


async def test_cast_answers_at_once(
    relaying: httpx.AsyncClient, backend: tuple[Backend, int]
) -> None:
    reply = await relaying.get("/~relay@1.0/cast?relay-path=/v1/later")
    assert reply.text == "OK"
    await asyncio.wait_for(backend[0].asked.wait(), 10)
    reply = await relaying.get("/~relay@1.0/cast?relay-path=/zzz")
    assert reply.status_code == 404


async def test_a_route_with_a_device_is_answered_by_the_device(node: Node) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        reply = await client.get("/~relay@1.0/call?relay-path=/v1/models")
        assert reply.json() == {"object": "list", "data": []}


@pytest.mark.parametrize("path", ["/v1/x", "/v1/stream"])
async def test_a_keys_tokens_and_models_count_here_too(
    relaying: httpx.AsyncClient, node_of: list[Node], path: str
) -> None:
    secret, _ = KeyStore(node_of[0].store).add("ada", tokens=Quota(60, 86400), models=("m",))
    relaying.headers["authorization"] = f"Bearer {secret}"
    for body in (b'{"model":"x","model":"m"}', b'{"Model":"x","model":"m"}', b"{}"):
        assert (await relaying.post(path, content=body)).status_code in (400, 403)
    left = []
    for _ in range(9):
        async with relaying.stream("POST", path, json={"model": "m", "x": "y" * 40}) as reply:
            if reply.status_code == 429:
                break
            left.append(int(reply.headers["x-ratelimit-remaining-tokens"]))
            async for _chunk in reply.aiter_raw():
                if path == "/v1/stream":
                    break
    assert reply.status_code == 429 and left[0] == 60 and left == sorted(left, reverse=True)
