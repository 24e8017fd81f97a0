"""One request to a backend: sent, and looked at before the client is promised anything."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from hyperbeam import BadGateway, HyperbeamError, Unavailable
from hyperbeam.observe.request_id import outbound

from .backends import Backend
from .errors import JSON, from_backend
from .events import MAX_EVENT, EventParser, EventTooLarge
from .request import Call
from .validate import API

if TYPE_CHECKING:
    from hyperbeam.http.upstream import Upstream, UpstreamResponse
    from hyperbeam.routing.lease import Lease

Headers = list[tuple[bytes, bytes]]

PATHS: Mapping[API, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PROMPT_FIELDS: Mapping[str, str] = {
    "/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/messages": "messages",
}  # fmt: skip
ENDS: Mapping[str, re.Pattern[bytes]] = {
    "/v1/messages": re.compile(rb"^event: ?(?:message_stop|error)", re.MULTILINE),
    "/v1/responses": re.compile(
        rb"^event: ?(?:response\.(?:completed|incomplete|failed|cancelled)|error)", re.MULTILINE
    ),
}
"""How a stream that has no `[DONE]` says that it is complete."""

_DONE = b"[DONE]"
_ERROR = re.compile(rb'"error"\s*:\s*[{"]')
_ERROR_LIMIT = 256 * 1024
_TAIL = 4096
_OVERLAP = 64
_EVENTS = b"text/event-stream"
_STREAMED: Headers = [(b"content-type", JSON.encode()), (b"accept", _EVENTS)]


class Sender:
    """Sends requests to the node of `lease`, or to this node's own backend."""

    def __init__(
        self, upstream: Upstream, *, backend: Backend | None = None, lease: Lease | None = None
    ) -> None:
        self.lease = lease
        self._upstream = upstream
        self._backend = backend

    async def send(
        self, path: str, headers: Headers, body: bytes, method: str = "POST"
    ) -> UpstreamResponse:
        """The response's head. Raises what `Upstream.request` and `Lease.target` raise."""
        lease, backend = self.lease, self._backend
        if backend is not None:
            url = backend.url + path
            headers = [*headers, *backend.headers, *outbound()]
        elif lease is not None:
            url, own = lease.target(path)
            names = {name.lower() for name, _ in own}
            headers = [*(one for one in headers if one[0] not in names), *own]
        if lease is None:
            return await self._upstream.request(url, method, headers, body)
        timeouts = lease.timeouts
        try:
            return await self._upstream.request(
                url,
                method,
                headers,
                body,
                connect_timeout=timeouts.connect,
                first_byte_timeout=timeouts.first_byte,
                idle_timeout=timeouts.idle,
                total_timeout=timeouts.total,
                idempotent=lease.route.idempotent or None,
            )
        except BadGateway as error:
            raise self._explained(error) from None

    def _explained(self, error: BadGateway) -> HyperbeamError:
        """A backend of this node's own has no address that a client could know."""
        if self._backend is None:
            return error
        if error.error == "backend_unreachable":
            return Unavailable(
                "The model's process has ended and is started again.", error="loading"
            )
        return BadGateway("The model's process ended before it answered.", error=error.error)

    def began(self) -> None:
        """The first of the answer is there."""
        if self.lease is not None:
            self.lease.first_byte()

    def failed(self, error: HyperbeamError) -> None:
        """The answer broke off."""
        if self.lease is not None:
            self.lease.failed(error)

    def refusal(self, response: UpstreamResponse, body: bytes, path: str) -> HyperbeamError:
        """What an error reply to a request for `path` means."""
        later = (response.header(b"retry-after") or b"").decode("latin-1")
        forwarded = self.lease is not None and self.lease.node.auth == "forward"
        return from_backend(
            response.status,
            body,
            PROMPT_FIELDS.get(path, "input"),
            retry_after=later,
            forwarded=forwarded,
        )

    def close(self) -> None:
        """Give the node's place back."""
        if self.lease is not None:
            self.lease.close()


