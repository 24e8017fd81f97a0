"""`tee`: the statement, where it stands in a reply, and what gets no answer. See room.Evidence."""

import asyncio
import hashlib
import json
from typing import Any

import pytest

from devices.inference.receipts import exact
from hyperbeam import NotFound, Stream
from hyperbeam.verify import answer as answers
from hyperbeam.verify import jcs, signing, statement
from hyperbeam.verify.receipt import parse as parse_receipt

from .dummy import MODEL, Call, Dummy, piece, say
from .room import Room, body, drain, no_evidence, refusal

CHAT = {"messages": [{"role": "user", "content": "ü?"}], "seed": 5}
TEE = {**CHAT, "tee": True}
NONCE = "ab" * 32
UNAVAILABLE = (503, "attestation_unavailable")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_attestation(room: Room, attestation: dict[str, Any]) -> dict[str, Any]:
    """Signature and binding hold; gives the statement."""
    assert list(attestation) == [
        "raw", "signature", "nonce", "batch", "backend", "evidences", "token", "claims",
        "verified", "cpu",
    ]  # fmt: skip
    raw = attestation["raw"]
    said = statement.parse(raw)
    assert attestation["nonce"] == sha256(raw.encode())
    keyset = room.keys.find(said["keyset"])
    assert keyset is not None
    (key,) = keyset["receipt_keys"]
    assert attestation["signature"]["key_id"] == key["id"]
    signature = bytes.fromhex(attestation["signature"]["value"])
    assert signing.check(bytes.fromhex(key["key"]), signing.ANSWER, raw.encode(), signature)
    return said


async def test_the_statement_about_a_plain_answer(room: Room, dummy: Dummy) -> None:
    sent = json.dumps({**TEE, "nonce": NONCE}).encode()
    reply = await room.post("v1/chat/completions", sent, priv={"client": "10.0.0.1"})
    assert reply["cache-control"] == "no-store"
    answer, model, attestation = answers.split_plain(reply["body"])
    assert model == MODEL
    said = check_attestation(room, attestation)
    receipt = await room.receipt(reply)
    parse_receipt(receipt)
    keyset = room.keys.current
    assert said == {
        "v": "hyperbeam.answer/1",
        "node": keyset.node,
        "keyset": keyset.name,
        "receipt": reply["x-receipt-id"],
        "nonce": NONCE,
        "nonce_by": "client",
        "salt": receipt["salt"],
        "timestamp": said["timestamp"],
        "config": keyset.config,
        "request": {
            "method": "POST",
            "path": "/~inference@1.0/chat/completions",
            "sha256": sha256(sent),
            "length": len(sent),
            "body": sent.decode(),
        },
        "forwarded": {
            "sha256": sha256(dummy.calls[0].data),
            "length": len(dummy.calls[0].data),
        },
        "response": {
            "status": 200,
            "type": "application/json",
            "sha256": sha256(answer),
            "length": len(answer),
            "stream": False,
            "complete": True,
            "body": answer.decode(),
        },
        "model": {"name": MODEL, "sha256": "5a" * 32, "size": 1000, "by": "hashed"},
        "seed": 5,
        "seed_by": "client",
        "backend": {
            "kind": "dummy",
            "where": "child",
            "settings": {"slots": 2, "temperature": "0.5"},
        },
    }
    assert receipt["started"] <= said["timestamp"] <= receipt["ended"]
    assert receipt["statement"] == sha256(attestation["raw"].encode())
    assert receipt["response"]["sha256"] == sha256(reply["body"])
    assert receipt["response"]["end"] == "complete"
    for name in ("node", "keyset", "config", "nonce", "nonce_by", "seed", "seed_by", "model",
                 "backend", "forwarded"):  # fmt: skip
        assert receipt[name] == said[name]
    assert room.evidence.asked == [
        {"raw": attestation["raw"], "mode": "each", "client": "10.0.0.1"}
    ]
    assert "tee" not in dummy.calls[0].body


