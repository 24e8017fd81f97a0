"""One request to the backend: sent, and looked at before the client is promised anything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from hyperbeam import BadGateway, Unavailable

from .backends import Backend
from .errors import from_backend
from .events import EventParser
from .request import Call
from .validate import API

if TYPE_CHECKING:
    from hyperbeam.http.upstream import Upstream, UpstreamResponse

PATHS: Mapping[API, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PROMPT_FIELDS: Mapping[API, str] = {"chat": "messages", "completions": "prompt"}

_DONE = b"[DONE]"
_ERROR_LIMIT = 256 * 1024
_TAIL = 4096
_HEADERS = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]


class ChildStream:
    """An answer whose first event has come and is no error.

    Read it once, as `raw` chunks (iterate the object) or as parsed `events`; `aclose`
    ends the backend's work at once and may be called at any time.
    """

    def __init__(self, response: UpstreamResponse, param: str) -> None:
        self._response = response
        self._param = param
        self._parser = EventParser()
        self._head: list[bytes] = []
        self._first: list[bytes] = []
        self._tail = b""

    async def begin(self) -> None:
        """Wait for the first event. Raises what the backend's error reply means."""
        response = self._response
        content_type = dict(response.headers).get(b"content-type", b"")
        if response.status != 200 or not content_type.startswith(b"text/event-stream"):
            raise from_backend(response.status, await response.read(_ERROR_LIMIT), self._param)
        async for chunk in self._received():
            self._head.append(chunk)
            self._first.extend(self._parser.feed(chunk))
            if self._first:
                self._check(_parsed(self._first[0]))
                return
        raise cut()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk as the backend sent it. Raises BadGateway where the stream is cut."""
        if self._head:
            chunk = self._head.pop(0)
        else:
            try:
                chunk = await anext(self._response)
            except StopAsyncIteration:
                self._check_end()
                raise
            except BadGateway:
                raise cut() from None
        self._tail = chunk if len(chunk) >= _TAIL else (self._tail + chunk)[-_TAIL:]
        return chunk

    async def _received(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response:
                yield chunk
        except BadGateway:
            raise cut() from None

    def _check_end(self) -> None:
        # A backend's own error event is an end too: the client has been told.
        if not self._tail.rstrip().endswith(_DONE) and b'"error"' not in self._tail:
            raise cut()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The parsed events up to `[DONE]`. Raises BadGateway for a cut, and for an error event."""
        done = False
        for data in self._first:
            done = done or data == _DONE
            if not done and (event := self._check(_parsed(data))):
                yield event
        async for chunk in self._received():
            for data in self._parser.feed(chunk):
                done = done or data == _DONE
                if not done and (event := self._check(_parsed(data))):
                    yield event
        if not done:
            raise cut()

    def _check(self, event: dict[str, Any]) -> dict[str, Any]:
        if "error" in event:
            raise from_backend(200, event, self._param)
        return event

    async def aclose(self) -> None:
        """Close the connection, unless the answer has been read to its end."""
        await self._response.aclose()


async def ask(upstream: Upstream, backend: Backend, api: API, call: Call) -> ChildStream:
    """Send `call`. Raises BadRequest, BadGateway or Unavailable for what the backend answers."""
    try:
        response = await upstream.request(
            backend.url + PATHS[api], "POST", [*_HEADERS, *backend.headers], call.body()
        )
    except BadGateway as error:
        if error.error == "backend_unreachable":
            raise Unavailable(
                "The model's process has ended and is started again.", error="loading"
            ) from None
        raise BadGateway(
            "The model's process ended before it answered.", error=error.error
        ) from None
    stream = ChildStream(response, PROMPT_FIELDS[api])
    try:
        await stream.begin()
    except BaseException:
        await response.aclose()
        raise
    return stream


def _parsed(data: bytes) -> dict[str, Any]:
    """An event's object; anything else (`[DONE]`, `null`) is an empty one."""
    if not data.startswith(b"{"):
        return {}
    try:
        event = json.loads(data)
    except ValueError:
        raise BadGateway(
            "The backend sent an event that is not JSON.", error="backend_error"
        ) from None
    return event if isinstance(event, dict) else {}


def cut() -> BadGateway:
    return BadGateway("The backend's answer ended before it was complete.", error="backend_died")