class ChildStream:
    """An answer whose first event has come and is no error.

    Read it once, as `raw` chunks (iterate the object) or as parsed `events`; `aclose`
    ends the backend's work at once and may be called at any time.
    """

    holds = False
    """Whether its end is the end of all that was asked of the node."""

    def __init__(self, sender: Sender, response: UpstreamResponse, path: str) -> None:
        self._sender = sender
        self._response = response
        self._path = path
        self._ends = ENDS.get(path)
        self._done = path not in ENDS and path not in PATHS.values()
        self._parser = EventParser()
        self._head: list[bytes] = []
        self._first: list[bytes] = []
        self._tail = b""

    async def begin(self) -> None:
        """Wait for the first event. Raises what the backend's error reply means."""
        response = self._response
        if response.status != 200 or not is_events(response):
            body = await response.read(_ERROR_LIMIT)
            raise self._sender.refusal(response, body, self._path)
        async for chunk in self._received():
            self._head.append(chunk)
            self._first.extend(self._fed(chunk))
            if self._first:
                self._sender.began()
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
            except HyperbeamError as error:
                raise self._broken(error) from None
        if self._ends is not None:
            # Text inside of events has no line ends, so no answer can say this.
            self._tail = self._tail[-_OVERLAP:] + chunk
            self._done = self._done or self._ends.search(self._tail) is not None
        else:
            self._tail = chunk if len(chunk) >= _TAIL else (self._tail + chunk)[-_TAIL:]
        return chunk

    def _fed(self, chunk: bytes) -> list[bytes]:
        try:
            return self._parser.feed(chunk)
        except EventTooLarge:
            raise self._broken(
                BadGateway(
                    f"The backend sent an event of over {MAX_EVENT} bytes.",
                    error="response_too_large",
                )
            ) from None

    async def _received(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response:
                yield chunk
        except HyperbeamError as error:
            raise self._broken(error) from None

    def _broken(self, error: HyperbeamError) -> HyperbeamError:
        """The failure of a stream, counted against its node."""
        large = error.error == "response_too_large"
        found = cut() if isinstance(error, BadGateway) and not large else error
        self._sender.failed(found)
        return found

    def _check_end(self) -> None:
        # A backend's own error event is an end too: the client has been told.
        if self._done or _ERROR.search(self._tail):
            return
        if self._ends is not None or not self._tail.rstrip().endswith(_DONE):
            raise self._broken(cut())

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The parsed events up to `[DONE]`. Raises BadGateway for a cut, and for an error event."""
        done = False
        for data in self._first:
            done = done or data == _DONE
            if not done and (event := self._check(_parsed(data))):
                yield event
        async for chunk in self._received():
            for data in self._fed(chunk):
                done = done or data == _DONE
                if not done and (event := self._check(_parsed(data))):
                    yield event
        if not done:
            raise self._broken(cut())

    def _check(self, event: dict[str, Any]) -> dict[str, Any]:
        if event.get("error"):
            raise self._sender.refusal(self._response, json.dumps(event).encode(), self._path)
        return event

    async def aclose(self) -> None:
        """Close the connection, unless the answer has been read to its end."""
        await self._response.aclose()
        if self.holds:
            self._sender.close()


async def ask(sender: Sender, api: API, call: Call) -> ChildStream:
    """Send `call`. Raises BadRequest, BadGateway or Unavailable for what the backend answers."""
    path = PATHS[api]
    response = await sender.send(path, _STREAMED, call.body())
    return await opened(sender, response, path)


async def opened(sender: Sender, response: UpstreamResponse, path: str) -> ChildStream:
    """The stream that `response` is, once its first event has come."""
    stream = ChildStream(sender, response, path)
    try:
        await stream.begin()
    except BaseException:
        await response.aclose()
        raise
    return stream


def is_events(response: UpstreamResponse) -> bool:
    return (response.header(b"content-type") or b"").startswith(_EVENTS)


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
