"""What a backend would accept wrongly, refused in front of it.

The embedded server takes any role, an empty list of messages, `max_tokens: 0`, a
random seed and more. Fields that no rule here names go through untouched.
Source: OpenAI API reference (chat and completions); llama.cpp tools/server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from . import rules
from .messages import check_messages, check_response_format, check_tools

API = Literal["chat", "completions"]

MAX_SEED = 4_294_967_294
"""One more means "random" to llama.cpp, larger ones wrap."""
MAX_CHOICES = 16
MAX_PROMPTS = 64
MAX_STOPS = 4
MAX_INT = 2**31 - 1
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
"""Names under which a request may limit its answer; the last is llama.cpp's own."""


def validate(api: API, fields: Mapping[str, Any]) -> None:
    """Check a request's fields. Raises BadRequest with `param` in OpenAI's words."""
    if api == "chat":
        check_messages(fields.get("messages"))
        check_tools(fields)
        check_response_format(fields)
        _check_chat_only(fields)
    else:
        _check_prompt(fields.get("prompt"))
        _check_completion_only(fields)
    _check_limits(fields)
    _check_sampling(fields)
    _check_stop(fields.get("stop"))
    _check_stream(fields)


def _check_limits(fields: Mapping[str, Any]) -> None:
    for name in LIMITS:
        rules.integer(fields, name, 1, MAX_INT)
    named = [name for name in LIMITS if fields.get(name) is not None]
    if len(named) > 1:
        raise rules.refuse(
            named[0],
            f"Setting '{named[0]}' and '{named[1]}' at the same time is not supported.",
            "invalid_parameter_combination",
        )
    rules.integer(fields, "n", 1, MAX_CHOICES)
    if fields.get("n_cmpl") is not None:
        raise rules.unsupported("n_cmpl", "Use 'n'.")


def _check_sampling(fields: Mapping[str, Any]) -> None:
    rules.string(fields, "model")
    rules.string(fields, "user")
    rules.number(fields, "temperature", 0, 2)
    rules.number(fields, "top_p", 0, 1)
    rules.number(fields, "frequency_penalty", -2, 2)
    rules.number(fields, "presence_penalty", -2, 2)
    rules.integer(fields, "seed", 0, MAX_SEED)
    _check_logit_bias(fields.get("logit_bias"))


def _check_logit_bias(bias: Any) -> None:
    # A list of pairs is llama.cpp's own form.
    if bias is None or isinstance(bias, list):
        return
    if not isinstance(bias, dict):
        raise rules.wrong_type("logit_bias", "an object", bias)
    for token in bias:
        if not (token.isascii() and token.isdigit()):
            raise rules.refuse(
                "logit_bias",
                f"Invalid key in 'logit_bias': {token[:64]!r}. "
                "You should only be submitting non-negative integers.",
                "invalid_value",
            )
        if bias[token] is None:
            raise rules.wrong_type(f"logit_bias.{token[:20]}", "a decimal number", None)
        rules.number(bias, token, -100, 100, f"logit_bias.{token[:20]}")


def _check_stop(stop: Any) -> None:
    if stop is None:
        return
    stops = stop if isinstance(stop, list) else [stop]
    if len(stops) > MAX_STOPS:
        raise rules.array_too_long("stop", MAX_STOPS, len(stops))
    for n, text in enumerate(stops):
        param = f"stop[{n}]" if isinstance(stop, list) else "stop"
        if not isinstance(text, str):
            expected = (
                "a string" if isinstance(stop, list) else "one of a string or array of strings"
            )
            raise rules.wrong_type(param, expected, text)
        if not text:
            raise rules.refuse(
                param,
                f"Invalid '{param}': empty string. Expected a string with minimum length 1, "
                "but got an empty string instead.",
                "empty_string",
            )


def _check_stream(fields: Mapping[str, Any]) -> None:
    rules.boolean(fields, "stream")
    rules.mapping(fields, "stream_options")
    options = fields.get("stream_options")
    if options is None:
        return
    if not fields.get("stream"):
        raise rules.refuse(
            "stream_options",
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            "invalid_value",
        )
    rules.boolean(options, "include_usage", "stream_options.include_usage")


def _check_chat_only(fields: Mapping[str, Any]) -> None:
    rules.boolean(fields, "logprobs")
    rules.integer(fields, "top_logprobs", 0, 20)
    if fields.get("top_logprobs") is not None and not fields.get("logprobs"):
        raise rules.refuse(
            "top_logprobs",
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
            "invalid_value",
        )
    rules.boolean(fields, "parallel_tool_calls")
    for name in ("functions", "function_call"):
        if fields.get(name) is not None:
            raise rules.unsupported(name, "Use 'tools' and 'tool_choice' instead.")
    modalities = fields.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise rules.unsupported("modalities", "This model writes text only: leave it out.")


def _check_completion_only(fields: Mapping[str, Any]) -> None:
    rules.integer(fields, "logprobs", 0, 5)
    rules.boolean(fields, "echo")
    rules.integer(fields, "best_of", 1, MAX_CHOICES)
    if fields.get("echo"):
        raise rules.unsupported("echo", "The prompt is not repeated: put it in front yourself.")
    if fields.get("suffix") is not None:
        raise rules.unsupported("suffix", "This model writes on from a prompt only.")
    best_of = fields.get("best_of")
    if best_of is not None and best_of != (fields.get("n") or 1):
        raise rules.unsupported("best_of", "Choices are not ranked: leave it out, or equal to 'n'.")


def _check_prompt(prompt: Any) -> None:
    if prompt is None:
        raise rules.missing("prompt")
    if isinstance(prompt, str):
        _check_single_prompt(prompt, "prompt")
        return
    expected = "a string, an array of strings, or an array of tokens"
    if not isinstance(prompt, list):
        raise rules.wrong_type("prompt", expected, prompt)
    if not prompt:
        raise rules.empty_array("prompt")
    if is_prompt_list(prompt):
        if len(prompt) > MAX_PROMPTS:
            raise rules.array_too_long("prompt", MAX_PROMPTS, len(prompt))
        for n, each in enumerate(prompt):
            _check_single_prompt(each, f"prompt[{n}]")
    else:
        _check_single_prompt(prompt, "prompt")


def is_prompt_list(prompt: Any) -> bool:
    """Whether `prompt` is several prompts: a list of texts, or a list that has a list in it.

    A list of tokens, or of tokens and texts mixed, is one prompt.
    """
    return isinstance(prompt, list) and (
        all(isinstance(each, str) for each in prompt)
        or any(isinstance(each, list) for each in prompt)
    )


def _check_single_prompt(prompt: Any, param: str) -> None:
    if isinstance(prompt, str):
        if not prompt:
            raise rules.refuse(
                param,
                f"Invalid '{param}': empty string. There is nothing to go on from.",
                "empty_string",
            )
        return
    if not isinstance(prompt, list):
        raise rules.wrong_type(param, "a string or an array of tokens", prompt)
    if not prompt:
        raise rules.empty_array(param)
    for n, token in enumerate(prompt):
        if isinstance(token, str):
            continue
        if isinstance(token, bool) or not isinstance(token, int):
            raise rules.wrong_type(f"{param}[{n}]", "a token or a string", token)
        if not 0 <= token <= MAX_INT:
            raise rules.refuse(
                f"{param}[{n}]",
                f"Invalid '{param}[{n}]': {str(token)[:40]} is no token.",
                "invalid_value",
            )
