"""Receipts: one for each request that went to the backend, however it ended."""

import asyncio
import hashlib
import json
from typing import Any, cast

import pytest

from hyperbeam import BadRequest, HyperbeamError, Stream
from hyperbeam.verify import jcs, signing
from hyperbeam.verify import receipt as receipts

from .dummy import MODEL, Call, Dummy, piece, say
from .room import Room, body, drain, refusal

CHAT = {"messages": [{"role": "user", "content": "x"}], "seed": 5}
NONCE = "ab" * 32


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_signature(room: Room, receipt: dict[str, Any]) -> None:
    receipts.parse(receipt)
    keyset = room.keys.find(receipt["keyset"])
    assert keyset is not None
    (key,) = keyset["receipt_keys"]
    assert key["id"] == receipt["key_id"]
    assert signing.check(
        bytes.fromhex(key["key"]),
        signing.RECEIPT,
        receipts.signed_bytes(receipt),
        bytes.fromhex(receipt["signature"]),
    )


async def test_of_a_plain_answer(room: Room, dummy: Dummy) -> None:
    dummy.script = say("Par", "is")
    sent = json.dumps({**CHAT, "nonce": NONCE}).encode()
    reply = await room.post("v1/chat/completions", sent)
    receipt = await room.receipt(reply)
    check_signature(room, receipt)
    keyset = room.keys.current
    output = [[0, "Paris", None, "stop"]]
    expected = {
        "v": "hyperbeam.receipt/1",
        "id": reply["x-receipt-id"],
        "node": keyset.node,
        "keyset": keyset.name,
        "nonce": NONCE,
        "nonce_by": "client",
        "statement": None,
        "answer_id": "chatcmpl-1",
        "endpoint": "/~inference@1.0/chat/completions",
        "request": {"sha256": sha256(sent), "length": len(sent)},
        "response": {
            "status": 200,
            "sha256": sha256(reply["body"]),
            "length": len(reply["body"]),
            "stream": False,
            "complete": True,
            "end": "complete",
        },
        "output_sha256": sha256(jcs.encode(output)),
        "model": {"name": MODEL, "sha256": "5a" * 32, "size": 1000, "by": "hashed"},
        "backend": {
            "kind": "dummy",
            "where": "child",
            "settings": {"slots": 2, "temperature": "0.5"},
        },
        "config": keyset.config,
        "seed": 5,
        "seed_by": "client",
    }
    assert {name: receipt[name] for name in expected} == expected
    assert receipt["started"] <= receipt["ended"] < receipt["log_by"]


async def test_what_was_forwarded_is_what_the_backend_got(room: Room, dummy: Dummy) -> None:
    got: list[bytes] = []

    async def script(call: Call) -> None:
        got.append(call.data)
        await say("a")(call)

    dummy.script = script
    receipt = await room.receipt(await room.post("completions", {"prompt": "é"}))
    (data,) = got
    assert receipt["forwarded"] == {"sha256": sha256(data), "length": len(data)}
    assert (receipt["nonce"], receipt["nonce_by"], receipt["seed_by"]) == (None, "node", "node")


@pytest.mark.parametrize("n", [1, 2])
async def test_of_a_stream(room: Room, dummy: Dummy, n: int) -> None:
    dummy.script = say("Par", "is")
    stream = await room.post("chat/completions", {**CHAT, "stream": True, "n": n})
    sent, error = await drain(stream)
    assert error is None
    receipt = await room.receipt(stream.headers)
    check_signature(room, receipt)
    assert receipt["response"] == {
        "status": 200,
        "sha256": sha256(sent),
        "length": len(sent),
        "stream": True,
        "complete": True,
        "end": "complete",
    }
    assert receipt["answer_id"] == "chatcmpl-1"
    assert receipt["output_sha256"] == sha256(
        jcs.encode([[k, "Paris", None, "stop"] for k in range(n)])
    )


async def test_a_stream_and_a_plain_answer_that_say_the_same_have_one_output(
    room: Room, dummy: Dummy
) -> None:
    plain = await room.receipt(await room.post("chat/completions", CHAT))
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    await drain(stream)
    assert (await room.receipt(stream.headers))["output_sha256"] == plain["output_sha256"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500])
async def test_of_a_request_that_the_backend_refuses(
    room: Room, dummy: Dummy, stream: bool, status: int
) -> None:
    async def script(call: Call) -> None:
        await call.plain(status, {"error": {"message": "no"}})

    dummy.script = script
    refused = await refusal(room.post("completions", {"prompt": "x", "stream": stream}))
    receipt = await room.receipt(refused.headers)
    check_signature(room, receipt)
    shown = room.device.render_error(refused)["body"]
    assert receipt["response"] == {
        "status": refused.status,
        "sha256": sha256(shown),
        "length": len(shown),
        "stream": False,
        "complete": False,
        "end": "error",
    }
    assert receipt["output_sha256"] is None


@pytest.mark.parametrize("n", [1, 2])
async def test_of_a_stream_that_the_backend_cuts(room: Room, dummy: Dummy, n: int) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        call.cut()

    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True, "n": n})
    sent, error = await drain(stream)
    assert error is not None
    response = (await room.receipt(stream.headers))["response"]
    assert (response["end"], response["complete"]) == ("cut", False)
    assert response["sha256"] == sha256(sent)


