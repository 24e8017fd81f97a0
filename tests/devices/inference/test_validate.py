from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.inference.validate import MAX_PROMPTS, MAX_SEED, validate
from hyperbeam import BadRequest

HELLO = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [HELLO], **fields}


@pytest.mark.parametrize(
    "fields",
    [
        chat(),
        chat(model="any", temperature=0, top_p=1, seed=0, n=2, stop="a", stream=False),
        chat(temperature=None, max_tokens=None, seed=None, stop=None, tools=None, n=None),
        chat(seed=MAX_SEED, stop=["a", "b", "c", "d"], max_completion_tokens=1),
        chat(stop=[]),
        chat(stream=True, stream_options={"include_usage": True}),
        chat(logprobs=True, top_logprobs=20),
        chat(logprobs=True, top_logprobs=0),
        chat(logit_bias={"57": -100, "0": 1.5}),
        chat(logit_bias=[[57, -1]]),
        chat(tools=[TOOL], tool_choice="required"),
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}),
        chat(tool_choice="auto"),
        chat(response_format={"type": "json_object"}),
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
        chat(never_heard_of={"x": [1]}, top_k="x", modalities=["text"]),
        chat(messages=[{"role": "developer", "content": "x"}, HELLO]),
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}]),
        chat(
            messages=[
                HELLO,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "x"},
            ]
        ),
    ],
)
def test_a_sound_chat_passes(fields: dict[str, Any]) -> None:
    validate("chat", fields)


MISSING = "missing_required_parameter"
TYPE = "invalid_type"
VALUE = "invalid_value"
BELOW, ABOVE = "integer_below_min_value", "integer_above_max_value"


def refusal(api: Any, fields: dict[str, Any]) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as caught:
        validate(api, fields)
    assert str(caught.value)
    return caught.value.param, caught.value.error


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("x", "", TYPE),
        ({"content": "x"}, ".role", MISSING),
        ({"role": 5, "content": "x"}, ".role", TYPE),
        ({"role": "robot", "content": "x"}, ".role", VALUE),
        ({"role": "user"}, ".content", MISSING),
        ({"role": "user", "content": None}, ".content", TYPE),
        ({"role": "user", "content": 5}, ".content", TYPE),
        ({"role": "user", "content": []}, ".content", "empty_array"),
        ({"role": "assistant"}, ".content", MISSING),
        ({"role": "user", "content": "x", "name": 5}, ".name", TYPE),
        ({"role": "tool", "content": "x"}, ".tool_call_id", MISSING),
        ({"role": "assistant", "tool_calls": 5}, ".tool_calls", TYPE),
        ({"role": "assistant", "tool_calls": [5]}, ".tool_calls[0]", TYPE),
        (
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
            ".tool_calls[0].function.arguments",
            MISSING,
        ),
    ],
)
def test_an_unsound_message_is_refused(message: Any, param: str, code: str) -> None:
    assert refusal("chat", {"messages": [HELLO, message]}) == (f"messages[1]{param}", code)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ("x", "", TYPE),
        ({}, ".type", MISSING),
        ({"type": 5}, ".type", TYPE),
        ({"type": "smell"}, ".type", VALUE),
        ({"type": "image_url", "image_url": {"url": "data:,"}}, ".type", VALUE),
        ({"type": "text"}, ".text", MISSING),
        ({"type": "text", "text": 5}, ".text", TYPE),
    ],
)
def test_an_unsound_part_is_refused(part: Any, param: str, code: str) -> None:
    fields = {"messages": [{"role": "user", "content": [part]}]}
    assert refusal("chat", fields) == (f"messages[0].content[0]{param}", code)


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        (5, "", TYPE),
        ({}, ".type", MISSING),
        ({"type": "web_search"}, ".type", VALUE),
        ({"type": "function"}, ".function", MISSING),
        ({"type": "function", "function": 5}, ".function", TYPE),
        ({"type": "function", "function": {}}, ".function.name", MISSING),
        ({"type": "function", "function": {"name": 5}}, ".function.name", TYPE),
        (
            {"type": "function", "function": {"name": "f", "parameters": 5}},
            ".function.parameters",
            TYPE,
        ),
    ],
)
def test_an_unsound_tool_is_refused(tool: Any, param: str, code: str) -> None:
    assert refusal("chat", chat(tools=[tool])) == (f"tools[0]{param}", code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (chat(messages=None), "messages", MISSING),
        (chat(messages="x"), "messages", TYPE),
        (chat(messages=[]), "messages", "empty_array"),
        (chat(max_tokens=0), "max_tokens", BELOW),
        (chat(max_completion_tokens=-1), "max_completion_tokens", BELOW),
        (chat(max_tokens=2**40), "max_tokens", ABOVE),
        (chat(max_tokens=True), "max_tokens", TYPE),
        (chat(max_tokens=1.0), "max_tokens", TYPE),
        (chat(max_tokens="5"), "max_tokens", TYPE),
        (
            chat(max_tokens=1, max_completion_tokens=1),
            "max_tokens",
            "invalid_parameter_combination",
        ),
        (chat(n=0), "n", BELOW),
        (chat(n=1000), "n", ABOVE),
        (chat(temperature=2.1), "temperature", "decimal_above_max_value"),
        (chat(temperature=-0.1), "temperature", "decimal_below_min_value"),
        (chat(temperature="hot"), "temperature", TYPE),
        (chat(temperature=True), "temperature", TYPE),
        (chat(top_p=1.5), "top_p", "decimal_above_max_value"),
        (chat(presence_penalty=3), "presence_penalty", "decimal_above_max_value"),
        (chat(seed=-1), "seed", BELOW),
        (chat(seed=MAX_SEED + 1), "seed", ABOVE),
        (chat(seed=2**53 + 1), "seed", ABOVE),
        (chat(seed=1.5), "seed", TYPE),
        (chat(seed=True), "seed", TYPE),
        (chat(model=5), "model", TYPE),
        (chat(stop=5), "stop", TYPE),
        (chat(stop=["a", 5]), "stop[1]", TYPE),
        (chat(stop=["a"] * 5), "stop", "array_above_max_length"),
        (chat(stop=""), "stop", "empty_string"),
        (chat(logprobs=1), "logprobs", TYPE),
        (chat(top_logprobs=2), "top_logprobs", VALUE),
        (chat(logprobs=False, top_logprobs=2), "top_logprobs", VALUE),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs", ABOVE),
        (chat(stream="yes"), "stream", TYPE),
        (chat(stream_options={"include_usage": True}), "stream_options", VALUE),
        (chat(stream=True, stream_options=5), "stream_options", TYPE),
        (
            chat(stream=True, stream_options={"include_usage": 1}),
            "stream_options.include_usage",
            TYPE,
        ),
        (chat(logit_bias=5), "logit_bias", TYPE),
        (chat(logit_bias={"I": 1}), "logit_bias", VALUE),
        (chat(logit_bias={"5": 101}), "logit_bias.5", "decimal_above_max_value"),
        (chat(logit_bias={"5": None}), "logit_bias.5", TYPE),
        (chat(tools=5), "tools", TYPE),
        (chat(tool_choice="required"), "tool_choice", VALUE),
        (chat(tools=[TOOL], tool_choice="perhaps"), "tool_choice", VALUE),
        (chat(tools=[TOOL], tool_choice=5), "tool_choice", TYPE),
        (
            chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
            "tool_choice.function.name",
            VALUE,
        ),
        (chat(functions=[]), "functions", "unsupported_parameter"),
        (chat(modalities=["audio"]), "modalities", "unsupported_parameter"),
        (chat(response_format=5), "response_format", TYPE),
        (chat(response_format={}), "response_format.type", MISSING),
        (chat(response_format={"type": "xml"}), "response_format.type", VALUE),
        (
            chat(response_format={"type": "json_schema"}),
            "response_format.json_schema",
            MISSING,
        ),
        (
            chat(response_format={"type": "json_schema", "json_schema": {"schema": 5}}),
            "response_format.json_schema.schema",
            TYPE,
        ),
    ],
)
def test_an_unsound_chat_is_refused_with_param_and_code(
    fields: dict[str, Any], param: str, code: str
) -> None:
    assert refusal("chat", fields) == (param, code)


