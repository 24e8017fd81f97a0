"""relay@1.0: passes a request on along a route. Source: upstream dev_relay."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from hyperbeam import (
    BadGateway,
    BadRequest,
    Device,
    Forbidden,
    HyperbeamError,
    Message,
    Stream,
    Unavailable,
    key,
)
from hyperbeam.access.credentials import Grant
from hyperbeam.codecs import form, json
from hyperbeam.http.upstream import UpstreamResponse
from hyperbeam.observe.tokens import counted
from hyperbeam.routing import Route
from hyperbeam.routing.lease import Lease
from hyperbeam.routing.leased import LeasedBody
from hyperbeam.routing.strategy import Ask

_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_REWRITTEN = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
_CORS = "access-control-"
"""Whose pages may read replies is the node's to say."""
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_DOTS = re.compile(r"(?:^|/|%2f)(?:\.|%2e){1,2}(?:$|/|%2f)", re.IGNORECASE)
_SMALL = 1024 * 1024
MAX_CASTS = 64
"""Casts under way at a time."""

log = logging.getLogger("hyperbeam.relay")


class Relay(Device):
    """Reaches only what a route names: never an address that a request gives."""

    name = "relay@1.0"
    carries = True
    raw_body = True

    async def start(self) -> None:
        self._casts: set[asyncio.Task[None]] = set()
        self._via = f"hyperbeam-{secrets.token_hex(6)}"

    async def stop(self) -> None:
        for task in self._casts:
            task.cancel()
        await asyncio.gather(*self._casts, return_exceptions=True)

    @key
    async def call(self, base: Any, request: Message) -> Any:
        """Send the request to `relay-path` and give the reply: status, headers, body or stream."""
        path = _path(base, request)
        route = self.node.routes.require(path, request)
        if route.device:
            return await self.node.resolve(
                {"device": route.device}, {**request, "path": path, "method": _method(request)}
            )
        return await self._send(route, path, base, request)

    @key
    async def cast(self, base: Any, request: Message) -> str:
        """As `call`, but answer OK at once and drop the reply."""
        path = _path(base, request)
        self.node.routes.require(path, request)
        self.node.access.grant_of(request)
        if len(self._casts) >= MAX_CASTS:
            raise Unavailable(f"{MAX_CASTS} casts are under way; try again later", error="busy")
        task = asyncio.create_task(self._cast(base, request))
        self._casts.add(task)
        task.add_done_callback(self._casts.discard)
        return "OK"

    @key
    async def request(self, base: Any, request: Message) -> Message:
        """As a `request` hook: every request is passed on along its route."""
        asked = request.get("request")
        path = asked.get("path") if isinstance(asked, dict) else None
        if not isinstance(asked, dict) or not isinstance(path, str):
            raise BadRequest("request is for the hook `request`", param="request")
        call = {**asked, "path": "call", "relay-path": path}
        return {"body": [{"device": self.name}, call]}

    async def _cast(self, base: Any, request: Message) -> None:
        try:
            result = await self.call(base, request)
            if isinstance(result, Stream):
                async with aclosing(result):
                    async for _ in result.source:
                        pass
        except Exception as error:
            log.warning("cast failed: %s", error)

    async def _send(self, route: Route, path: str, base: Any, request: Message) -> Any:
        grant = self.node.access.check(request)
        body = request.get("relay-body", request.get("body", b""))
        sent = _Request(
            path,
            _method(request),
            self._headers(request),
            body.encode() if isinstance(body, str) else bytes(body or b""),
            route.responses > 1 or (route.parallel and route.choose > 1),
        )
        if grant.models:
            grant.require_model(_strictly_named(request, sent.body))
        ask = Ask(
            path=path,
            client=grant.client,
            model=_model(route, request, sent.body),
            base=base,
            request=request,
        )

        async def attempt(lease: Lease) -> Message | Stream:
            return await self._attempt(lease, sent)

        async def whole(lease: Lease) -> Message:
            return await _whole(await self._attempt(lease, sent))

        reply: Message | Stream
        try:
            if route.responses > 1:
                replies = await self.node.dispatch.gather(route, ask, whole)
                reply = {str(number): one for number, one in enumerate(replies, 1)}
            else:
                reply = await self.node.dispatch.run(route, ask, attempt)
        except NodeRefusal as refusal:
            return _limited(refusal.reply, grant)
        if grant.counts_tokens:
            counted(reply, len(sent.body), grant.used)
        return _limited(reply, grant)

    async def _attempt(self, lease: Lease, sent: _Request) -> Message | Stream:
        url, own = lease.target(sent.path)
        headers = sent.headers
        if lease.node.headers:
            names = {name.lower() for name, _ in own}
            headers = [header for header in headers if header[0] not in names]
        timeouts = lease.timeouts
        response = await self.node.upstream.request(
            url,
            sent.method,
            headers + own,
            sent.body,
            connect_timeout=timeouts.connect,
            first_byte_timeout=timeouts.first_byte,
            idle_timeout=timeouts.idle,
            total_timeout=timeouts.total,
            idempotent=lease.route.idempotent or None,
        )
        lease.first_byte()
        log.debug(
            "%s%s answered %d", lease.node.id, sent.path.partition("?")[0][:500], response.status
        )
        body = LeasedBody(response, lease)
        try:
            if response.status >= 400:
                await _check(response, sent)
            return await _reply(response, body, sent.method)
        except BaseException:
            await response.aclose()
            raise

    def _headers(self, request: Message) -> list[tuple[bytes, bytes]]:
        """The client's own headers but for those of its connection, and never its secrets."""
        via = str(request.get("via", ""))
        if self._via in via:
            raise HyperbeamError(
                "a route leads back to this node", status=508, error="loop_detected"
            )
        private = request.get("priv", {})
        named = "request-id" in private
        headers = [
            (name.encode("latin-1"), str(request[name]).encode("latin-1", "replace"))
            for name in private.get("request-headers", ())
            if name not in _OURS
            and name not in _REWRITTEN
            and request.get(name) not in (None, False)
            and not (named and name == "x-request-id")
        ]
        own = f"{via}, 1.1 {self._via}" if via else f"1.1 {self._via}"
        headers.append((b"via", own.encode("latin-1", "replace")))
        client = str(private.get("client", ""))
        if client:
            headers.append((b"x-forwarded-for", client.encode("latin-1", "replace")))
        return headers