async def test_of_a_stream_with_an_error_event_of_the_backends(room: Room, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        await call.event({"error": {"code": 500, "message": "broke"}})
        await call.done()

    dummy.script = script
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    await drain(stream)
    receipt = await room.receipt(stream.headers)
    assert (receipt["response"]["end"], receipt["output_sha256"]) == ("error", None)


async def wait_for_ever(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await asyncio.Event().wait()


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("read_first", [False, True])
async def test_of_a_stream_that_the_client_leaves(
    room: Room, dummy: Dummy, read_first: bool, draining: bool
) -> None:
    dummy.script = wait_for_ever
    stream = await room.post("chat/completions", {**CHAT, "stream": True})
    if read_first:
        stream.observer.sent(await anext(stream.source))
        if draining:
            stream.observer.sent(b'data: {"error": {"message": "m", "code": "draining"}}\n\n')
    room.server.draining = draining
    await stream.aclose()
    receipt = await room.receipt(stream.headers)
    check_signature(room, receipt)
    assert receipt["response"]["end"] == ("cut" if draining else "left")
    assert (receipt["response"]["sha256"] is not None) == read_first


async def test_of_a_plain_request_that_the_client_leaves(room: Room, dummy: Dummy) -> None:
    began = asyncio.Event()
    ids: list[str] = []
    new_id = room.receipts.new_id

    def noted() -> str:
        ids.append(new_id())
        return ids[-1]

    cast(Any, room.receipts).new_id = noted

    async def script(call: Call) -> None:
        began.set()
        await wait_for_ever(call)

    dummy.script = script
    task = asyncio.create_task(room.post("chat/completions", CHAT))
    await asyncio.wait_for(began.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    receipt = await room.receipt({"x-receipt-id": ids[0]})
    assert receipt["response"] == {
        "status": None,
        "sha256": None,
        "length": 0,
        "stream": False,
        "complete": False,
        "end": "left",
    }


async def test_of_a_stream_that_fails_before_its_first_byte(room: Room, dummy: Dummy) -> None:
    """The first choice has nothing to say, and the second is refused."""

    async def script(call: Call) -> None:
        if call.body["prompt"] == "b":
            await call.plain(400, {"error": {"message": "no b"}})
            return
        await call.begin()
        await call.event({"id": "x", "choices": []})
        await call.done()

    dummy.script = script
    stream = await room.post("completions", {"prompt": ["a", "b"], "stream": True})
    assert isinstance(stream, Stream)
    refused = await refusal(anext(stream.source))
    await stream.aclose()
    assert refused.headers["x-receipt-id"] == stream.headers["x-receipt-id"]
    response = (await room.receipt(refused.headers))["response"]
    shown = room.device.render_error(refused)["body"]
    assert (response["status"], response["end"]) == (400, "error")
    assert response["sha256"] == sha256(shown)


async def test_what_never_went_to_the_backend_has_none(room: Room, dummy: Dummy) -> None:
    for refused in (
        await refusal(room.post("chat/completions", {})),
        await refusal(room.post("completions", b'{"prompt": "a", "prompt": "b"}')),
    ):
        assert isinstance(refused, BadRequest)
        assert "x-receipt-id" not in refused.headers
    assert dummy.calls == []


async def test_an_answer_keeps_the_key_set_that_it_began_with(room: Room, dummy: Dummy) -> None:
    before = room.keys.current.name

    async def script(call: Call) -> None:
        room.keys.declare("another part", {"new": True})
        await say("a")(call)

    dummy.script = script
    receipt = await room.receipt(await room.post("completions", {"prompt": "x"}))
    assert receipt["keyset"] == before != room.keys.current.name
    check_signature(room, receipt)


async def test_the_key_set_states_the_backends_settings(room: Room, dummy: Dummy) -> None:
    before = room.keys.current.config
    dummy.settings = {"slots": 3}
    await room.device.start()
    assert room.keys.current.config != before


@pytest.mark.parametrize(
    ("id", "word"),
    [("ab" * 16, "killed within a moment"), ("xyz", "32 hex digits"), ("", "32 hex digits")],
)
async def test_an_unknown_receipt_is_404_with_its_reason(room: Room, id: str, word: str) -> None:
    refused = await refusal(room.get(f"receipt/{id}"))
    assert (refused.status, refused.error) == (404, "receipt_not_found")
    assert word in refused.detail
    assert refused.headers["cache-control"] == "no-store"


async def test_a_receipt_is_read_only_and_not_in_chat(room: Room) -> None:
    assert (await refusal(room.post("receipt/x", {}))).status == 405
    assert (await refusal(room.get("chat/receipt/x"))).status == 404


async def test_its_text_is_canonical(room: Room, dummy: Dummy) -> None:
    reply = await room.post("completions", {"prompt": "x"})
    found = await room.get(f"receipt/{reply['x-receipt-id']}")
    assert jcs.encode(body(found)) == found["body"]


async def test_errors_that_are_shared_get_an_id_each(room: Room, dummy: Dummy) -> None:
    shared = HyperbeamError("both fail", status=503)

    async def upstream(*_: Any, **__: Any) -> None:
        raise shared

    cast(Any, room.upstream).request = upstream
    first = await refusal(room.post("completions", {"prompt": "x"}))
    second = await refusal(room.post("completions", {"prompt": "x"}))
    assert first.headers["x-receipt-id"] != second.headers["x-receipt-id"]
    assert shared.headers == {}
