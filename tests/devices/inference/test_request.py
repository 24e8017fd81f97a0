import hashlib
import json
import struct
from typing import Any

import pytest

from devices.inference.request import Digest, Generation, read
from devices.inference.validate import API, MAX_SEED
from hyperbeam import BadRequest
from hyperbeam.verify.seed import derive

NONCE = "ab" * 32
HEADER: dict[str, Any] = {"x-nonce": NONCE}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def ask(fields: dict[str, Any], api: API = "chat", **keys: Any) -> Generation:
    request = {"method": "POST", "body": json.dumps(fields).encode(), **keys}
    return read(api, request, model="the-model", max_tokens=99, tools=True)


def child(fields: dict[str, Any], api: API = "chat", **keys: Any) -> dict[str, Any]:
    (call,) = ask(fields, api, **keys).calls
    fields: dict[str, Any] = json.loads(call.body())
    return fields


def test_what_the_backend_is_asked() -> None:
    asked = child({**CHAT, "model": "any", "seed": 5, "own": {"x": [2**53 + 1]}, "stop": []})
    assert asked == {
        **CHAT,
        "model": "the-model",
        "seed": 5,
        "own": {"x": [2**53 + 1]},
        "max_tokens": 99,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_limit_of_the_clients_own_stands(name: str) -> None:
    asked = child({**CHAT, name: 3})
    assert {key: value for key, value in asked.items() if "max" in key or "n_" in key} == {name: 3}


def test_null_means_missing_and_ours_are_taken_out() -> None:
    asked = child({**CHAT, "max_tokens": None, "tools": None, "tee": False, "nonce": NONCE, "n": 1})
    assert asked["max_tokens"] == 99
    assert not {"tools", "tee", "nonce", "n"} & set(asked)


def test_a_clients_stream_is_asked_for_as_it_is() -> None:
    assert "stream_options" not in child({**CHAT, "stream": True})
    options = {"include_usage": False}
    asked = child({**CHAT, "stream": True, "stream_options": options})
    assert asked["stream_options"] == options


def test_the_seed_is_made_of_the_requests_own_bytes() -> None:
    body = json.dumps(CHAT).encode()
    inner = hashlib.sha256(body).digest()
    bits = bin(int(hashlib.sha256(b"hyperbeam.seed/1\x00" + inner).hexdigest(), 16) + (1 << 256))
    assert ask(CHAT).seed == int(bits[3:34], 2)
    assert ask(CHAT).seed_by == "node"
    assert ask(CHAT).seed == ask(CHAT).seed != ask({**CHAT, "a": 1}).seed
    assert derive(body, None) == 1759356501


def test_the_nonce_enters_the_seed_from_wherever_it_comes() -> None:
    seeds = {ask(CHAT, nonce=NONCE).seed, ask(CHAT, **HEADER).seed}
    assert len(seeds) == 1
    assert seeds != {ask(CHAT).seed}
    body = json.dumps({**CHAT, "nonce": NONCE}).encode()
    assert ask({**CHAT, "nonce": NONCE}).seed == derive(body, NONCE) != derive(body, None)


@pytest.mark.parametrize("nonce", ["AB" * 32, "ab" * 31, "g" * 64, 5, "", "ab" * 32 + "\n"])
def test_an_unsound_nonce_is_refused(nonce: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        ask({**CHAT, "nonce": nonce})
    assert caught.value.param == "nonce"


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"nonce": NONCE}, {"nonce": "cd" * 32}),
        ({"tee": False}, {"tee": "true"}),
        ({"tee": True}, {"x-tee": "digest"}),
        ({"tee": "maybe"}, {}),
        ({"tee": 7}, {}),
        ({"tee": []}, {}),
    ],
)
def test_two_things_said_at_once_or_nonsense_is_refused(
    fields: dict[str, Any], keys: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest):
        ask({**CHAT, **fields}, **keys)


