import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from devices.inference.backends import State
from hyperbeam import BadGateway, HyperbeamError, NotFound, Stream, Unavailable

from .dummy import HEADERS, MODEL, Call, Dummy, chat_events, chunk, piece, say, text_events
from .room import Room, body, events, refusal

CHAT = {"messages": [{"role": "user", "content": "x"}], "seed": 5}


@pytest.mark.parametrize("path", ["chat/completions", "v1/chat/completions"])
async def test_a_chat_answer(room: Room, dummy: Dummy, path: str) -> None:
    dummy.script = say("Par", "is")
    reply = await room.post(path, {**CHAT, "model": "qwen/qwen2.5-0.5b-instruct"})
    answer = body(reply)
    assert reply["status"] == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Paris"}
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    assert (reply["x-seed"], reply["x-seed-by"]) == ("5", "client")
    (call,) = dummy.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers[HEADERS[0][0].decode()] == "secret"
    assert (call.body["model"], call.body["stream"]) == (MODEL, True)


@pytest.mark.parametrize("path", ["completions", "v1/completions"])
async def test_a_text_completion(room: Room, dummy: Dummy, path: str) -> None:
    reply = await room.post(path, {"prompt": "Hello"})
    assert body(reply)["choices"][0]["text"] == "Hello"
    assert reply["x-seed-by"] == "node"
    assert dummy.calls[0].path == "/v1/completions"
    assert dummy.calls[0].body["seed"] == int(reply["x-seed"])


async def test_a_stream_goes_through_byte_for_byte(room: Room, dummy: Dummy) -> None:
    chunks = [b": hi\n", b'\ndata: {"choi', b'ces": [], "x": 1.50}\r\n\r\n', b"data: [DONE]\n\n"]

    async def script(call: Call) -> None:
        await call.begin()
        for data in chunks:
            await call.chunk(data)
        await call.end()

    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    assert isinstance(stream, Stream)
    assert (stream.headers["x-seed"], stream.headers["x-seed-by"]) == ("5", "client")
    assert stream.comments
    assert stream.content_type == "text/event-stream"
    assert b"".join([data async for data in stream.source]) == b"".join(chunks)
    assert "stream_options" not in dummy.calls[0].body


async def test_a_stream_is_given_before_it_is_complete(room: Room, dummy: Dummy) -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        await more.wait()
        await call.done()

    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    assert b'"content": "a"' in await anext(stream.source)
    more.set()
    assert await anext(stream.source) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_event", [False, True])
async def test_a_prompt_too_long_is_400_before_anything_is_sent(
    room: Room, dummy: Dummy, stream: bool, as_event: bool
) -> None:
    error = {
        "error": {
            "code": 400,
            "message": "request (3031 tokens) exceeds the available context size (1024 tokens)",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 3031,
            "n_ctx": 1024,
        }
    }

    async def script(call: Call) -> None:
        if as_event:
            await call.begin()
            await call.event(error)
            await call.done()
        else:
            await call.plain(400, error)

    dummy.script = script
    refused = await refusal(room.post("chat/completions", {**CHAT, "stream": stream}))
    assert (refused.status, refused.error, refused.param) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert "1024" in refused.detail
    assert "3031" in refused.detail


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "value", "expected"),
    [
        (
            400,
            {"error": {"code": 400, "message": "bad grammar", "type": "invalid_request_error"}},
            400,
        ),
        (400, {"object": "error", "message": "flat", "type": "BadRequestError", "code": 400}, 400),
        (500, {"error": {"code": 500, "message": "Failed to parse tools: x"}}, 400),
        (500, {"error": {"code": 500, "message": "out of memory"}}, 502),
        (501, {"error": {"code": 501, "message": "no such thing"}}, 400),
        (503, {"error": {"code": 503, "message": "Loading model"}}, 503),
        (429, {"error": {"message": "queue full"}}, 503),
        (401, {"error": {"message": "Invalid API Key"}}, 502),
        (500, b"Internal Server Error", 502),
        (302, b"elsewhere", 502),
        (200, {"choices": []}, 502),
        (404, b"[" * 100_000, 404),
    ],
)
async def test_a_backends_refusal_has_a_fitting_status(
    room: Room, dummy: Dummy, stream: bool, status: int, value: Any, expected: int
) -> None:
    async def script(call: Call) -> None:
        await call.plain(status, value)

    dummy.script = script
    refused = await refusal(room.post("completions", {"prompt": "x", "stream": stream}))
    assert refused.status == expected
    assert refused.detail


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("began", [False, True])
async def test_a_backend_that_dies_before_the_first_event_is_502(
    room: Room, dummy: Dummy, stream: bool, began: bool
) -> None:
    async def script(call: Call) -> None:
        if began:
            await call.begin()
            await call.chunk(b": nothing yet\n\n")
        call.cut()

    dummy.script = script
    assert (await refusal(room.post("chat/completions", {**CHAT, "stream": stream}))).status == 502