async def test_the_statement_about_a_stream(room: Room) -> None:
    stream = await room.post("chat/completions", {**TEE, "stream": True})
    assert isinstance(stream, Stream)
    assert not stream.comments
    sent, error = await drain(stream)
    assert error is None
    split = answers.split_stream(sent)
    assert (split.complete, split.problem, split.resolved_model) == (True, "", MODEL)
    assert split.attestation is not None
    said = check_attestation(room, split.attestation)
    assert said["response"] == {
        "status": 200,
        "type": "text/event-stream",
        "sha256": sha256(split.answer),
        "length": len(split.answer),
        "stream": True,
        "complete": True,
        "body": split.answer.decode(),
    }
    event, done = sent[len(split.answer) :].split(b"\n\n")[:2]
    assert json.loads(event.removeprefix(b"data: "))["choices"] == []
    assert done == b"data: [DONE]"
    receipt = await room.receipt(stream.headers)
    assert receipt["response"]["sha256"] == sha256(sent)
    assert receipt["statement"] == sha256(split.attestation["raw"].encode())


@pytest.mark.parametrize(
    "pieces",
    [
        [b'data: {"choices": []}\n\ndata: [DONE]\n\n'],
        [b'data: {"choices": []}\n\nda', b"ta: [DO", b"NE]\n", b"\n"],
        [b': hi\n\ndata: {"choices": []}\r\n\r', b"\ndata: [DONE]\r\n\r\n"],
        [b'data: {"choices"', b": []}\n\n: between\n\ndata: [DONE]\n\n: after\n\n"],
        [b'data: {"choices": []}\n\ndata:[DONE]\n\n', b"\n"],
    ],
)
async def test_done_is_held_back_wherever_the_stream_is_cut_in_pieces(
    room: Room, dummy: Dummy, pieces: list[bytes]
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        for data in pieces:
            await call.chunk(data)
        await call.end()

    dummy.script = script
    sent, error = await drain(
        await room.post("completions", {"prompt": "x", "tee": 1, "stream": True})
    )
    assert error is None
    split = answers.split_stream(sent)
    assert split.complete, split.problem
    assert split.attestation is not None
    check_attestation(room, split.attestation)
    whole = b"".join(pieces)
    assert whole.startswith(split.answer)
    assert b"DONE" not in split.answer


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(room: Room, stream: bool) -> None:
    reply = await room.post("chat/completions", {**TEE, "n": 2, "stream": stream})
    if stream:
        split = answers.split_stream((await drain(reply))[0])
        assert split.complete
        attestation: Any = split.attestation
    else:
        attestation = answers.split_plain(reply["body"])[2]
    check_attestation(room, attestation)


async def test_digest_leaves_the_texts_out(room: Room) -> None:
    reply = await room.post("chat/completions", {**CHAT, "tee": "digest"})
    answer, _, attestation = answers.split_plain(reply["body"])
    said = check_attestation(room, attestation)
    assert (said["request"]["body"], said["response"]["body"]) == (None, None)
    assert said["response"]["sha256"] == sha256(answer)


async def test_batch_is_asked_for_as_such(room: Room) -> None:
    await room.post("chat/completions", {**CHAT, "tee": "batch"})
    assert room.evidence.asked[0]["mode"] == "batch"


async def test_without_a_nonce_the_node_makes_one_and_the_seed_stays_the_requests(
    room: Room,
) -> None:
    sent = {"prompt": " ", "max_tokens": 1}
    said = []
    for _ in range(2):
        reply = await room.post("completions", sent, tee="true")
        said.append(check_attestation(room, body(reply)["attestation"]))
    assert said[0]["nonce"] != said[1]["nonce"]
    assert {one["nonce_by"] for one in said} == {"node"}
    plain = await room.post("completions", sent)
    assert {one["seed"] for one in said} == {int(plain["x-seed"])}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [no_evidence(), NotFound("sev_gpu@1.0", "there is no GPU")])
async def test_without_evidence_the_backend_is_not_asked(
    room: Room, dummy: Dummy, stream: bool, error: Any
) -> None:
    room.evidence.probe_fails = error
    refused = await refusal(room.post("chat/completions", {**TEE, "stream": stream}))
    assert (refused.status, refused.error) == UNAVAILABLE
    assert error.detail in refused.detail
    assert dummy.calls == []


async def test_evidence_that_fails_after_the_answer_gives_no_answer(
    room: Room, dummy: Dummy
) -> None:
    room.evidence.fails = no_evidence()
    refused = await refusal(room.post("chat/completions", TEE))
    assert (refused.status, refused.error) == UNAVAILABLE
    receipt = await room.receipt(refused.headers)
    assert (receipt["response"]["status"], receipt["response"]["end"]) == (503, "error")
    assert receipt["statement"] is None
    assert len(dummy.calls) == 1


