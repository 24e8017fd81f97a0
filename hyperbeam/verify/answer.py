"""Where an attestation stands in a reply: how a node puts it there, how a verifier takes it out.

Plain: the backend's body without its `}`, then `,"resolved_model":...,"attestation":...}`.
Stream: one event with `choices: []` before `[DONE]`; what is attested is every byte before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..codecs import json_reader
from .checks import Malformed
from .events import Event, read_events
from .reading import read_json, read_object

MALFORMED = "answer-malformed"
MAX_BYTES = 128 << 20
MAX_LINES = 1_000_000
MAX_ITEMS = 2_000_000
DONE = b"[DONE]"
_CHUNK_KEYS = ("id", "object", "created", "model")
_SPACE = b" \t\r\n"


class Split(NamedTuple):
    """A stream taken apart.

    `answer`: the bytes that are attested. `complete`: nothing is wrong with its end.
    `problem`: a kebab-case word for what is wrong, or "".
    """

    answer: bytes
    attestation: dict[str, Any] | None
    resolved_model: str
    complete: bool
    problem: str


def splice(body: bytes, resolved_model: str, attestation: Mapping[str, Any]) -> bytes:
    """The reply: `body` (a backend's JSON object) with both members added at its end.

    Raises Malformed for a body that is no such object, is empty, does not end in `}` or has
    one of the two members already.
    """
    value = read_object(body, "the backend's answer", MALFORMED, MAX_ITEMS)
    if not body.endswith(b"}") or not value:
        raise Malformed("the backend's answer does not end in `}` or is empty", MALFORMED)
    if "resolved_model" in value or "attestation" in value:
        raise Malformed("the backend's answer has an attestation of its own", MALFORMED)
    return body[:-1] + _tail(resolved_model, attestation)


def split_plain(body: bytes) -> tuple[bytes, str, dict[str, Any]]:
    """The backend's body exactly as it was, `resolved_model` and `attestation`.

    White space after the last `}` is taken for the saving program's. Raises Malformed for a
    body that `splice` would not have written.
    """
    body = body.rstrip(_SPACE)
    value = _read_answer(body)
    names = list(value)
    if names[-2:] != ["resolved_model", "attestation"]:
        raise Malformed(
            "the answer does not end with `resolved_model` and `attestation`", MALFORMED
        )
    model, attestation = value["resolved_model"], value["attestation"]
    if not isinstance(model, str) or not isinstance(attestation, dict):
        raise Malformed(
            "the answer's `resolved_model` or `attestation` has no such type", MALFORMED
        )
    answer = body[: _last_commas(body)[0]] + b"}"
    if answer[:-1] + _tail(model, attestation) != body:
        raise Malformed(
            "the answer's text is not as the node writes it; save the reply's bytes unchanged",
            "answer-reformatted",
        )
    return answer, model, attestation


def stream_event(
    first: Mapping[str, Any], resolved_model: str, attestation: Mapping[str, Any]
) -> bytes:
    """The event that attests a stream; `first` is the stream's first chunk as an object."""
    chunk = {name: first[name] for name in _CHUNK_KEYS if name in first}
    chunk |= {"choices": [], "resolved_model": resolved_model, "attestation": attestation}
    return b"data: " + _dump(chunk) + b"\n\n"


# No client may read anything there: some break lines at what is no line end in a stream.
_AFTER = re.compile(rb"(?:(?::[\t -~]*|data: ?\[DONE\])?(?:\r\n|\n|\r))*+")


def split_stream(body: bytes) -> Split:
    """Take a saved event stream apart. Raises Malformed for one that is too large."""
    if len(body) > MAX_BYTES:
        raise Malformed(f"the stream is over {MAX_BYTES >> 20} MiB", MALFORMED)
    if body.count(b"\n") + body.count(b"\r") > MAX_LINES:
        raise Malformed(f"the stream has over {MAX_LINES:,} lines", MALFORMED)
    found: _Attested | None = None
    first: dict[str, Any] | None = None
    attested = done = False
    problem = ""
    events, rest = read_events(body)
    for event in events:
        if done:
            problem = problem or "stream-after-done"
            continue
        if event.data == DONE:
            done = True
            continue
        chunk = _chunk(event)
        if chunk is None:
            problem = problem or "stream-malformed"
        elif "attestation" in chunk:
            if attested:
                problem = "stream-two-attestations"
                continue
            attested = True
            found = _attested(event, chunk, first)
            if found is None:
                problem = problem or "stream-attestation-malformed"
            elif not found.exact(body, first or {}):
                problem = problem or "stream-attestation-changed"
        elif attested:
            problem = problem or "stream-chunk-after-attestation"
        if chunk is not None and (event.kind == "error" or chunk.get("error") is not None):
            problem = "stream-error-event"
        if first is None:
            first = chunk
    if rest:
        problem = problem or "stream-unfinished"
    if not done:
        problem = problem or "stream-no-done"
    if found is not None and not _AFTER.fullmatch(body, found.event.end):
        problem = problem or "stream-after-attestation"
    if found is None:
        return Split(body, None, "", False, problem or "no-attestation")
    answer = body[: found.event.start]
    return Split(answer, found.attestation, found.model, not problem, problem)


class _Attested(NamedTuple):
    event: Event
    model: str
    attestation: dict[str, Any]

    def exact(self, body: bytes, first: dict[str, Any]) -> bool:
        """Whether the event's text is what a node writes for it."""
        written = stream_event(first, self.model, self.attestation)
        return body[self.event.start : self.event.end] == written


def _attested(
    event: Event, chunk: dict[str, Any], first: dict[str, Any] | None
) -> _Attested | None:
    model, attestation = chunk.get("resolved_model"), chunk["attestation"]
    if first is None or not isinstance(model, str) or not isinstance(attestation, dict):
        return None
    return _Attested(event, model, attestation)


def _chunk(event: Event) -> dict[str, Any] | None:
    try:
        value = read_json(event.data, "an event", MALFORMED, MAX_ITEMS)
    except Malformed:
        return None
    return value if isinstance(value, dict) else None


def _read_answer(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BYTES:
        raise Malformed(f"the answer is over {MAX_BYTES >> 20} MiB", MALFORMED)
    return read_object(body, "the answer", MALFORMED, MAX_ITEMS)


def _last_commas(body: bytes) -> tuple[int, int]:
    """Where the last two commas of the outermost object stand."""
    depth = 0
    last = (0, 0)
    for match in json_reader.STRING_OR_STRUCTURE.finditer(body):
        match body[match.start() : match.start() + 1]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b"," if depth == 1:
                last = (last[1], match.start())
    return last


def _tail(resolved_model: str, attestation: Mapping[str, Any]) -> bytes:
    members = _dump({"resolved_model": resolved_model, "attestation": attestation})
    return b"," + members[1:]


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
