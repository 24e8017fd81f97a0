"""What an answer says, without what is new each time: its choices, compared by their digest.

The digest is the SHA-256 of the canonical JSON of the choices in order, each
`[index, text, tool_calls, finish_reason]`: `text` is a completion's text or a message's content
("" for none), `tool_calls` a list or null, without the calls' ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from hyperbeam.declared import canonical
from hyperbeam.verify import jcs

from .assemble import merge_call
from .events import EventParser, EventTooLarge

_DONE = b"[DONE]"


class Output(NamedTuple):
    """One choice."""

    choice: int
    text: str
    tool_calls: list[Any] | None
    finish_reason: str


def digest(outputs: list[Output] | None) -> str | None:
    """The digest (hex) of an answer's choices; None stands for an answer that is not complete."""
    if outputs is None:
        return None
    try:
        return jcs.digest([list(output) for output in outputs])
    except ValueError:
        return None


def of_answer(answer: Mapping[str, Any]) -> list[Output] | None:
    """The choices of a plain answer; None where one is not complete or is none."""
    found = []
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        output = _output(choice) if isinstance(choice, Mapping) else None
        if output is None:
            return None
        found.append(output)
    return found or None


def _output(choice: Mapping[str, Any]) -> Output | None:
    message = choice.get("message")
    said = message if isinstance(message, Mapping) else choice
    text = said.get("content" if said is message else "text") or ""
    index, reason = choice.get("index"), choice.get("finish_reason")
    if not isinstance(text, str) or not isinstance(index, int) or not isinstance(reason, str):
        return None
    return Output(index, text, _calls(said.get("tool_calls")), reason)


def _calls(calls: Any) -> list[Any] | None:
    if not isinstance(calls, list) or not calls:
        return None
    kept = [
        {name: value for name, value in call.items() if name != "id"}
        for call in calls
        if isinstance(call, Mapping)
    ]
    return list(canonical(kept))


class Usage(NamedTuple):
    """Tokens that a reply counts."""

    prompt: int = 0
    completion: int = 0


def estimate(request: int, pieces: int = 0) -> Usage:
    """The usage of an answer that nobody counts, for a request of so many bytes: a token for each
    four of them, and for each piece of text that came."""
    return Usage(request // 4, pieces)


def usage_of(answer: Mapping[str, Any]) -> Usage:
    """The usage of a plain reply, in the words of any of the APIs."""
    return _usage(answer.get("usage"))


def _usage(counts: Any) -> Usage:
    if not isinstance(counts, Mapping):
        return Usage()
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    completion = counts.get("completion_tokens", counts.get("output_tokens"))
    return Usage(_count(prompt), _count(completion))


def _count(tokens: Any) -> int:
    whole = isinstance(tokens, int) and not isinstance(tokens, bool)
    return min(max(tokens, 0), 1 << 40) if whole else 0


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    message: _Whole | str | None = None
    response: _Whole | None = None


class StreamOutputs:
    """The choices of a stream, gathered from its bytes as they pass.

    `id`, `model`, `usage`: the answer's. `done`: `[DONE]` has come. `error`: the code of an
    error event, "" where there was none.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.model: str | None = None
        self.usage = Usage()
        self.done = False
        self.error = ""
        self._parser = EventParser()
        self._decode = msgspec.json.Decoder(_Chunk).decode
        self._texts: dict[int, list[str]] = {}
        self._reasons: dict[int, str] = {}
        self._tools: dict[int, dict[int, dict[str, Any]]] = {}
        self._unknown = False
        self._lost = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        # Nearly all pieces are whole events of one line; the parser costs more than all the rest.
        if data.startswith(b"data: ") and data.endswith(b"\n\n") and self._parser.between_events:
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events) and b"\r" not in data:
                for event in events:
                    self._event(event)
                return
        if self._lost:
            return
        try:
            found = self._parser.feed(data)
        except EventTooLarge:
            self._lost = self._unknown = True
            self._parser = EventParser()
            return
        for event in found:
            self._event(event)

    def outputs(self) -> list[Output] | None:
        """The choices; None unless the stream was complete."""
        if not self.done or self.error or self._unknown or not self._texts:
            return None
        found = []
        for index in sorted(self._texts):
            reason = self._reasons.get(index)
            if reason is None:
                return None
            calls = self._tools.get(index, {})
            merged = _calls([calls[n] for n in sorted(calls)])
            found.append(Output(index, "".join(self._texts[index]), merged, reason))
        return found

    def counted(self, request: int) -> Usage:
        """The usage, estimated where text came and no count of it: see `estimate`."""
        pieces = sum(map(len, self._texts.values()))
        return self.usage if any(self.usage) or not pieces else estimate(request, pieces)

    def _event(self, data: bytes) -> None:
        if data == _DONE:
            self.done = True
            return
        try:
            chunk = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._unknown = True
            return
        if chunk.error is not None:
            code = chunk.error.get("code") if isinstance(chunk.error, dict) else None
            self.error = str(code or "error")
        if self.id is None:
            self._about(chunk)
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.response is not None:
            self._about(chunk.response)
        for choice in chunk.choices or ():
            self._choice(choice)

    def _about(self, chunk: _Chunk | _Whole) -> None:
        """What a stream's first chunk says, an Anthropic message, or one of the Responses API."""
        if isinstance(chunk, _Chunk) and isinstance(chunk.message, _Whole):
            chunk = chunk.message
        self.id = self.id or chunk.id
        self.model = self.model or chunk.model
        if chunk.usage is not None:
            self._count(chunk.usage)

    def _count(self, counts: dict[str, Any]) -> None:
        seen, before = _usage(counts), self.usage
        self.usage = Usage(seen.prompt or before.prompt, seen.completion or before.completion)

    def _choice(self, choice: _Choice) -> None:
        texts = self._texts.setdefault(choice.index, [])
        delta = choice.delta
        if delta is None:
            if choice.text:
                texts.append(choice.text)
        else:
            if delta.content:
                texts.append(delta.content)
            for call in delta.tool_calls or ():
                calls = self._tools.setdefault(choice.index, {})
                merge_call(calls.setdefault(int(call.get("index") or 0), {}), call)
        if choice.finish_reason:
            self._reasons[choice.index] = choice.finish_reason
