"""Where an attestation stands in a reply, and taking it out again to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.answer import splice, split_plain, split_stream, stream_event
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.events import read_events

from .documents import ANSWER, CHUNK, STREAM

ATTESTATION: dict[str, Any] = {"raw": 'é,{"}', "claims": [1.5, {"a": None}], "verified": False}
EVENT = stream_event(json.loads(CHUNK), "m", ATTESTATION)
DONE = b"data: [DONE]\n\n"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=10,
)
objects = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])).filter(
        lambda name: name not in ("resolved_model", "attestation")
    ),
    json_values,
    min_size=1,
    max_size=5,
)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@given(objects, layouts, st.text(st.characters(exclude_categories=["Cs"])), objects)
def test_what_is_put_in_is_taken_out_to_the_byte(
    value: dict[str, Any], layout: dict[str, Any], model: str, attestation: dict[str, Any]
) -> None:
    body = json.dumps(value, **layout).encode()
    reply = splice(body, model, attestation)
    assert json.loads(reply) == {**value, "resolved_model": model, "attestation": attestation}
    assert split_plain(reply) == (body, model, attestation)
    assert split_plain(reply + b"\r\n") == (body, model, attestation)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"",
        b"{",
        b'{"a":1} ',
        b'{"a":1,"attestation":null}',
        b'{"resolved_model":"x"}',
        b'{"a":1,"a":2}',
        b'{"\\u0061ttestation":1,"b":2}',
    ],
)
def test_a_body_that_could_not_be_cut_back_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        splice(body, "m", ATTESTATION)
    assert caught.value.reason == "answer-malformed"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ANSWER, "answer-malformed"),
        (b"", "answer-malformed"),
        (b'{"attestation":{},"resolved_model":"m"}', "answer-malformed"),
        (b'{"a":1,"resolved_model":1,"attestation":{}}', "answer-malformed"),
        (b'{"a":1,"resolved_model":"m","attestation":[]}', "answer-malformed"),
        (b'{"a":1,"resolved_model":"m", "attestation":{}}', "answer-reformatted"),
        (b'{"a":1,"resolved_model":"\\u006d","attestation":{}}', "answer-reformatted"),
        (b'{"a":1,"resolved_model":"m","attestation":{}}x', "answer-malformed"),
    ],
)
def test_a_reply_that_a_node_would_not_write_is_refused(reply: bytes, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        split_plain(reply)
    assert caught.value.reason == reason


def test_a_whole_stream_is_taken_apart() -> None:
    split = split_stream(STREAM + EVENT + DONE)
    assert split == (STREAM, ATTESTATION, "m", True, "")
    chunk = json.loads(EVENT[6:])
    assert chunk["choices"] == [] and chunk["id"] == "chatcmpl-1"
    assert chunk["object"] == "chat.completion.chunk" and chunk["model"] == "m"


def test_comments_after_the_attestation_say_nothing() -> None:
    comment = b": keep-alive\n\n"
    split = split_stream(STREAM + EVENT + comment + DONE + comment)
    assert split.complete and split.answer == STREAM


def test_a_comment_just_before_the_attestation_is_attested() -> None:
    assert split_stream(STREAM + b": x\n" + EVENT + DONE).answer == STREAM + b": x\n"


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (STREAM + DONE, "no-attestation"),
        (STREAM + EVENT, "stream-no-done"),
        (STREAM + EVENT + DONE[:-1], "stream-unfinished"),
        (STREAM + EVENT[:-1] + DONE, "stream-malformed"),
        (STREAM + EVENT + EVENT + DONE, "stream-two-attestations"),
        (STREAM + EVENT + b"data: " + CHUNK + b"\n\n" + DONE, "stream-chunk-after-attestation"),
        (STREAM + EVENT + DONE + b"data: " + CHUNK + b"\n\n", "stream-after-done"),
        (STREAM + EVENT + DONE + DONE, "stream-after-done"),
        (STREAM + EVENT + DONE + b"data: " + CHUNK, "stream-unfinished"),
        (EVENT + DONE, "stream-attestation-malformed"),
        (STREAM + b'data: {"error":{"message":"x"}}\n\n' + EVENT + DONE, "stream-error-event"),
        (STREAM + b"event: error\ndata: {}\n\n" + EVENT + DONE, "stream-error-event"),
        (STREAM + b"data: x\n\n" + EVENT + DONE, "stream-malformed"),
        (STREAM + b'data: {"attestation":1}\n\n' + DONE, "stream-attestation-malformed"),
        (STREAM + b"event: x\n" + EVENT + DONE, "stream-attestation-changed"),
        (STREAM + b"data:" + EVENT[6:] + DONE, "stream-attestation-changed"),
        (STREAM + EVENT.replace(b"chatcmpl-1", b"chatcmpl-2") + DONE, "stream-attestation-changed"),
        (STREAM + EVENT.replace(b"1790000000", b"1790000001") + DONE, "stream-attestation-changed"),
        (STREAM + EVENT.replace(b"[]", b"[1]", 1) + DONE, "stream-attestation-changed"),
        (STREAM + EVENT.replace(b"\n\n", b"\r\n\r\n") + DONE, "stream-attestation-changed"),
    ],
)
def test_a_stream_that_is_not_whole_is_named(stream: bytes, problem: str) -> None:
    split = split_stream(stream)
    assert (split.complete, split.problem) == (False, problem)


def test_an_attestation_under_an_escaped_name_is_found() -> None:
    hidden = b'data: {"\\u0061ttestation":{}}\n\n'
    assert split_stream(STREAM + hidden + EVENT + DONE).problem == "stream-two-attestations"
    assert not split_stream(b"\xef\xbb\xbf" + hidden + EVENT + DONE).complete


@settings(max_examples=300)
@given(st.data())
def test_no_changed_stream_is_whole_and_attests_the_same(data: st.DataObject) -> None:
    """A byte of the attestation's event or after it changed: named, or seen in the parts."""
    stream = STREAM + EVENT + DONE
    at = data.draw(st.integers(len(STREAM), len(stream) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != stream[at]))
    changed = stream[:at] + bytes([byte]) + stream[at + 1 :]
    split = split_stream(changed)
    whole = split_stream(stream)
    line_end_as_good = byte == 13 and stream[at] == 10 and at >= len(STREAM) + len(EVENT)
    assert not split.complete or split != whole or line_end_as_good


