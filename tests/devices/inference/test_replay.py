import asyncio
import json
from typing import Any, cast

import pytest

from devices.inference.outputs import Output
from devices.inference.replay import Conflict, _api, _difference
from hyperbeam.verify import answer as answers
from hyperbeam.verify.receipt import parse as parse_receipt

from .dummy import Call, Dummy, chat_events, say, text_events
from .room import Room, body, drain, refusal

CHAT = {"messages": [{"role": "user", "content": "x"}]}
NONCE = "ab" * 32


async def asked(room: Room, path: str, fields: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """What to post to replay a request that is made now: receipt, request and answer."""
    sent = json.dumps(fields).encode()
    reply = await room.post(path, sent, **keys)
    if fields.get("stream"):
        answer, _ = await drain(reply)
        reply = reply.headers
    else:
        answer = reply["body"]
    receipt = await room.receipt(reply)
    return {"receipt": receipt, "request": sent.decode(), "answer": answer.decode()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", CHAT),
        ("v1/chat/completions", {**CHAT, "n": 2, "temperature": 1, "seed": 7}),
        ("completions", {"prompt": ["a", "b"], "nonce": NONCE}),
        ("completions", {"prompt": "a", "tee": True, "nonce": NONCE}),
    ],
)
async def test_the_same_again_is_a_match(
    room: Room, dummy: Dummy, path: str, fields: dict[str, Any], stream: bool
) -> None:
    question = await asked(room, path, {**fields, "stream": stream})
    first = [call.data for call in dummy.calls]
    dummy.calls.clear()
    evidence = len(room.evidence.asked)
    reply = await room.post("replay", question)
    found = body(reply)
    receipt = question["receipt"]
    assert found == {
        "match": True,
        "output_sha256": {
            "receipt": receipt["output_sha256"],
            "replay": receipt["output_sha256"],
        },
        "differs": None,
        "model": dummy.identity().as_dict(),
        "seed": receipt["seed"],
        "seed_by": receipt["seed_by"],
        "receipt": receipt["id"],
        "replay_receipt": reply["x-receipt-id"],
        "signature": "good",
    }
    assert [call.data for call in dummy.calls] == first
    assert len(room.evidence.asked) == evidence
    assert reply["cache-control"] == "no-store"


async def test_a_replay_has_a_receipt_of_its_own(room: Room) -> None:
    question = await asked(room, "chat/completions", {**CHAT, "nonce": NONCE})
    sent = json.dumps(question).encode()
    reply = await room.post("replay", sent)
    receipt = parse_receipt(await room.receipt(reply))
    assert receipt["endpoint"] == "/~inference@1.0/replay"
    assert receipt["request"]["length"] == len(sent)
    assert (receipt["nonce"], receipt["statement"]) == (None, None)
    assert receipt["response"]["length"] == len(reply["body"])
    assert receipt["output_sha256"] == question["receipt"]["output_sha256"]


@pytest.mark.parametrize("key", ["nonce", "x-nonce"])
async def test_a_nonce_from_outside_the_body_enters_the_seed_again(room: Room, key: str) -> None:
    question = await asked(room, "chat/completions", CHAT, **{key: NONCE})
    assert body(await room.post("replay", question))["match"] is True


async def test_where_an_answer_differs_first(room: Room, dummy: Dummy) -> None:
    dummy.script = say("Grüße", " aus Rom")
    question = await asked(room, "chat/completions", CHAT)
    dummy.script = say("Grüße", " an Rom")
    found = body(await room.post("replay", question))
    assert found["match"] is False
    assert found["differs"] == {
        "choice": 0,
        "field": "text",
        "byte": len("Grüße a".encode()),
        "expected": "us Rom",
        "got": "n Rom",
    }
    assert found["output_sha256"]["receipt"] != found["output_sha256"]["replay"]
    del question["answer"]
    found = body(await room.post("replay", question))
    assert (found["match"], found["differs"]) == (False, None)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ([Output(0, "ü", None, "stop")], [Output(0, "ö", None, "stop")], (0, "text", 1, "ü", "ö")),
        ([Output(0, "a", None, "stop")], [Output(0, "ab", None, "stop")], (0, "text", 1, "", "b")),
        (
            [Output(0, "a", None, "stop")],
            [Output(0, "a", None, "length")],
            (0, "finish_reason", 0, "stop", "length"),
        ),
        (
            [Output(0, "a", None, "stop"), Output(1, "", [{"a": 1}], "stop")],
            [Output(0, "a", None, "stop"), Output(1, "", None, "stop")],
            (1, "tool_calls", 0, '[{"a": 1}]', "null"),
        ),
        (
            [Output(0, "a", None, "stop")] * 2,
            [Output(0, "a", None, "stop")],
            (1, "choices", 0, "2", "1"),
        ),
    ],
)  # fmt: skip
def test_the_first_difference(was: Any, now: Any, expected: Any) -> None:
    found = _difference(was, now)
    assert found is not None
    assert tuple(found.values()) == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("with_answer", [False, True])
