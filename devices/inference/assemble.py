"""A plain answer, put together from the events of a stream.

The embedded server notices a client that leaves only while it streams, so it is
always asked for a stream (facts: llama.cpp tools/server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyperbeam import BadGateway

from .logprobs import Legacy, trimmed
from .validate import API

_OBJECTS = {"chat": "chat.completion", "completions": "text_completion"}
_TEXTS = ("content", "reasoning_content", "refusal")
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
_PROGRESS = frozenset({"prompt_progress"})


class _Choice:
    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.extra: dict[str, Any] = {}
        self.tool_calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, list[Any]] | None = None
        self.finish_reason: str | None = None

    def text(self, name: str) -> str:
        return "".join(self.texts.get(name, ()))


class Assembler:
    """Collects one stream's events; `result` is the object a plain request would have given.

    `alternatives` as in `Generation`.
    """

    def __init__(self, api: API, alternatives: int | None = None) -> None:
        self._api = api
        self._alternatives = alternatives
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take the next event (its parsed data)."""
        for name, value in event.items():
            if (
                name != "choices"
                and name not in _PROGRESS
                and (name not in _HEAD or name not in self._top)
            ):
                self._top[name] = value
        for choice in event.get("choices") or []:
            self._feed_choice(choice)

    def _feed_choice(self, choice: Mapping[str, Any]) -> None:
        kept = self._choices.setdefault(choice.get("index", 0), _Choice())
        if self._api == "completions":
            _append(kept, "text", choice.get("text"))
        else:
            self._feed_delta(kept, choice.get("delta") or {})
        logprobs = choice.get("logprobs")
        if logprobs:
            kept.logprobs = kept.logprobs or {}
            for name, entries in logprobs.items():
                if entries is not None:
                    kept.logprobs.setdefault(name, []).extend(entries)
        kept.finish_reason = choice.get("finish_reason") or kept.finish_reason

    def _feed_delta(self, kept: _Choice, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if name == "role":
                kept.role = value or kept.role
            elif name in _TEXTS:
                _append(kept, name, value)
            elif name == "tool_calls":
                for call in value or []:
                    merge_call(kept.tool_calls.setdefault(call.get("index", 0), {}), call)
            elif value is not None:
                kept.extra[name] = value

    def result(self) -> dict[str, Any]:
        """The whole answer. Raises BadGateway where the stream ended before a choice did."""
        if not self._choices or any(c.finish_reason is None for c in self._choices.values()):
            raise BadGateway(
                "The backend's answer ended before it was complete.", error="backend_died"
            )
        top = {**self._top, "object": _OBJECTS[self._api]}
        head = {name: top.pop(name) for name in _HEAD if name in top}
        choices = [self._choice(index, self._choices[index]) for index in sorted(self._choices)]
        return {**head, "choices": choices, **top}

    def _choice(self, index: int, kept: _Choice) -> dict[str, Any]:
        logprobs: dict[str, Any] | None = kept.logprobs
        if self._api == "completions":
            if logprobs and self._alternatives is not None:
                logprobs = Legacy(self._alternatives).convert(logprobs.get("content", []))
            return {
                "text": kept.text("text"),
                "index": index,
                "logprobs": logprobs,
                "finish_reason": kept.finish_reason,
            }
        choice: dict[str, Any] = {"index": index, "message": _message(kept)}
        if logprobs is not None:
            if self._alternatives is not None:
                logprobs = trimmed(logprobs, self._alternatives)
            choice["logprobs"] = logprobs
        choice["finish_reason"] = kept.finish_reason
        return choice


def _append(kept: _Choice, name: str, value: Any) -> None:
    if isinstance(value, str):
        kept.texts.setdefault(name, []).append(value)


def merge_call(kept: dict[str, Any], call: Mapping[str, Any]) -> None:
    """Add a piece of a tool call to what came of it before.

    Ids, types and names come once; arguments in pieces.
    """
    for name, value in call.items():
        if name == "index" or value is None:
            continue
        if isinstance(value, Mapping):
            merge_call(kept.setdefault(name, {}), value)
        elif name == "arguments":
            kept[name] = kept.get(name, "") + value
        else:
            kept[name] = value


def _message(kept: _Choice) -> dict[str, Any]:
    content: str | None = kept.text("content")
    if not content and kept.tool_calls:
        content = None
    message: dict[str, Any] = {"role": kept.role, "content": content}
    for name in _TEXTS[1:]:
        if kept.texts.get(name):
            message[name] = kept.text(name)
    if kept.tool_calls:
        message["tool_calls"] = [kept.tool_calls[index] for index in sorted(kept.tool_calls)]
    return {**message, **kept.extra}


def merge(answers: Sequence[Mapping[str, Any]], counts_prompt: Sequence[bool]) -> dict[str, Any]:
    """One answer of several, each of which gives the choice of its position.

    A prompt's tokens count once, however many choices it has; `timings` are each
    answer's own and left out.
    """
    choices = [{**answer["choices"][0], "index": n} for n, answer in enumerate(answers)]
    merged = {**answers[0], "choices": choices}
    merged.pop("timings", None)
    usages = [answer.get("usage") for answer in answers]
    merged["usage"] = total_usage(usages, counts_prompt)
    return merged


def total_usage(
    usages: Sequence[Mapping[str, Any] | None], counts_prompt: Sequence[bool]
) -> dict[str, Any]:
    """The sum of several usages, as `{completion_tokens, prompt_tokens, total_tokens, ...}`."""
    completion = prompt = cached = 0
    for usage, counts in zip(usages, counts_prompt, strict=True):
        if not usage:
            continue
        completion += usage.get("completion_tokens") or 0
        if counts:
            prompt += usage.get("prompt_tokens") or 0
            cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