async def cut(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    call.cut()


async def end_early(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await call.end()


@pytest.mark.parametrize("script", [cut, end_early])
async def test_a_stream_that_is_cut_raises_after_what_came(
    room: Room, dummy: Dummy, script: Any
) -> None:
    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    assert b'"a"' in await anext(stream.source)
    with pytest.raises(BadGateway) as caught:
        await anext(stream.source)
    assert caught.value.error == "backend_died"
    assert (await refusal(room.post("chat/completions", CHAT))).status == 502


async def test_a_backends_own_error_event_goes_through(room: Room, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        await call.event({"error": {"code": 500, "message": "broke", "type": "server_error"}})
        await call.end()

    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    assert [*(await events(stream))][-1]["error"]["message"] == "broke"
    refused = await refusal(room.post("chat/completions", CHAT))
    assert refused.status == 502
    assert "broke" in refused.detail


async def wait_for_ever(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await asyncio.Event().wait()


@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_client_that_leaves_a_stream_ends_the_backends_work(
    room: Room, dummy: Dummy, read_first: bool, n: int
) -> None:
    dummy.script = wait_for_ever
    stream = await room.post("chat/completions", {**CHAT, "stream": True, "n": n})
    if read_first:
        await anext(stream.source)
    await cast(Any, stream.source).aclose()
    await asyncio.wait_for(dummy.calls[0].gone.wait(), 5)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_a_plain_request_ends_the_backends_work(
    room: Room, dummy: Dummy, n: int
) -> None:
    began = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        if len(dummy.calls) == min(n, 2):
            began.set()
        await asyncio.Event().wait()

    dummy.script = script
    task = asyncio.create_task(room.post("chat/completions", {**CHAT, "n": n}))
    await asyncio.wait_for(began.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(dummy.calls) == min(n, 2)
    for call in dummy.calls:
        await asyncio.wait_for(call.gone.wait(), 5)


async def echo_seed(call: Call) -> None:
    await call.begin()
    if call.path.endswith("/chat/completions"):
        found = chat_events(str(call.body["seed"]), usage=True)
    else:
        found = text_events(f"{call.body['prompt']}{call.body['seed']}")
    for event in found:
        await call.event(event)
    await call.done()


async def test_several_choices_have_seeds_of_their_own(room: Room, dummy: Dummy) -> None:
    dummy.script = echo_seed
    answer = body(await room.post("chat/completions", {**CHAT, "n": 3}))
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [
        (0, "5"),
        (1, "6"),
        (2, "7"),
    ]
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["prompt_tokens"] == 7
    assert all("n" not in call.body for call in dummy.calls)


async def test_several_prompts_keep_their_order(room: Room, dummy: Dummy) -> None:
    dummy.script = echo_seed
    fields = {"prompt": ["a", "b"], "n": 2, "seed": 1}
    answer = body(await room.post("completions", fields))
    assert [c["text"] for c in answer["choices"]] == ["a1", "a2", "b1", "b2"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 6


async def test_one_choice_that_fails_ends_them_all(room: Room, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        if call.body["seed"] == 5:
            await wait_for_ever(call)
        await call.plain(400, {"error": {"message": "no"}})

    dummy.script = script
    refused = await asyncio.wait_for(refusal(room.post("chat/completions", {**CHAT, "n": 2})), 5)
    assert refused.status == 400
    for call in dummy.calls:
        if call.body["seed"] == 5:
            await asyncio.wait_for(call.gone.wait(), 5)


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_of_several_choices(room: Room, dummy: Dummy, usage: bool) -> None:
    dummy.script = echo_seed
    fields = {**CHAT, "n": 2, "stream": True, "stream_options": {"include_usage": usage}}
    found = await events(await room.post("chat/completions", fields))
    assert found.pop() == b"[DONE]"
    if usage:
        last = found.pop()
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 9)
    assert not any("usage" in event or "timings" in event for event in found)
    assert {event["id"] for event in found} == {"chatcmpl-1"}
    texts = ["", ""]
    ended = []
    for event in found:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            ended.append(choice["index"])
    assert texts == ["5", "6"]
    assert ended == [0, 1]


async def test_a_second_choice_that_is_refused_breaks_the_stream(room: Room, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        if call.body["prompt"] == "b":
            await call.plain(400, {"error": {"message": "no b"}})
        else:
            await echo_seed(call)

    dummy.script = script
    stream = await room.post("completions", {"prompt": ["a", "b"], "stream": True})
    with pytest.raises(HyperbeamError, match="no b"):
        await events(stream)


async def test_log_probabilities_of_a_completion_stream_have_the_older_shape(
    room: Room, dummy: Dummy
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        for event in text_events(
            "ab", "c", logprobs=lambda text: {"content": [{"token": text, "logprob": -1.0}]}
        ):
            await call.event(event)
        await call.done()

    dummy.script = script
    fields = {"prompt": "x", "logprobs": 0, "stream": True}
    found = await events(await room.post("completions", fields))
    first, second, last, done = found
    assert done == b"[DONE]"
    assert first["choices"][0]["logprobs"]["tokens"] == ["ab"]
    assert second["choices"][0]["logprobs"] == {
        "tokens": ["c"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{}],
        "text_offset": [2],
    }
    assert last["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("path", ["chat/completions", "v1/completions", "embeddings"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_only_post_makes_answers(room: Room, path: str, method: str) -> None:
    refused = await refusal(room.call(method, path))
    assert (refused.status, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["models", "models/x", "health", "v1/health"])
async def test_only_get_reads(room: Room, path: str) -> None:
    refused = await refusal(room.post(path, {}))
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    ["chat/models", "chat/health", "chat/embeddings", "chat/x", "v1/body", "v1/device", "x",
     "chat/v1", "chat/chat"],
)  # fmt: skip
async def test_an_unknown_path_is_404(room: Room, path: str) -> None:
    with pytest.raises(NotFound) as caught:
        await room.get(path)
    assert caught.value.error == "unknown_url"


async def test_embeddings_are_refused_before_the_backend_is_asked(room: Room, dummy: Dummy) -> None:
    refused = await refusal(room.post("v1/embeddings", {"input": "x"}))
    assert (refused.status, refused.error) == (400, "embeddings_not_supported")
    assert dummy.calls == []


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    "sent", [b"", b"[]", b"{", b'{"messages": [], "messages": []}', {"messages": []}, {}]
)
async def test_bad_input_never_reaches_the_backend(
    room: Room, dummy: Dummy, path: str, sent: Any
) -> None:
    assert (await refusal(room.post(path, sent))).status == 400
    assert dummy.calls == []


async def test_models(room: Room, dummy: Dummy) -> None:
    dummy.model = "org/family/model-1"
    states: tuple[State, ...] = ("ready", "loading")
    for state in states:
        dummy.state = state
        listed = body(await room.get("v1/models"))
        (model,) = listed["data"]
        assert listed["object"] == "list"
        assert model == {
            "id": "org/family/model-1",
            "object": "model",
            "created": model["created"],
            "owned_by": "hyperbeam",
            "max_model_len": 2048,
            "sha256": "5a" * 32,
            "size": 1000,
            "by": "hashed",
        }
        assert body(await room.get("models/org/family/model-1")) == model
    refused = await refusal(room.get("models/org/other"))
    assert (refused.status, refused.error) == (404, "model_not_found")
    assert "org/family/model-1" in refused.detail


@pytest.mark.parametrize(
    ("state", "status", "error", "retry"),
    [("loading", 503, "loading", None), ("failed", 503, "backend_failed", "false")],
)
async def test_a_backend_that_is_not_ready(
    room: Room, dummy: Dummy, state: Any, status: int, error: str, retry: str | None
) -> None:
    dummy.state, dummy.detail = state, "half of the file is missing"
    refused = await refusal(room.post("chat/completions", CHAT))
    assert (refused.status, refused.error) == (status, error)
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers.get("x-should-retry") == retry
    assert "half of the file" in refused.detail
    reply = await room.get("health")
    assert reply["status"] == 503
    assert body(reply)["status"] == state
    assert dummy.calls == []


async def test_what_the_device_says_of_itself(room: Room) -> None:
    about = room.device.describe()
    opts = about.pop("inference_opts")
    assert about == {"state": "ready", "kind": "dummy", "model": MODEL}
    assert opts == {
        "model": {"name": MODEL, "sha256": "5a" * 32, "size": 1000, "by": "hashed"},
        "backend": {
            "kind": "dummy",
            "where": "child",
            "settings": {"slots": 2, "temperature": "0.5"},
        },
    }
    assert body(await room.get("inference_opts")) == opts
    assert (await refusal(room.get("chat/inference_opts"))).status == 404


async def test_health_of_a_ready_node(room: Room) -> None:
    for method in ("GET", "HEAD"):
        reply = await room.call(method, "health")
        assert reply["status"] == 200
        assert body(reply) == {"status": "ok", "model": MODEL, "backend": "dummy"}


async def test_a_node_without_a_backend(tmp_path: Path) -> None:
    async with Room(tmp_path, None) as room:
        await without_a_backend(room)


async def without_a_backend(room: Room) -> None:
    with pytest.raises(Unavailable, match="--profile inference") as caught:
        await room.post("chat/completions", CHAT)
    assert caught.value.error == "no_backend"
    reply = await room.get("health")
    assert (reply["status"], body(reply)["status"]) == (503, "no_backend")
    assert body(await room.get("models")) == {"object": "list", "data": []}
    assert (await refusal(room.get("models/x"))).status == 404


def test_chunks_of_the_dummy_are_like_the_embedded_servers() -> None:
    assert set(chunk([])) == {
        "choices", "created", "id", "model", "system_fingerprint", "object",
    }  # fmt: skip