@pytest.mark.parametrize(
    "prompt", ["x", ["x", "y"], [1, 2], [[1, 2], [3]], ["x", [1]], [1, "x"], ["x"] * MAX_PROMPTS]
)
def test_sound_prompts_pass(prompt: Any) -> None:
    validate(
        "completions",
        {"prompt": prompt, "logprobs": 5, "best_of": 1, "echo": False, "suffix": None},
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "empty_string"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": [""]}, "prompt[0]", "empty_string"),
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": {"prompt_string": "x"}}, "prompt", "invalid_type"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": [None]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": [2**40]}, "prompt[0]", "invalid_value"),
        ({"prompt": [[1], 5]}, "prompt[1]", "invalid_type"),
        ({"prompt": ["x"] * (MAX_PROMPTS + 1)}, "prompt", "array_above_max_length"),
        ({"prompt": "x", "logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "invalid_type"),
        ({"prompt": "x", "echo": True}, "echo", "unsupported_parameter"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "unsupported_parameter"),
        ({"prompt": "x", "best_of": 2}, "best_of", "unsupported_parameter"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ],
)
def test_an_unsound_completion_is_refused(fields: dict[str, Any], param: str, code: str) -> None:
    assert refusal("completions", fields) == (param, code)


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "name", "tool_calls"]),
            inner,
        )
    ),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    ["messages", "prompt", "n", "seed", "stop", "tools", "tool_choice", "logit_bias", "logprobs",
     "stream", "stream_options", "response_format", "max_tokens", "modalities", "best_of"]
)  # fmt: skip


@given(st.sampled_from(["chat", "completions"]), st.dictionaries(_NAMES, _VALUE))
def test_any_json_passes_or_is_refused_by_param(api: Any, fields: dict[str, Any]) -> None:
    try:
        validate(api, fields)
    except BadRequest as error:
        assert error.param


@given(_VALUE)
def test_any_messages_pass_or_are_refused(value: Any) -> None:
    try:
        validate("chat", {"messages": [value]})
    except BadRequest as error:
        assert error.param is not None
        assert error.param.startswith("messages[0]")