@dataclass(frozen=True, slots=True)
class _Request:
    """What every node that is asked gets. `compared`: several are, and the best answer counts."""

    path: str
    method: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    compared: bool


class NodeRefusal(HyperbeamError):
    """A node's own error reply: given to the client as it is, if no other node does better."""

    def __init__(self, reply: Message, error: str, headers: Mapping[str, str]) -> None:
        status = reply["status"]
        super().__init__(
            f"it answered with status {status}", error=error, status=status, headers=headers
        )
        self.reply = reply


async def _check(response: UpstreamResponse, sent: _Request) -> None:
    """Raise NodeRefusal for an error reply after which another node might do better."""
    status = response.status
    later = response.header(b"retry-after")
    if status == 503 or (status == 429 and later is not None):
        word = "overloaded"
    elif 500 <= status < 600 and status != 501:
        word = "backend_error"
    elif sent.compared and status < 600:
        word = "refused"
    else:
        return
    message = _message(response, await response.read(_SMALL), sent.method)
    raise NodeRefusal(message, word, {"retry-after": later.decode("latin-1")} if later else {})


async def _reply(response: UpstreamResponse, body: LeasedBody, method: str) -> Message | Stream:
    """The backend's reply: whole where it is small, else as a stream."""
    if not 200 <= response.status < 600:
        raise BadGateway(f"the backend answered with status {response.status}")
    length = response.header(b"content-length") or b""
    small = length.isdigit() and int(length) <= _SMALL
    events = (response.header(b"content-type") or b"").startswith(b"text/event-stream")
    if method != "HEAD" and response.status not in (204, 304) and (events or not small):
        content_type, kept = _fields(response)
        return Stream(body, content_type, response.status, dict(kept))
    message = _message(response, await response.read(_SMALL), method)
    await body.aclose()
    return message