@pytest.mark.parametrize(
    ("tee", "kind"),
    [
        (True, "full"),
        ("true", "full"),
        ("True", "full"),
        (1, "full"),
        ("1", "full"),
        ("digest", "digest"),
        ("batch", "batch"),
        (False, ""),
        ("false", ""),
        (0, ""),
        ("0", ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("where", ["body", "tee", "x-tee"])
def test_which_evidence_is_asked_for(tee: Any, kind: str, where: str) -> None:
    fields, keys = ({**CHAT, "tee": tee}, {}) if where == "body" else (CHAT, {where: tee})
    wanted = ask(fields, **keys)
    assert wanted.tee == kind
    assert "tee" not in wanted.calls[0].fields


def test_the_same_said_twice_is_said_once() -> None:
    keys = {"tee": "1", "x-tee": "TRUE", "nonce": NONCE, **HEADER}
    wanted = ask({**CHAT, "tee": True, "nonce": NONCE}, **keys)
    assert (wanted.tee, wanted.nonce) == ("full", NONCE)


def test_evidence_is_about_a_requests_own_body() -> None:
    """A body that a link put into the path is none."""
    text = json.dumps({**CHAT, "tee": True})
    with pytest.raises(BadRequest) as caught:
        read("chat", {"body": text}, model="m", max_tokens=9, tools=True)
    assert caught.value.param == "tee"
    assert read("chat", {"body": json.dumps(CHAT)}, model="m", max_tokens=9, tools=True).calls


def test_what_is_forwarded_of_one_call_is_its_body() -> None:
    wanted = ask(CHAT)
    body = wanted.calls[0].body()
    assert wanted.forwarded() == Digest(hashlib.sha256(body).hexdigest(), len(body))
    assert wanted.calls[0].body() is wanted.calls[0].body()


def test_what_is_forwarded_of_several_calls_is_each_behind_its_length() -> None:
    wanted = ask({"prompt": ["a", "bc"]}, "completions")
    framed = b"".join(struct.pack(">I", len(call.body())) + call.body() for call in wanted.calls)
    assert wanted.forwarded() == Digest(hashlib.sha256(framed).hexdigest(), len(framed))


@pytest.mark.parametrize("tee", [False, "false", 0, "0", None])
def test_no_attestation_is_asked_for(tee: Any) -> None:
    assert "tee" not in child({**CHAT, "tee": tee}, tee="false")


def test_choices_and_prompts_are_one_call_each() -> None:
    wanted = ask({"prompt": ["a", "b"], "n": 2, "seed": MAX_SEED}, "completions")
    assert [(call.index, call.first) for call in wanted.calls] == [
        (0, True),
        (1, False),
        (2, True),
        (3, False),
    ]
    assert [call.fields["prompt"] for call in wanted.calls] == ["a", "a", "b", "b"]
    assert [call.fields["seed"] for call in wanted.calls] == [MAX_SEED, 0, MAX_SEED, 0]
    assert wanted.seed == MAX_SEED
    assert wanted.rewritten


@pytest.mark.parametrize("prompt", [[1, 2], [1, "a"], "a", ["a"], [[1]]])
def test_one_prompt_is_one_call(prompt: Any) -> None:
    (call,) = ask({"prompt": prompt}, "completions").calls
    assert call.fields["prompt"] == (prompt[0] if prompt in (["a"], [[1]]) else prompt)


@pytest.mark.parametrize(
    ("api", "fields", "sent", "shown"),
    [
        ("chat", {"logprobs": True}, {"top_logprobs": 1}, 0),
        ("chat", {"logprobs": True, "top_logprobs": 0}, {"top_logprobs": 1}, 0),
        ("chat", {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 3}, None),
        ("chat", {"logprobs": False}, {"logprobs": False}, None),
        ("completions", {"logprobs": 0}, {"logprobs": 1}, 0),
        ("completions", {"logprobs": 3}, {"logprobs": 3}, 3),
        ("completions", {"logprobs": None}, {}, None),
    ],
)
def test_log_probabilities_the_backend_is_asked_for(
    api: API, fields: dict[str, Any], sent: dict[str, Any], shown: int | None
) -> None:
    base = CHAT if api == "chat" else {"prompt": "x"}
    wanted = ask({**base, **fields}, api)
    assert wanted.alternatives == shown
    assert sent.items() <= wanted.calls[0].fields.items()


def test_tools_are_refused_where_the_model_knows_none() -> None:
    tool = {"type": "function", "function": {"name": "f"}}

    def ask_for(**fields: Any) -> Generation:
        body = json.dumps({**CHAT, "tools": [tool], **fields}).encode()
        return read("chat", {"body": body}, model="m", max_tokens=9, tools=False)

    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}):
        with pytest.raises(BadRequest) as refused:
            ask_for(**fields)
        assert refused.value.param == "tools"
    assert ask_for(tool_choice="none").calls
    assert ask_for(tools=[]).calls
    assert ask({**CHAT, "tools": [tool]}).calls
