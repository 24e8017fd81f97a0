"""Requests as metrics and the log tell of them, from their ids on."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hyperbeam import Message, NotFound, Stream
from hyperbeam.observe.metrics import Metrics
from hyperbeam.observe.request_id import current
from hyperbeam.observe.watch import Watch

from .support import until


async def told(request: Message) -> Any:
    """What the request's own code knows of it."""
    info = current()
    assert info is not None
    assert info.id == request["priv"]["request-id"]
    path = request["path"]
    if path == "/missing":
        raise NotFound("missing")
    if path == "/fault":
        raise RuntimeError("a fault")
    info.route, info.node, info.model, info.key = "r1", "local", "m", "k1"
    body = json.dumps({"header": request.get("x-request-id", "")})
    return {"content-type": "application/json", "body": body}


def requests(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return {tuple(labels): count for labels, count in metrics.snapshot()["counters"]["requests"]}


async def test_a_sound_id_is_kept_and_goes_on(serve: Any, connect: Any) -> None:
    client = await connect(await serve(told))
    reply = await client.get("/", "x-request-id: abc-1/2:3=+@~.Z")
    assert reply.headers["x-request-id"] == "abc-1/2:3=+@~.Z"
    assert reply.json == {"header": "abc-1/2:3=+@~.Z"}
    assert reply.names.count("x-request-id") == 1


@pytest.mark.parametrize("sent", ["a b", "", "x" * 129, 'a"b', "a,b", "\xe9", "a\tb"])
async def test_an_unsound_id_is_replaced_everywhere(serve: Any, connect: Any, sent: str) -> None:
    client = await connect(await serve(told))
    reply = await client.get("/", f"x-request-id: {sent}")
    made = reply.headers["x-request-id"]
    assert made not in ("", sent)
    assert reply.json == {"header": made}
    second = await client.get("/")
    assert second.headers["x-request-id"] != made
    assert second.json == {"header": ""}


async def test_two_headers_are_no_id(serve: Any, connect: Any) -> None:
    client = await connect(await serve(told))
    reply = await client.get("/", "x-request-id: a", "x-request-id: b")
    assert reply.headers["x-request-id"] not in ("a", "b", "a, b")


async def test_every_error_and_refusal_has_the_id(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    server = await serve(told, watch=Watch(metrics))
    client = await connect(server)
    for path, status in (("/missing", 404), ("/fault", 500)):
        reply = await client.get(path, "x-request-id: mine")
        assert (reply.status, reply.headers["x-request-id"]) == (status, "mine")
    await client.send(b"GET /v1/models HTTP/1.1\r\nx-request-id: early\r\nhost: x\r\n"
                      b"content-length: 99999999\r\n\r\n")  # fmt: skip
    reply = await client.response()
    assert (reply.status, reply.headers["x-request-id"]) == (413, "early")
    client = await connect(server)
    await client.send(b"NONSENSE\r\n\r\n")
    assert (await client.response()).headers["x-request-id"]
    assert requests(metrics) == {
        ("", "other", "404"): 1,
        ("", "other", "500"): 1,
        ("", "models", "413"): 1,
        ("", "other", "400"): 1,
    }


async def test_a_results_own_header_of_that_name_is_left_out(serve: Any, connect: Any) -> None:
    async def answer(request: Message) -> Message:
        pairs = [("x-request-id", "the backend's")]
        plain = {"content-type": "text/plain", "body": "x", "x-request-id": "a device's"}
        return {**plain, "priv": {"reply-headers": pairs}}

    client = await connect(await serve(answer))
    reply = await client.get("/", "x-request-id: mine")
    assert reply.names.count("x-request-id") == 1
    assert reply.headers["x-request-id"] == "mine"


async def test_access_lines_say_where_a_request_went_and_no_query(
    serve: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hyperbeam.access")
    client = await connect(await serve(told, watch=Watch(Metrics(), access=True)))
    reply = await client.get("/v1/x?secret=1")
    (record,) = [one for one in caplog.records if one.name == "hyperbeam.access"]
    assert record.getMessage() == "GET /v1/x 200"
    fields = record.__dict__["fields"]
    assert fields.pop("ms") >= 0
    assert fields == {
        "method": "GET", "path": "/v1/x", "status": 200, "bytes": len(reply.body),
        "client": "127.0.0.1", "key": "k1", "route": "r1", "node": "local", "model": "m",
    }  # fmt: skip


async def test_streams_are_counted_by_how_they_end(serve: Any, connect: Any) -> None:
    metrics = Metrics()
    gate = asyncio.Event()

    async def chunks(path: str) -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        if path == "/fails":
            raise RuntimeError("cut")
        if path == "/left":
            await gate.wait()
        yield b"data: 2\n\n"

    async def answer(request: Message) -> Stream:
        if request["path"] == "/never":
            await gate.wait()
        return Stream(chunks(request["path"]))

    server = await serve(answer, watch=Watch(metrics))
    client = await connect(server)
    reply = await client.get("/whole", "x-request-id: mine")
    assert reply.headers["x-request-id"] == "mine"
    assert reply.names.count("x-request-id") == 1
    await (await connect(server)).get("/fails")
    left = await connect(server)
    await left.send(b"GET /left HTTP/1.1\r\nhost: x\r\n\r\n")
    await left.head()
    assert await left.chunk() == b"data: 1\n\n"
    left.leave("reset")
    never = await connect(server)
    await never.send(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: server.in_flight > 0)
    never.leave("reset")
    await until(lambda: requests(metrics).get(("", "other", "499")) == 1)
    assert requests(metrics) == {("", "other", "200"): 3, ("", "other", "499"): 1}
    snapshot = metrics.snapshot()
    ends = {labels[0]: count for labels, count in snapshot["counters"]["streams"]}
    assert ends == {"complete": 1, "failed": 1, "left": 1}
    (gaps,) = snapshot["histograms"]["chunk_gap_seconds"]
    assert sum(gaps[1]) == 1
    (first,) = snapshot["histograms"]["first_byte_seconds"]
    assert sum(first[1]) == 3
    (sent,) = snapshot["counters"]["sent_bytes"]
    assert sent[1] == 4 * len(b"data: 1\n\n")
