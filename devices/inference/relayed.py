"""Attestations of other nodes, handed on: this node signs nothing of what it did not run.

The other node's attestation comes back untouched as `{"upstream": ...}` in the place of one of
this node's own; what it attests, the bytes before it, stays as it is.
Source: `hyperbeam.verify.answer`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from hyperbeam import Unavailable
from hyperbeam.verify import answer as answers
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.events import Event, read_events
from hyperbeam.verify.reading import read_json

from .child import Headers, cut
from .errors import UNAVAILABLE, permanent
from .events import MAX_EVENT
from .request import Asked
from .rewriting import Rewriting

_WORDS: Mapping[str, str] = {"full": "true"}


def headers(asked: Asked) -> Headers:
    """What asks the other node for evidence, as far as the body does not."""
    found: Headers = []
    if "tee" not in asked.fields:
        found.append((b"x-tee", _WORDS.get(asked.tee, asked.tee).encode()))
    if asked.nonce is not None and "nonce" not in asked.fields:
        found.append((b"x-nonce", asked.nonce.encode()))
    return found


def relayed(body: bytes) -> bytes:
    """The reply for another node's plain one. Raises Unavailable where it has no attestation."""
    try:
        answer, model, attestation = answers.split_plain(body)
        return answers.splice(answer, model, {"upstream": attestation})
    except Malformed:
        raise _missing() from None


class RelayedStream(Rewriting):
    """Another node's attested stream. One that is complete without an attestation is cut."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        super().__init__(source)
        self._first: dict[str, Any] | None = None
        self._attested = False
        self._failed = False

    async def _run(self) -> AsyncGenerator[bytes, None]:
        rest = b""
        async for chunk in self._source:
            data = rest + chunk
            events = read_events(data)[0]
            end = 0
            passed = b""
            for event in events:
                passed += self._passed(event, data[end : event.end])
                end = event.end
            rest = data[end:]
            if len(rest) > MAX_EVENT:
                raise cut()
            if passed:
                yield passed
        if rest:
            raise cut()

    def _passed(self, event: Event, data: bytes) -> bytes:
        """The event as the client gets it; `data`: its bytes and those between it and the last."""
        if event.data == answers.DONE:
            if not self._attested and not self._failed:
                raise _missing()
            return data
        if self._first is None or b'"attestation"' in event.data or b'"error"' in event.data:
            value = _read(event.data)
            if self._first is None:
                self._first = value
            if value.get("error") is not None or event.kind == "error":
                self._failed = True
            elif "attestation" in value:
                return data[: len(data) - (event.end - event.start)] + self._handed_on(value)
        return data

    def _handed_on(self, value: dict[str, Any]) -> bytes:
        model, attestation = value.get("resolved_model"), value["attestation"]
        if not isinstance(model, str) or not isinstance(attestation, dict):
            raise _missing()
        self._attested = True
        return answers.stream_event(self._first or {}, model, {"upstream": attestation})


def _read(data: bytes) -> dict[str, Any]:
    try:
        value = read_json(data, "the event", "event", answers.MAX_ITEMS)
    except Malformed:
        raise _missing() from None
    return value if isinstance(value, dict) else {}


def _missing() -> Unavailable:
    return permanent(
        Unavailable(
            "The answer came from another node, without evidence of its own: only a node that "
            "runs the model itself can attest it.",
            error=UNAVAILABLE,
            param="tee",
        )
    )
