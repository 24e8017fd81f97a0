import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.inference.assemble import Assembler, merge
from devices.inference.events import EventParser
from devices.inference.validate import API
from hyperbeam import BadGateway

from .dummy import chat_events, chunk, piece, text_events


def assemble(
    events: list[dict[str, Any]], api: API = "chat", alternatives: int | None = None
) -> dict[str, Any]:
    assembler = Assembler(api, alternatives)
    for event in events:
        assembler.feed(event)
    return assembler.result()


def delta(**fields: Any) -> dict[str, Any]:
    return chunk([{"finish_reason": None, "index": 0, "delta": fields}])


def end(reason: str = "stop") -> dict[str, Any]:
    return chunk([{"finish_reason": reason, "index": 0, "delta": {}}])


def test_a_chat_answer() -> None:
    assert assemble(chat_events("Par", "is", ".", usage=True)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1796079238,
        "model": "dummy-model",
        "system_fingerprint": "b0-unknown",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris."},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "completion_tokens": 3,
            "prompt_tokens": 7,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "timings": {"predicted_n": 3},
    }


def test_a_text_completion() -> None:
    answer = assemble(text_events("-by", "-"), "completions")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"text": "-by-", "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"]["total_tokens"] == 5


def test_tool_calls_come_in_pieces_by_index() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {
        "index": 1,
        "id": "b",
        "type": "function",
        "function": {"name": "g", "arguments": "{"},
    }
    events = [
        delta(role="assistant", content=None),
        delta(tool_calls=[first]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
        delta(tool_calls=[second, {"index": 0, "function": {"arguments": ":1}"}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": "}"}}]),
        end("tool_calls"),
    ]
    (choice,) = assemble(events)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_reasoning_and_unknown_parts_of_a_delta_are_kept() -> None:
    events = [
        delta(role="assistant", content=None, reasoning_content="hm"),
        delta(reasoning_content="m", annotations=[1]),
        delta(content="Yes"),
        end(),
    ]
    assert assemble(events)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "hmm",
        "annotations": [1],
    }


def token(text: str, *tops: str) -> dict[str, Any]:
    found = {"id": 1, "token": text, "bytes": list(text.encode()), "logprob": -0.5}
    alternatives = [
        {"id": 2, "token": top, "bytes": list(top.encode()), "logprob": -1.5} for top in tops
    ]
    return {**found, "top_logprobs": [found, *alternatives]}


def test_chats_log_probabilities_are_joined_and_trimmed() -> None:
    events = [
        piece("I", logprobs={"content": [token("I", "You")]}),
        piece("'m", logprobs={"content": [token("'m", " am")]}),
        end(),
    ]
    content = assemble(events)["choices"][0]["logprobs"]["content"]
    assert content == [token("I", "You"), token("'m", " am")]
    trimmed = assemble(events, alternatives=0)["choices"][0]["logprobs"]["content"]
    assert [(each["token"], each["top_logprobs"]) for each in trimmed] == [("I", []), ("'m", [])]


def test_completions_log_probabilities_have_the_older_shape() -> None:
    half = {"id": 3, "token": "\ufffd", "bytes": [240, 159], "logprob": -2.0, "top_logprobs": []}

    def logprobs(text: str) -> dict[str, Any]:
        return {"content": [half if text == "?" else token(text, "no")]}

    events = text_events("-by", "?", "x", logprobs=logprobs)
    (choice,) = assemble(events, "completions", alternatives=2)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["-by", "bytes:\\xf0\\x9f", "x"],
        "token_logprobs": [-0.5, -2.0, -0.5],
        "top_logprobs": [{"-by": -0.5, "no": -1.5}, {}, {"x": -0.5, "no": -1.5}],
        "text_offset": [0, 3, 4],
    }
    (choice,) = assemble(events, "completions", alternatives=0)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{}, {}, {}]


@pytest.mark.parametrize("events", [[], [piece("x")], [chunk([])]])
def test_what_ends_early_is_no_answer(events: list[dict[str, Any]]) -> None:
    with pytest.raises(BadGateway):
        assemble(events)


def test_several_answers_become_one() -> None:
    answers = [assemble(chat_events(*"ab"[: n + 1], usage=True)) for n in (0, 1, 1)]
    merged = merge(answers, [True, False, True])
    assert [choice["index"] for choice in merged["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in merged["choices"]] == ["a", "ab", "ab"]
    assert merged["usage"] == {
        "completion_tokens": 5,
        "prompt_tokens": 14,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert "timings" not in merged


@given(st.lists(st.text(), max_size=4), st.sampled_from(["\n", "\r\n"]), st.data())
def test_an_answer_cut_anywhere_is_the_same_answer(
    texts: list[str], line_end: str, data: st.DataObject
) -> None:
    events = chat_events(*texts, usage=True)
    lines = [f": c{line_end}{line_end}"]
    for event in events:
        # A data line may end wherever JSON may have white space.
        text = json.dumps(event, ensure_ascii=False).replace(
            '"choices": [', f'"choices": {line_end}data: [', 1
        )
        lines.append(f"data: {text}{line_end}{line_end}")
    stream = "".join(lines).encode("utf-8", "surrogatepass")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    parser = EventParser()
    assembler = Assembler("chat")
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for found in parser.feed(stream[start:stop]):
            assembler.feed(json.loads(found))
    assert assembler.result() == assemble(events)
    assert assembler.result()["choices"][0]["message"]["content"] == "".join(texts)