async def test_evidence_that_fails_in_a_stream_leaves_it_without_its_end(room: Room) -> None:
    room.evidence.fails = no_evidence()
    stream = await room.post("chat/completions", {**TEE, "stream": True})
    sent, error = await drain(stream)
    assert error is not None
    assert (error.status, error.error) == UNAVAILABLE
    assert b"[DONE]" not in sent
    assert b"Hello" in sent
    split = answers.split_stream(sent)
    assert (split.attestation, split.complete) == (None, False)
    receipt = await room.receipt(stream.headers)
    assert (receipt["response"]["end"], receipt["statement"]) == ("error", None)


async def cut(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    call.cut()


async def end_without_done(call: Call) -> None:
    await call.begin()
    await call.event(piece('the word "error" makes no end'))
    await call.end()


async def error_event(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await call.event({"error": {"code": 500, "message": "broke"}})
    await call.done()


async def error_and_done_at_once(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await call.chunk(b'data: {"error": {"message": "broke"}}\n\ndata: [DONE]\n\n')
    await call.end()


async def two_keys(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await call.chunk(b'data: {"choices": [], "choices": []}\n\ndata: [DONE]\n\n')
    await call.end()


async def own_attestation(call: Call) -> None:
    await call.begin()
    await call.event(piece("a"))
    await call.chunk(b'data: {"choices": [], "attestation": {}}\n\ndata: [DONE]\n\n')
    await call.end()


@pytest.mark.parametrize(
    "script",
    [cut, end_without_done, error_event, error_and_done_at_once, two_keys, own_attestation],
)
async def test_a_stream_that_is_not_complete_has_no_attestation(
    room: Room, dummy: Dummy, script: Any
) -> None:
    dummy.script = script
    sent, _ = await drain(await room.post("chat/completions", {**TEE, "stream": True}))
    split = answers.split_stream(sent)
    assert split.complete is False
    assert room.evidence.asked == []


async def test_a_plain_answer_with_an_attestation_of_the_backends_own_is_refused(
    room: Room, dummy: Dummy
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
        await call.event({"id": "x", "attestation": {"raw": "forged"}, "choices": [choice]})
        await call.done()

    dummy.script = script
    refused = await refusal(room.post("chat/completions", TEE))
    assert (refused.status, refused.error) == (502, "backend_error")
    assert room.evidence.asked == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_for_evidence_frees_its_place(
    room: Room, stream: bool
) -> None:
    room.evidence.hold = asyncio.Event()
    reply = asyncio.create_task(room.post("chat/completions", {**TEE, "stream": stream}))
    if stream:
        source = await reply
        reply = asyncio.create_task(drain(source))
    async with asyncio.timeout(5):
        while not room.evidence.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
    reply.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reply
    await asyncio.wait_for(room.evidence.left.wait(), 5)


async def test_only_a_backend_of_this_nodes_own_is_attested(room: Room, dummy: Dummy) -> None:
    dummy.where = "url"
    for where in ({}, {"where": "child", "backend": {"where": "child"}}):
        refused = await refusal(room.post("chat/completions", {**TEE, **where}))
        assert (refused.status, refused.error) == UNAVAILABLE
        assert "elsewhere" in refused.detail
    assert dummy.calls == []
    assert (await room.post("chat/completions", CHAT))["status"] == 200


async def test_no_field_of_a_request_changes_what_is_said_of_the_node(
    room: Room, dummy: Dummy
) -> None:
    claims = {
        "backend": {"kind": "h100"},
        "model": "another",
        "model_sha256": "00" * 32,
        "settings": {"slots": 9},
        "digest": "00" * 32,
        "resolved_model": "another",
        "attestation": {"raw": "mine"},
    }
    keys = {"backend": "h100", "model": "another", "x-model": "another", "sha256": "00" * 32}
    reply = await room.post("chat/completions", {**TEE, **claims}, **keys)
    said = check_attestation(room, body(reply)["attestation"])
    assert said["model"] == dummy.identity().as_dict()
    assert said["backend"]["kind"] == "dummy"
    assert said["backend"]["settings"] == {"slots": 2, "temperature": "0.5"}
    assert body(reply)["resolved_model"] == MODEL


async def test_a_model_that_is_not_known_is_not_attested(room: Room, dummy: Dummy) -> None:
    dummy.unknown = "the model's files are still being read"
    refused = await refusal(room.post("chat/completions", TEE))
    assert (refused.status, refused.error) == UNAVAILABLE
    assert "still being read" in refused.detail
    assert int(refused.headers["retry-after"]) > 0
    assert dummy.calls == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("change", ["file", "restart"])
async def test_a_model_that_changes_while_it_answers_is_not_attested(
    room: Room, dummy: Dummy, stream: bool, change: str
) -> None:
    async def script(call: Call) -> None:
        if change == "file":
            dummy.unknown = "weights.gguf was changed"
        else:
            dummy.model_sha256 = "6b" * 32
        await say("a")(call)

    dummy.script = script
    asked = room.post("chat/completions", {**TEE, "stream": stream})
    if stream:
        sent, error = await drain(await asked)
        assert b"[DONE]" not in sent
        assert error is not None
        refused = error
    else:
        refused = await refusal(asked)
    assert (refused.status, refused.error) == UNAVAILABLE
    assert room.evidence.asked == []


async def test_the_key_set_of_the_beginning_signs(room: Room, dummy: Dummy) -> None:
    before = room.keys.current.name

    async def script(call: Call) -> None:
        room.keys.declare("another part", {"new": True})
        await say("a")(call)

    dummy.script = script
    reply = await room.post("chat/completions", TEE)
    said = check_attestation(room, body(reply)["attestation"])
    assert said["keyset"] == before != room.keys.current.name


@pytest.mark.parametrize("no", [False, "false", 0, "0", None])
async def test_no_means_no(room: Room, no: Any) -> None:
    room.evidence.probe_fails = no_evidence()
    assert "attestation" not in body(await room.post("chat/completions", {**CHAT, "tee": no}))


@pytest.mark.parametrize(
    "sent",
    [
        b'{"prompt": "a", "tee": true, "prompt": "b"}',
        b'{"prompt": "a", "tee": true, "t\\u0065e": false}',
        b'{"prompt": "a", "tee": true, "Prompt": "b"}',
        b'{"prompt": "a", "tee": true, "x": NaN}',
        b'{"prompt": "a", "tee": true, "x": 1e400}',
        b'{"prompt": "\\ud800", "tee": true}',
        b'\xef\xbb\xbf{"prompt": "a", "tee": true}',
        b'{"prompt": "\xff", "tee": true}',
        b'{"prompt": "a", "tee": true, "seed": 9007199254740993}',
    ],
)
async def test_what_two_readers_may_understand_differently_never_reaches_the_backend(
    room: Room, dummy: Dummy, sent: bytes
) -> None:
    assert (await refusal(room.post("completions", sent))).status == 400
    assert dummy.calls == []
    assert room.evidence.asked == []


async def test_a_large_integer_of_the_clients_survives_exactly(room: Room, dummy: Dummy) -> None:
    reply = await room.post("chat/completions", {**TEE, "own_seed": 2**53 + 1})
    said = check_attestation(room, body(reply)["attestation"])
    assert '"own_seed": 9007199254740993' in said["request"]["body"]
    assert b'"own_seed":9007199254740993' in dummy.calls[0].data


@pytest.mark.parametrize("number", [2**53 + 1, -(2**64)])
def test_a_seed_past_2_to_the_53_is_text(number: int) -> None:
    assert exact(number) == str(number)
    assert exact(2**53 - 1) == 2**53 - 1
    assert jcs.encode({"seed": exact(number)}) == b'{"seed":"%d"}' % number


@pytest.mark.parametrize("part", ["v1", "chat"])
async def test_tee_belongs_to_the_last_part(room: Room, dummy: Dummy, part: str) -> None:
    mark = await getattr(room.device, part)({}, {"path": part, "tee": "true"})
    request = {"method": "POST", "path": "completions", "body": json.dumps(CHAT).encode()}
    if part == "v1":
        request["body"] = b'{"prompt": "x"}'
    refused = await refusal(room.device.completions(mark, request))
    assert (refused.status, refused.error) == (400, "invalid_value")
    assert (await room.device.completions(mark, {**request, "tee": "true"}))["status"] == 200
    assert (await room.device.completions(mark, {**request, "tee": "false"}))["status"] == 200
    assert len(dummy.calls) == 2


async def test_evidence_is_about_the_requests_own_body(room: Room, dummy: Dummy) -> None:
    refused = await refusal(room.call("POST", "completions", body='{"prompt": "x"}', tee="true"))
    assert (refused.status, refused.param) == (400, "tee")
    assert dummy.calls == []