async def test_from_an_attestation(
    room: Room, dummy: Dummy, stream: bool, with_answer: bool
) -> None:
    question = await asked(room, "chat/completions", {**CHAT, "tee": True, "stream": stream})
    saved = question["answer"].encode()
    attestation: Any = (
        answers.split_stream(saved).attestation if stream else answers.split_plain(saved)[2]
    )
    posted = {"attestation": attestation, **({"answer": saved.decode()} if with_answer else {})}
    found = body(await room.post("replay", posted))
    assert (found["match"], found["signature"]) == (True, "good")
    assert set(found["output_sha256"]) == {"attestation", "replay"}
    dummy.script = say("other")
    found = body(await room.post("replay", posted))
    assert (found["match"], found["differs"]["expected"]) == (False, "Hello")


async def test_from_an_attestation_without_texts(room: Room) -> None:
    question = await asked(room, "chat/completions", {**CHAT, "tee": "digest"})
    attestation = json.loads(question["answer"])["attestation"]
    refused = await refusal(room.post("replay", {"attestation": attestation}))
    assert refused.status == 409
    assert "answer" in refused.detail
    with_answer = {"attestation": attestation, "answer": question["answer"]}
    assert (await refusal(room.post("replay", with_answer))).param == "request"
    whole = {**with_answer, "request": question["request"]}
    assert body(await room.post("replay", whole))["match"] is True


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("signature", "00" * 64),
        ("key_id", "00" * 8),
        ("salt", "00" * 16),
        ("config", "00" * 32),
        ("nonce", NONCE),
        ("request.length", 1),
        ("response.status", 201),
        ("response.complete", False),
        ("output_sha256", "00" * 32),
        ("seed", 9),
    ],
)
async def test_a_receipt_whose_signature_does_not_hold_is_refused(
    room: Room, dummy: Dummy, place: str, value: Any
) -> None:
    question = await asked(room, "chat/completions", CHAT)
    dummy.calls.clear()
    *outer, name = place.split(".")
    part = question["receipt"][outer[0]] if outer else question["receipt"]
    assert part[name] != value
    part[name] = value
    refused = await refusal(room.post("replay", question))
    assert (refused.status, refused.error) == (400, "signature_invalid")
    assert refused.param == "receipt"
    assert dummy.calls == []


@pytest.mark.parametrize("change", ["value", "key_id", "raw", "none"])
async def test_an_attestation_whose_signature_does_not_hold_is_refused(
    room: Room, dummy: Dummy, change: str
) -> None:
    question = await asked(room, "chat/completions", {**CHAT, "tee": True})
    attestation = json.loads(question["answer"])["attestation"]
    dummy.calls.clear()
    if change == "raw":
        salt = json.loads(attestation["raw"])["salt"]
        attestation["raw"] = attestation["raw"].replace(salt, "00" * 16)
    elif change == "none":
        del attestation["signature"]
    else:
        old = attestation["signature"][change]
        attestation["signature"][change] = "0" * len(old)
    refused = await refusal(room.post("replay", {"attestation": attestation}))
    assert (refused.status, refused.error) == (400, "signature_invalid")
    assert refused.param == "attestation"
    assert dummy.calls == []


async def test_the_signature_of_a_key_set_that_is_not_known_is_not_checked(room: Room) -> None:
    question = await asked(room, "chat/completions", CHAT)
    question["receipt"] |= {"keyset": "00" * 32, "salt": "00" * 16}
    found = body(await room.post("replay", question))
    assert (found["match"], found["signature"]) == (True, "unchecked")


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"model": "another"}, "model_differs", "another"),
        ({"model_sha256": "00" * 32}, "weights_differ", "00000"),
        ({"model_sha256": None}, "weights_differ", "not known"),
        ({"settings": {"slots": 3, "temperature": "0.5"}}, "settings_differ", "slots"),
        ({"kind": "other"}, "settings_differ", "kind"),
    ],
)
async def test_what_is_not_the_same_is_refused_with_its_reason(
    room: Room, dummy: Dummy, change: dict[str, Any], error: str, word: str
) -> None:
    question = await asked(room, "chat/completions", CHAT)
    for name, value in change.items():
        setattr(dummy, name, value)
    dummy.calls.clear()
    refused = await refusal(room.post("replay", question))
    assert (refused.status, refused.error) == (409, error)
    assert word in refused.detail
    assert dummy.calls == []