@given(
    st.lists(
        st.sampled_from(
            [b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"x", b"event", b"\xef\xbb\xbf", DONE]
        )
    ).map(b"".join)
)
def test_events_have_their_places(body: bytes) -> None:
    events, rest = read_events(body)
    assert body.endswith(rest)
    for event in events:
        assert 0 <= event.start < event.end <= len(body)
        again, _ = read_events(body[event.start : event.end])
        assert [one.data for one in again] == [event.data]


@settings(max_examples=200)
@given(
    st.binary() | st.lists(st.sampled_from([EVENT, DONE, STREAM, b": x\n\n", b"\n"])).map(b"".join)
)
def test_no_bytes_give_more_than_a_refusal(body: bytes) -> None:
    split = split_stream(body)
    assert split.complete == (split.problem == "")
    assert body.startswith(split.answer)
    with pytest.raises(Malformed):
        split_plain(body)


def test_a_stream_of_too_many_lines_is_refused() -> None:
    with pytest.raises(Malformed, match="lines"):
        split_stream(b"\n" * 1_000_001)


@pytest.mark.parametrize(
    "after",
    [
        ": ping\u2028data: {}\n\n".encode(),
        b": ping\x0bdata: {}\n\n",
        b": ping\x85\n\n",
        b"event: error\nid: 7\n\n",
        b"retry: 1\n\n",
        b"\x00data: {}\n\n",
        b"id: 1\n\n",
    ],
)
def test_nothing_but_plain_comments_stands_after_the_attestation(after: bytes) -> None:
    assert split_stream(STREAM + EVENT + b": keep-alive\n\n" + DONE + b": bye\n\n").complete
    for stream in (STREAM + EVENT + after + DONE, STREAM + EVENT + DONE + after):
        split = split_stream(stream)
        assert (split.complete, split.problem) == (False, "stream-after-attestation")
