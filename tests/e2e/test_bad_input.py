"""Rubbish in: a clear 4xx in the right shape, and the node serves on."""

import contextlib
import json
import socket

import httpx
import pytest

from .process import NodeProcess

CHAT = "/~inference@1.0/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    CHAT: "openai",
    "/v1/chat/completions": "openai",
    "/~json@1.0/deserialize": "node",
}


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.fixture(autouse=True)
def serves_on(client: httpx.Client) -> object:
    yield
    assert client.get("/~inference@1.0/health").status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"messages": [}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\xff"}',
        b"not json",
        nested(1000),
        nested(100_000),
    ],
    ids=["empty", "open", "torn", "nan", "infinity", "latin-1", "text", "deep", "deeper"],
)
def test_bodies(client: httpx.Client, path: str, body: bytes) -> None:
    headers = {"content-type": "application/json", "accept": "application/json"}
    reply = client.post(path, content=body, headers=headers)
    assert 400 <= reply.status_code < 500
    error = reply.json()
    if PATHS[path] == "openai":
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert error["error"]["message"]
    else:
        assert error["status"] == reply.status_code
        assert error["error"]
        assert error["body"]


@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        1,
        None,
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user"}]},
        {**ASK, "max_tokens": 0},
        {**ASK, "max_tokens": "many"},
        {**ASK, "max_tokens": True},
        {**ASK, "n": 0},
        {**ASK, "temperature": -1},
        {**ASK, "temperature": "hot"},
        {**ASK, "seed": -1},
        {**ASK, "seed": 4294967295},
        {**ASK, "seed": 1.5},
        {**ASK, "stream": "yes"},
        {**ASK, "stop": ["a"] * 1000},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
    ],
    ids=lambda body: json.dumps(body)[:60],
)
@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_the_backend_would_take_wrongly(
    client: httpx.Client, body: object, stream: bool
) -> None:
    if stream and isinstance(body, dict) and "stream" not in body:
        body = {**body, "stream": True}
    reply = client.post(CHAT, json=body)
    assert reply.status_code == 400
    assert reply.headers["content-type"].startswith("application/json")
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_a_body_over_the_limit(client: httpx.Client) -> None:
    reply = client.post(CHAT, content=b"x" * (33 * 1024 * 1024))
    assert reply.status_code == 413
    assert "33554432" in reply.json()["error"]["message"]


def test_a_chunked_body_over_the_limit(client: httpx.Client) -> None:
    def chunks() -> object:
        for _ in range(33):
            yield b"x" * (1024 * 1024)

    # A refusal may come while the body is still being sent.
    with contextlib.suppress(httpx.WriteError):
        assert client.post(CHAT, content=chunks()).status_code == 413


def test_many_small_objects(client: httpx.Client) -> None:
    body = b'{"messages":[' + b"{}," * 250_000 + b"{}]}"
    assert client.post(CHAT, content=body).status_code == 413


def test_a_prompt_over_the_context(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 40_000}]}
    for stream in (False, True):
        reply = client.post(CHAT, json={**body, "stream": stream})
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("/~message@1.0/%zz", {400}),
        ("/~message@1.0/(a", {400}),
        ("/~message@1.0/a)", {400}),
        ("/((((a", {400}),
        ("/~message@1.0" + "/a" * 10_000, {400}),
        ("/" + "(" * 1000 + "a" + ")" * 1000, {400}),
        ("/~message@1.0&a+integer=x/a", {400}),
        ("/~message@1.0/" + "a" * 600, {400}),
        ("/~message@1.0/%00", {400}),
        ("/~message@1.0/%ff", {400}),
        ("/~nosuch@1.0/key", {404}),
        ("/~message@1.0/nosuchkey", {404}),
        ("/~message@1.0/priv", {404}),
        ("/~message@1.0&priv=x/a", {400, 404}),
        ("/~message@1.0/a?priv=x", {400, 404}),
        ("/" + "A" * 43 + "/key", {404}),
        ("/" + "A" * 43, {404}),
        ("/~meta@1.0/nosuchkey", {404}),
        ("/nosuch", {404}),
        ("/~not-a-device/x", {400, 404}),
        ("/~/x", {400, 404}),
        ("/~relay@1.0/call?relay-path=http://127.0.0.1:1/x", {403}),
        ("/~relay@1.0/call?relay-path=/zzz", {404}),
        ("/~relay@1.0/call", {400}),
        ("/~cache@1.0/read?read=" + "A" * 43, {404}),
        ("/~cache@1.0/read?read=x", {400, 404}),
        ("/~inference@1.0/nosuch", {404}),
        ("/~inference@1.0/chat/nosuch", {404}),
        ("/~inference@1.0/chat/completions", {405}),
        ("/v1/nosuch", {404}),
        ("/v1/models/nosuch", {404}),
    ],
)
def test_paths(node: NodeProcess, path: str, statuses: set[int]) -> None:
    with socket.create_connection(("127.0.0.1", node.port), timeout=20) as raw:
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n"
            "connection: close\r\n\r\n".encode()
        )
        received = b""
        while piece := raw.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert int(head.split()[1]) in statuses
    error = json.loads(body)
    assert error.get("error")
    assert b"Traceback" not in body


SMUGGLING = {
    "two lengths": b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcde",
    "length and chunked": b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "odd coding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "negative length": b"content-length: -1\r\n\r\n",
    "length with a plus": b"content-length: +4\r\n\r\nabcd",
    "chunk size rubbish": b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "space before colon": b"content-length : 4\r\n\r\nabcd",
    "folded line": b"x: a\r\n b\r\n\r\n",
    "two hosts": b"host: a\r\n\r\n",
    "nul in a value": b"x: a\x00b\r\n\r\n",
    "no colon": b"nonsense\r\n\r\n",
    "300 headers": b"".join(b"x%d: y\r\n" % n for n in range(300)) + b"\r\n",
    "huge header": b"x: " + b"y" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("tail", SMUGGLING.values(), ids=SMUGGLING)
def test_smuggling(node: NodeProcess, tail: bytes) -> None:
    with socket.create_connection(("127.0.0.1", node.port), timeout=20) as raw:
        raw.sendall(b"POST /~message@1.0/x HTTP/1.1\r\nhost: localhost\r\n" + tail)
        received = b""
        while piece := raw.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert int(head.split()[1]) in (400, 413, 431)
    assert json.loads(body)["error"]
    assert received.count(b"HTTP/1.1 ") == 1