async def test_another_default_limit_is_another_setting(room: Room, dummy: Dummy) -> None:
    question = await asked(room, "chat/completions", CHAT)
    cast(Any, room.device).config = type(room.device.config)(slots=2, max_tokens=3)
    refused = await refusal(room.post("replay", question))
    assert (refused.status, refused.error) == (409, "settings_differ")
    assert "max_tokens" in refused.detail


async def test_an_answer_that_was_not_complete_is_refused(room: Room, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(chat_events("a", usage=False)[1])
        call.cut()

    dummy.script = script
    question = await asked(room, "chat/completions", {**CHAT, "stream": True})
    refused = await refusal(room.post("replay", question))
    assert (refused.status, refused.error) == (409, "not_replayable")


async def test_what_does_not_belong_together_is_400(room: Room, dummy: Dummy) -> None:
    question = await asked(room, "chat/completions", CHAT)
    other = await asked(room, "chat/completions", {**CHAT, "seed": 8})
    dummy.calls.clear()
    foreign = {**question["receipt"], "keyset": "00" * 32}
    longer = {**foreign["request"], "length": foreign["request"]["length"] + 1}
    reply = {**foreign["response"], "length": foreign["response"]["length"] + 1}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"request": question["request"] + " "}, "request_mismatch"),
        ({"answer": question["answer"] + " "}, "answer_mismatch"),
        ({"request": other["request"]}, "request_mismatch"),
        ({"receipt": {**foreign, "seed": 9}}, "seed_mismatch"),
        ({"receipt": {**foreign, "output_sha256": "00" * 32}}, "answer_mismatch"),
        ({"receipt": {**foreign, "request": longer}}, "request_mismatch"),
        ({"receipt": {**foreign, "response": reply}}, "answer_mismatch"),
        ({"receipt": {**question["receipt"], "more": 1}}, "receipt_malformed"),
        ({"receipt": {}}, "receipt_malformed"),
        ({"receipt": None}, "receipt_malformed"),
        ({"receipt": "x"}, "invalid_type"),
        ({"attestation": {}}, "missing_required_parameter"),
        ({"tee": True}, "unknown_parameter"),
        ({"request": 5}, "invalid_type"),
        ({"request": None}, "missing_required_parameter"),
    ]
    for change, error in wrong:
        refused = await refusal(room.post("replay", {**question, **change}))
        assert (refused.status, refused.error) == (400, error), change
    for posted in (b"", b"[]", b"{", b'{"receipt": {}, "receipt": {}}', "text"):
        keys = {"body": posted}
        assert (await refusal(room.call("POST", "replay", **keys))).status == 400
    assert dummy.calls == []


@pytest.mark.parametrize("raw", ["", "{}", '{"v":"hyperbeam.answer/2"}', "[" * 1000])
async def test_a_statement_that_is_none_is_400(room: Room, raw: str) -> None:
    refused = await refusal(room.post("replay", {"attestation": {"raw": raw}}))
    assert refused.status == 400


async def test_a_replay_that_the_client_leaves_ends_the_backends_work(
    room: Room, dummy: Dummy
) -> None:
    question = await asked(room, "completions", {"prompt": "x"})
    dummy.calls.clear()
    began = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.event(text_events("a")[0])
        began.set()
        await asyncio.Event().wait()

    dummy.script = script
    task = asyncio.create_task(room.post("replay", question))
    await asyncio.wait_for(began.wait(), 5)
    task.cancel()
    await asyncio.wait_for(dummy.calls[0].gone.wait(), 5)


async def test_only_post_replays(room: Room) -> None:
    assert (await refusal(room.get("replay"))).status == 405
    assert (await refusal(room.post("chat/replay", {}))).status == 404


async def test_a_node_that_is_not_ready_replays_nothing(room: Room, dummy: Dummy) -> None:
    question = await asked(room, "completions", {"prompt": "x"})
    dummy.state = "loading"
    assert (await refusal(room.post("replay", question))).error == "loading"


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/~inference@1.0/chat/completions", "chat"),
        ("/v1/chat/completions?tee=true&nonce=/x", "chat"),
        ("/~inference@1.0/v1/chat&a=1/completions&tee=true", "chat"),
        ("/~inference@1.0/completions&tee=true/", "completions"),
        ("/v1/completions", "completions"),
        ("/~inference@1.0/replay", None),
        ("/v1/chat", None),
        ("/", None),
    ],
)
def test_which_api_a_path_names(path: str, api: str | None) -> None:
    said = {"v": "hyperbeam.receipt/1", "endpoint": path}
    if api is None:
        with pytest.raises(Conflict):
            _api(said)
    else:
        assert _api(said) == _api({"v": "", "request": {"path": path}}) == api
