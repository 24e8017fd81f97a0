"""Requests that go on as the client sent them, replies that come back as the backend sent them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from hyperbeam import BadGateway, Message
from hyperbeam.routing.leased import LeasedBody

from . import assemble, generate
from .child import Headers, Sender, is_events, opened
from .errors import JSON
from .reply import dump
from .request import Asked, Generation

if TYPE_CHECKING:
    from hyperbeam.http.upstream import UpstreamResponse

READ_LIMIT = 64 * 1024 * 1024
EVENTS = "text/event-stream"
_ERROR_LIMIT = 256 * 1024
_SMALL = 1024 * 1024
_OBJECTS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"}
)
"""Paths whose plain answers are JSON objects."""
_PASSED = (
    "accept", "anthropic-version", "anthropic-beta", "openai-beta", "openai-organization",
    "openai-project", "user-agent",
)  # fmt: skip
"""Headers of the client that a backend is to see."""


@dataclass(slots=True)
class Given:
    """What a node gave: a whole `body` (`answer`: what it says, if it is a JSON object), or a
    stream, `source`, whose first bytes have come."""

    status: int
    kind: str
    body: bytes = b""
    answer: Mapping[str, Any] | None = None
    source: AsyncIterator[bytes] | None = None

    async def aclose(self) -> None:
        """End a stream that nobody will read."""
        close = getattr(self.source, "aclose", None)
        if close is not None:
            await close()


def headers_of(request: Message, asked: Asked) -> Headers:
    """What of the client's head goes on with its body."""
    named = request.get("priv", {}).get("request-headers", ())
    headers = [
        (name.encode(), str(request[name]).encode("latin-1", "replace"))
        for name in _PASSED
        if name in named and name in request
    ]
    headers.append((b"accept-encoding", b"identity"))
    if asked.kind:
        headers.append((b"content-type", asked.kind.encode("latin-1", "replace")))
    return headers


async def passed(
    sender: Sender, path: str, headers: Headers, body: bytes, method: str = "POST", query: str = ""
) -> Given:
    """Ask once. Raises what an error reply means, also one that is a stream's first event."""
    response = await sender.send(f"{path}?{query}" if query else path, headers, body, method)
    try:
        return await _given(sender, response, path)
    except BaseException:
        await response.aclose()
        raise


async def _given(sender: Sender, response: UpstreamResponse, path: str) -> Given:
    status = response.status
    if not 200 <= status < 300:
        raise sender.refusal(response, await response.read(_ERROR_LIMIT), path)
    if (response.header(b"content-encoding") or b"identity").lower() != b"identity":
        raise BadGateway(
            "The backend compressed its answer, which it was not asked to.", error="backend_invalid"
        )
    kind = (response.header(b"content-type") or b"application/octet-stream").decode("latin-1")
    if is_events(response):
        stream = await opened(sender, response, path)
        stream.holds = True
        return Given(status, kind, source=stream)
    sender.began()
    length = response.header(b"content-length") or b""
    small = length.isdigit() and int(length) <= _SMALL
    if small or path in _OBJECTS or kind.startswith((JSON, "text/")):
        body = await response.read(READ_LIMIT)
        if path in _OBJECTS and read_answer(body) is None:
            raise BadGateway(
                f"The backend's answer, with status {status}, is no JSON object.",
                error="backend_invalid",
            )
        return Given(status, kind, body, read_answer(body) if kind.startswith(JSON) else None)
    return Given(status, kind, source=LeasedBody(response, sender.lease))


async def several(sender: Sender, path: str, headers: Headers, wanted: Generation) -> Given:
    """Ask once for each choice, all at once where the answer is plain."""
    if wanted.stream:
        return Given(200, EVENTS, source=await generate.streamed(sender, wanted))
    tasks = [
        asyncio.create_task(passed(sender, path, headers, call.body())) for call in wanted.calls
    ]
    try:
        found = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    answers = [one.answer or {} for one in found]
    choices = [
        {**choice, "index": call.index + number * call.stride}
        for call, answer in zip(wanted.calls, answers, strict=True)
        for number, choice in enumerate(_choices(answer))
    ]
    usage = assemble.total_usage(
        [answer.get("usage") for answer in answers], [call.first for call in wanted.calls]
    )
    choices.sort(key=lambda choice: int(choice["index"]))
    merged = {**answers[0], "choices": choices, "usage": usage}
    return Given(200, JSON, dump(merged), merged)


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        raise BadGateway("The backend's answer has no choices.", error="backend_error")
    return choices


def read_answer(body: bytes) -> Mapping[str, Any] | None:
    """What a reply says; None where it is no JSON object."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None
