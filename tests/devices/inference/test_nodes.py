"""Other nodes behind the device: what they get, what their replies become."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hyperbeam import HyperbeamError, Stream
from hyperbeam.routing import RouteNode
from hyperbeam.verify.seed import derive
from tests.hyperbeam.http.support import until

from .dummy import MODEL, Call, Dummy, chat_events, piece
from .room import Room, body, drain, events, refusal

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
LOCAL = RouteNode(id="local", backend="local")


@pytest.fixture
async def far() -> AsyncIterator[Dummy]:
    async with Dummy(answer) as dummy:
        yield dummy


@pytest.fixture
async def other() -> AsyncIterator[Dummy]:
    async with Dummy(answer) as dummy:
        yield dummy


def node(dummy: Dummy, **fields: Any) -> RouteNode:
    return RouteNode(id=dummy.url, prefix=dummy.url, **fields)


def plain(model: str = "far-model") -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi"},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": "chatcmpl-9", "model": model, "choices": [choice], "usage": usage, "own": 1.50}


async def answer(call: Call) -> None:
    """As SGLang does: plain or as a stream, as it is asked."""
    if call.method == "GET":
        await call.plain(200, {"object": "list", "data": [{"id": "far-model", "object": "model"}]})
    elif call.body.get("stream"):
        await call.begin()
        for event in chat_events("Hi", " you", usage=True):
            await call.event(event)
        await call.done()
    else:
        await call.plain(200, plain())


async def test_a_node_gets_the_clients_bytes_and_gives_its_own(room: Room, far: Dummy) -> None:
    room.use(node(far, headers=(("x-own", "1"),)))
    sent = (
        b'{ "messages":[{"role":"alien","content":[{"type":"image_url"}]}], '
        b'"tools": [], "tee": false, "unheard_of": 1.0 }\n'
    )
    reply = await room.post("chat/completions", sent)
    assert reply["body"] == json.dumps(plain()).encode()
    call = far.calls[0]
    seed = derive(sent, None)
    assert call.data == (
        b'{ "messages":[{"role":"alien","content":[{"type":"image_url"}]}], '
        b'"tools": [], "unheard_of": 1.0 ,"seed":%d}\n' % seed
    )
    assert call.path == "/v1/chat/completions"
    assert call.headers["content-type"] == "application/json"
    assert call.headers["x-own"] == "1"
    assert "x-child-key" not in call.headers
    assert (reply["x-seed"], reply["x-seed-by"]) == (str(seed), "node")
    receipt = await room.receipt(reply)
    assert receipt["backend"] == {"kind": "remote", "where": "url", "settings": {}}
    assert receipt["model"] == {
        "name": "far-model", "sha256": None, "size": None, "by": "declared",
    }  # fmt: skip
    assert (receipt["seed"], receipt["answer_id"]) == (seed, "chatcmpl-9")
    assert receipt["output_sha256"] is not None
    assert room.node.metrics.snapshot()["counters"]["tokens"] == [
        [["far-model", "prompt"], 3], [["far-model", "completion"], 2],
    ]  # fmt: skip


async def test_a_seed_of_the_clients_own_leaves_the_bytes_alone(room: Room, far: Dummy) -> None:
    room.use(node(far))
    sent = b'{"messages":[],"seed":9007199254740993}'
    reply = await room.post("chat/completions", sent)
    assert far.calls[0].data == sent
    assert (await room.receipt(reply))["seed"] == "9007199254740993"
    await room.post("completions", b'{"prompt":"x","seed":null}')
    assert far.calls[1].body["seed"] == derive(b'{"prompt":"x","seed":null}', None)


async def test_a_stream_goes_through_as_it_is(room: Room, far: Dummy) -> None:
    room.use(node(far))
    held = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.chunk(b": hello\n\nda")
        await call.chunk(b"ta: " + json.dumps(piece("a")).encode() + b"\n\n")
        await held.wait()
        await call.chunk(b"data: [DONE]\n\n")
        await call.end()

    far.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    assert isinstance(stream, Stream)
    assert room.dispatch.nodes()[0].in_flight == 1
    expected = b": hello\n\ndata: " + json.dumps(piece("a")).encode() + b"\n\n"
    first = b""
    while len(first) < len(expected):
        first += await anext(stream.source)
    assert first == expected
    held.set()
    rest, error = await drain(stream)
    assert (rest, error) == (b"data: [DONE]\n\n", None)
    assert room.dispatch.nodes()[0].in_flight == 0


@pytest.mark.parametrize(
    "busy",
    [
        (503, {"object": "error", "message": "queue full", "code": 503}),
        (429, {"error": {"message": "slow down"}}),
        "stream",
        "gone",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_node_that_is_busy_or_gone_leaves_it_to_another(
    room: Room, far: Dummy, other: Dummy, busy: Any, stream: bool
) -> None:
    async def script(call: Call) -> None:
        if busy == "stream":
            await call.begin()
            await call.event({"error": {"message": "The request queue is full.", "code": 503}})
            await call.done()
        else:
            await call.plain(*busy)

    far.script = script
    gone = RouteNode(id="gone", prefix="http://127.0.0.1:1")
    room.use(gone if busy == "gone" else node(far), node(other), strategy="By-Weight")
    for _ in range(4):  # whichever comes first
        reply = await room.post("chat/completions", {**CHAT, "stream": stream})
        if stream:
            sent, error = await drain(reply)
            assert (sent.endswith(b"data: [DONE]\n\n"), error) == (True, None)
            headers = reply.headers
        else:
            assert body(reply)["id"] == "chatcmpl-9"
            headers = reply
    receipt = await room.receipt(headers)
    assert receipt["response"]["end"] == "complete"


async def test_errors_have_openais_shape_and_say_who_refused(room: Room, far: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.plain(
            400, {"object": "error", "message": "top_p", "param": "top_p", "code": 400}
        )

    far.script = script
    room.use(node(far))
    refused = await refusal(room.post("chat/completions", CHAT))
    assert (refused.status, refused.detail, refused.param) == (400, "top_p", "top_p")
    assert (await room.receipt(refused.headers))["response"]["end"] == "error"


async def test_a_node_that_cuts_its_stream_has_failed(room: Room, far: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        call.cut()

    far.script = script
    room.use(node(far))
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    sent, error = await drain(stream)
    assert error is not None
    assert error.error == "backend_died"
    assert b"[DONE]" not in sent
    assert room.dispatch.nodes()[0].failures == 1
    assert (await room.receipt(stream.headers))["response"]["end"] == "cut"


async def test_the_own_model_and_others_under_one_route(
    room: Room, dummy: Dummy, far: Dummy
) -> None:
    room.use(LOCAL, node(far))
    assert body(await room.post("chat/completions", {**CHAT, "model": MODEL}))["model"] == MODEL
    assert len(dummy.calls) == 1
    reply = await room.post("chat/completions", {**CHAT, "model": "far-model"})
    assert body(reply)["model"] == "far-model"
    assert (await room.receipt(reply))["backend"]["kind"] == "remote"
    dummy.state = "failed"
    reply = await room.post("chat/completions", CHAT)
    assert body(reply)["model"] == "far-model"
    dummy.state = "ready"
    refused = await refusal(room.post("chat/completions", {**CHAT, "model": "nobody's"}))
    assert (refused.status, refused.error) == (404, "model_not_found")
    assert MODEL in refused.detail
    assert "far-model" in refused.detail


async def test_the_list_of_models_is_of_all_nodes(room: Room, far: Dummy, other: Dummy) -> None:
    down = RouteNode(id="down", prefix="http://127.0.0.1:1")
    room.use(LOCAL, node(far), node(other, models=("a/b", "c")), down)
    listed = body(await room.get("models"))
    assert {model["id"] for model in listed["data"]} == {MODEL, "far-model", "a/b", "c"}
    assert len(far.calls) == 1
    assert not other.calls
    assert body(await room.get("models/a/b"))["id"] == "a/b"
    assert len(far.calls) == 1
    refused = await refusal(room.get("models/d"))
    assert refused.error == "model_not_found"


async def test_one_model_answers_to_any_name(room: Room, far: Dummy) -> None:
    room.use(node(far, models=("far-model",)))
    reply = await room.post("chat/completions", {**CHAT, "model": "gpt-5"})
    assert body(reply)["model"] == "far-model"
    assert far.calls[0].body["model"] == "gpt-5"
    assert (await room.receipt(reply))["model"]["name"] == "far-model"


async def test_a_client_that_leaves_ends_the_nodes_work(room: Room, far: Dummy) -> None:
    async def script(call: Call) -> None:
        await asyncio.Event().wait()

    far.script = script
    room.use(node(far))
    task = asyncio.create_task(room.post("chat/completions", CHAT))
    await until(lambda: bool(far.calls))
    task.cancel()
    await asyncio.wait([task])
    await far.calls[0].gone.wait()
    assert room.dispatch.nodes()[0].in_flight == 0
    assert room.dispatch.nodes()[0].failures == 0


async def test_choices_of_a_backend_with_one_seed_are_calls_of_their_own(
    room: Room, dummy: Dummy
) -> None:
    dummy.assembled, dummy.script = False, answer
    fields = {**CHAT, "n": 3, "seed": 5}
    reply = await room.post("chat/completions", fields)
    assert [choice["index"] for choice in body(reply)["choices"]] == [0, 1, 2]
    assert body(reply)["usage"]["completion_tokens"] == 6
    assert body(reply)["usage"]["prompt_tokens"] == 3
    assert sorted(call.body["seed"] for call in dummy.calls) == [5, 6, 7]
    assert not any("n" in call.body for call in dummy.calls)
    stream = await room.post("chat/completions", {**fields, "n": 2, "stream": True})
    found = await events(stream)
    indexes = {choice["index"] for event in found[:-1] for choice in event["choices"]}
    assert (indexes, found[-1]) == ({0, 1}, b"[DONE]")


async def test_a_backend_that_takes_the_clients_bytes(room: Room, dummy: Dummy) -> None:
    dummy.assembled, dummy.script = False, answer
    sent = b'{"messages":[],"model":"%s","seed":1,"own":1.0}' % MODEL.encode()
    reply = await room.post("chat/completions", sent)
    assert dummy.calls[0].data == sent
    assert dummy.calls[0].headers["x-child-key"] == "secret"
    receipt = await room.receipt(reply)
    assert (receipt["backend"]["kind"], receipt["model"]["by"]) == ("dummy", "hashed")
    again = {"receipt": receipt, "request": sent.decode()}
    verdict = body(await room.post("replay", again))
    assert verdict["match"] is True


@pytest.mark.parametrize("given", [b"", b'"model":null,'])
async def test_a_child_is_asked_by_its_own_models_name(
    room: Room, dummy: Dummy, given: bytes
) -> None:
    dummy.assembled, dummy.script = False, answer
    await room.post("chat/completions", b'{%b"messages":[],"seed":1}' % given)
    assert dummy.calls[0].data == b'{"messages":[],"seed":1,"model":"%s"}' % MODEL.encode()


async def test_health_says_when_only_others_answer(room: Room, dummy: Dummy, far: Dummy) -> None:
    room.use(LOCAL, node(far))
    dummy.state = "loading"
    said = body(await room.get("health"))
    assert said["status"] == "ok" and said["detail"].startswith("by other nodes: ")
    room.use(LOCAL)
    assert (await room.get("health"))["status"] == 503


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b", "compressed"),
        (b"302 Found\r\nlocation: http://x\r\ncontent-length: 0\r\n\r\n", "status 302"),
        (b"200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n", "not HTTP"),
        (b"200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]", "no JSON"),
        (b"200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<p>", "no JSON"),
        (b"204 None\r\n\r\n", "status 204"),
    ],
)
async def test_what_no_backend_should_say_is_a_502_with_a_receipt(
    room: Room, far: Dummy, reply: bytes, said: str
) -> None:
    async def script(call: Call) -> None:
        call.writer.write(b"HTTP/1.1 " + reply)

    far.script = script
    room.use(node(far))
    answer = room.post("chat/completions", CHAT)
    try:
        stream = await answer
    except HyperbeamError as error:
        refused = error
    else:
        with pytest.raises(HyperbeamError) as caught:
            await anext(stream.source)
        refused = caught.value
    assert refused.status == 502 and said in refused.detail
    assert (await room.receipt(refused.headers))["response"]["end"] == "error"
    assert far.calls[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("path", "pieces", "cut"),
    [
        ("responses", [b'event: response.created\ndata: {"response":{"error":null}}\n\n'], True),
        ("responses", [b'event: response.completed\ndata: {"response":{"error":null}}\n\n'], False),
        ("chat/completions", [b'data: {"choices":[],"error":null}\n\n'], True),
        ("chat/completions", [b'data: {"choices":[]}\n\n', b'data: {"error": {"x":1}}\n\n'], False),
    ],
)
async def test_an_end_is_no_end_for_a_null_error(
    room: Room, far: Dummy, path: str, pieces: list[bytes], cut: bool
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        for part in pieces:
            await call.chunk(part)
        await call.end()

    far.script = script
    room.use(node(far))
    stream = await room.post(path, {**CHAT, "input": "x", "stream": True})
    assert ((await drain(stream))[1] is not None) == cut
    end = (await room.receipt(stream.headers))["response"]["end"]
    assert end == "cut" if cut else end in ("complete", "error")


async def test_an_event_without_an_end_is_no_stream(
    room: Room, far: Dummy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devices.inference.events.MAX_EVENT", 100_000)

    async def script(call: Call) -> None:
        await call.begin()
        for _ in range(30):
            await call.chunk(b"x" * 10_000)
        await call.end()

    far.script = script
    room.use(node(far))
    refused = await refusal(room.post("chat/completions", {**CHAT, "stream": True}))
    assert (refused.status, refused.error) == (502, "response_too_large")
