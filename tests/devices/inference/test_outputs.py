import hashlib
import json
from itertools import pairwise
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from devices.inference.assemble import Assembler
from devices.inference.outputs import Output, StreamOutputs, digest, of_answer

from .dummy import chat_events, chunk, text_events


def stream(events: list[Any], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


def seen(data: bytes, *cuts: int) -> StreamOutputs:
    found = StreamOutputs()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        found.feed(data[start:end])
    return found


def plain(api: Any, events: list[Any]) -> dict[str, Any]:
    assembler = Assembler(api)
    for event in events:
        assembler.feed(event)
    return assembler.result()


def test_the_digest_is_of_canonical_json() -> None:
    outputs = [Output(0, "é\u2028\x00", None, "stop"), Output(1, "", [{"a": 1}], "tool_calls")]
    text = rfc8785.dumps([list(one) for one in outputs])
    assert digest(outputs) == hashlib.sha256(text).hexdigest()
    assert digest(None) is None


@given(st.lists(st.text(), max_size=5), st.lists(st.integers(0, 10_000), max_size=8))
def test_streams_say_what_plain_answers_say(texts: list[str], cuts: list[int]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    chats = chat_events(*texts, usage=True)
    found = seen(stream(chats), *cuts)
    assert found.outputs() == of_answer(plain("chat", chats))
    assert (found.id, found.done, found.error) == ("chatcmpl-1", True, "")
    prompts = text_events(*texts)
    assert seen(stream(prompts), *cuts).outputs() == of_answer(plain("completions", prompts))


def calls(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    choices = [{"index": 0, "delta": {"tool_calls": [piece]}} for piece in pieces]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    return [chunk([choice]) for choice in [*choices, end]]


def test_tool_calls_count_without_their_ids() -> None:
    def made(id: str) -> list[dict[str, Any]]:
        return calls(
            {"index": 0, "id": id, "type": "function", "function": {"name": "f", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"a":'}},
            {"index": 0, "function": {"arguments": "1.5}"}},
        )

    first, second = made("one"), made("two")
    expected = [
        Output(
            0, "", [{"type": "function", "function": {"name": "f", "arguments": '{"a":1.5}'}}],
            "tool_calls",
        )
    ]  # fmt: skip
    assert seen(stream(first)).outputs() == expected == seen(stream(second)).outputs()
    assert of_answer(plain("chat", first)) == expected


@pytest.mark.parametrize(
    "data",
    [
        stream(chat_events("a", usage=False), end=b""),
        stream(chat_events("a", usage=False)[:-1]),
        stream([{"error": {"message": "x", "code": 500}}]),
        stream([*chat_events("a", usage=False), {"error": "x"}]),
        stream([]),
        stream([[]]),
        stream([{"choices": [{"index": "0", "delta": {"content": "a"}}]}]),
        b"data: {\n\ndata: [DONE]\n\n",
        b'data: {"choices": [{"text": "\xff", "finish_reason": "x"}]}\n\ndata: [DONE]\n\n',
        b"",
    ],
)
def test_a_stream_that_is_not_complete_has_no_outputs(data: bytes) -> None:
    assert seen(data).outputs() is None


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": "x"},
        {"choices": [1]},
        {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "text": 5, "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "finish_reason": "stop"}]},
    ],
)
def test_an_answer_that_is_not_complete_has_no_outputs(answer: Any) -> None:
    assert of_answer(answer) is None


def test_the_code_of_an_error_event() -> None:
    assert seen(stream([{"error": {"code": "backend_died"}}])).error == "backend_died"
    assert seen(stream([{"error": "broke"}])).error == "error"
    assert seen(stream([{"error": None}])).error == ""


@given(st.binary())
def test_any_bytes_are_taken(data: bytes) -> None:
    assert seen(b"data: " + data + b"\n\n").outputs() is None