def _message(response: UpstreamResponse, data: bytes, method: str) -> Message:
    content_type, kept = _fields(response)
    length = response.header(b"content-length") or b""
    if (method == "HEAD" or response.status in (204, 304)) and length.isdigit():
        kept.append(("content-length", length.decode()))
    return {
        "status": response.status,
        "content-type": content_type,
        "body": data,
        "priv": {"reply-headers": kept},
    }


def _fields(response: UpstreamResponse) -> tuple[str, list[tuple[str, str]]]:
    """The content type, and the other headers that are not those of the connection."""
    content_type = ""
    kept = []
    hop: set[str] = set()
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name == "connection":
            hop.update(word.strip().lower() for word in value.split(","))
        elif name == "content-type":
            content_type = content_type or value
        elif name not in _OURS and not name.startswith(_CORS):
            kept.append((name, value))
    if hop:
        kept = [(name, value) for name, value in kept if name not in hop]
    return content_type or "application/octet-stream", kept


async def _whole(reply: Message | Stream) -> Message:
    """One of several replies, as a message with a body of at most _SMALL bytes."""
    if not isinstance(reply, Stream):
        return {name: reply[name] for name in ("status", "content-type", "body")}
    chunks, size = [], 0
    async with aclosing(reply):
        async for chunk in reply.source:
            chunks.append(chunk)
            size += len(chunk)
            if size > _SMALL:
                raise BadGateway(
                    f"one of the answers is over {_SMALL} bytes", error="response_too_large"
                )
    return {"status": reply.status, "content-type": reply.content_type, "body": b"".join(chunks)}


def _limited(reply: Message | Stream, grant: Grant) -> Message | Stream:
    """`reply` with what is left to the API key, which no backend knows."""
    if not grant.headers:
        return reply
    own = dict(grant.headers)
    if isinstance(reply, Stream):
        reply.headers = {**dict(_without_limits(reply.headers.items())), **own}
        return reply
    private = reply.get("priv") or {}
    kept = _without_limits(private.get("reply-headers", ()))
    return {**reply, "priv": {**private, "reply-headers": [*kept, *own.items()]}}


def _without_limits(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [field for field in fields if not field[0].startswith("x-ratelimit-")]


def _model(route: Route, request: Message, body: bytes) -> str:
    """The model that the body names, where the route's nodes differ in that."""
    if not any(node.models for node in route.nodes):
        return ""
    kind = str(request.get("content-type") or "")
    if kind.lower().startswith("multipart/"):
        return form.text_field(body, kind, "model")
    return _named(body)


def _strictly_named(request: Message, body: bytes) -> str:
    """The model that every reader of the body finds there. Raises BadRequest where they differ."""
    kind = str(request.get("content-type") or "")
    if kind.lower().startswith("multipart/"):
        return form.text_field(body, kind, "model")
    value = json.decode(body) if body else {}
    if not isinstance(value, dict):
        return ""
    if any(key.casefold() == "model" and key != "model" for key in value):
        raise BadRequest("write the key 'model' in lower case", param="model")
    model = value.get("model")
    return model if isinstance(model, str) else ""


def _named(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Asked).model
    except msgspec.DecodeError:
        return ""


class _Asked(msgspec.Struct):
    model: str = ""


def _path(base: Any, request: Message) -> str:
    path = request.get("relay-path") or (base.get("relay-path") if isinstance(base, dict) else None)
    if not isinstance(path, str) or not path:
        raise BadRequest("say where to: relay-path=/v1/models", param="relay-path")
    if "://" in path.partition("?")[0]:
        raise Forbidden(
            f"{path[:200]!r} is an address; the relay reaches only what a route names: give a path"
        )
    bare = path.partition("?")[0]
    if _DOTS.search(bare) or "\\" in bare or "%5c" in bare.lower():
        raise BadRequest("a path along a route has no dot segments and no backslash")
    if _UNSAFE.search(path):
        raise BadRequest("relay-path has a space or a control character; percent-encode it")
    return "/" + path.lstrip("/")


def _method(request: Message) -> str:
    return str(request.get("relay-method") or request.get("method") or "GET").upper()
