"""A backend that answers as it is told: a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from devices.inference.backends import BeforeReady, ModelIdentity, OnChange, State, Where
from hyperbeam import Message

MODEL = "dummy-model"
HEADERS = [(b"x-child-key", b"secret")]


@dataclass
class Call:
    """One request that the server got, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    data: bytes
    """The body as it came."""
    method: str = "POST"
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, status: int = 200, content_type: str = "text/event-stream") -> None:
        self.writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, value: Any) -> None:
        await self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def done(self) -> None:
        await self.chunk(b"data: [DONE]\n\n")
        await self.end()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def plain(self, status: int, value: Any, content_type: str = "application/json") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await self.writer.drain()

    def cut(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


class Dummy:
    """The server and its `Backend` in one. `script` answers each request; `calls` has them all."""

    kind = "dummy"

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or say("Hello")
        self.calls: list[Call] = []
        self.state: State = "ready"
        self.detail = ""
        self.model = MODEL
        self.tools = True
        self.assembled = True
        self.single_choice = True
        self.max_seed = 4_294_967_294
        self.endpoints: frozenset[str] | None = frozenset()
        self.context = 2048
        self.url = ""
        self.headers = HEADERS
        self.where: Where = "child"
        self.settings: dict[str, Any] = {"slots": 2, "temperature": "0.5"}
        self.model_sha256: str | None = "5a" * 32
        self.unknown = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for call in self.calls:
            call.writer.close()

    def identity(self) -> ModelIdentity:
        if self.model_sha256 is None:
            return ModelIdentity(self.model)
        return ModelIdentity(self.model, self.model_sha256, 1000, "hashed")

    async def unknown_model(self) -> str:
        return self.unknown

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        if before_ready is not None:
            await before_ready()

    async def stop(self, grace: float) -> None: ...

    def describe(self) -> Message:
        return {"kind": self.kind, "model": self.model}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = first.split()
                call = Call(path, headers, _fields(body), reader, writer, body, method)
                self.calls.append(call)
                await self._answer(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if self.calls:
                self.calls[-1].gone.set()
            writer.close()

    async def _answer(self, call: Call) -> None:
        answer = asyncio.ensure_future(self.script(call))
        left = asyncio.ensure_future(_left(call.reader))
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        await asyncio.wait({left})
        if answer.done():
            answer.result()
            return
        call.gone.set()
        answer.cancel()
        raise ConnectionResetError


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


async def _left(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed; it sends nothing while it waits for an answer."""
    while not reader.at_eof():
        if await reader.read(1):
            raise AssertionError("bytes after the request")


def piece(text: str, **extra: Any) -> dict[str, Any]:
    """A content chunk as the embedded server writes it."""
    return chunk([{"finish_reason": None, "index": 0, "delta": {"content": text}, **extra}])


def chunk(choices: list[Any], **extra: Any) -> dict[str, Any]:
    """A chat chunk."""
    return {
        "choices": choices,
        "created": 1796079238,
        "id": "chatcmpl-1",
        "model": MODEL,
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
        **extra,
    }


def chat_events(*texts: str, usage: bool, finish: str = "stop") -> list[dict[str, Any]]:
    """The events of a whole chat answer but for `[DONE]`."""
    counts = {
        "completion_tokens": len(texts),
        "prompt_tokens": 7,
        "total_tokens": 7 + len(texts),
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    timings = {"timings": {"predicted_n": len(texts)}}
    role = {"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}
    last = chunk([{"finish_reason": finish, "index": 0, "delta": {}}], **({} if usage else timings))
    events = [chunk([role]), *map(piece, texts), last]
    return [*events, chunk([], usage=counts, **timings)] if usage else events


def text_events(*texts: str, logprobs: Any = None) -> list[dict[str, Any]]:
    """The events of a whole text completion but for `[DONE]`; each text one token."""

    def event(text: str, finish: str | None, **extra: Any) -> dict[str, Any]:
        found = logprobs(text) if logprobs and text else None
        choice = {"text": text, "index": 0, "logprobs": found, "finish_reason": finish}
        return chunk([choice], object="text_completion", **extra)

    usage = {"completion_tokens": len(texts), "prompt_tokens": 3, "total_tokens": 3 + len(texts)}
    return [*(event(text, None) for text in texts), event("", "length", usage=usage)]


def say(*texts: str) -> Script:
    """Answers every request, chat or text, with `texts`."""

    async def script(call: Call) -> None:
        await call.begin()
        if call.path.endswith("/chat/completions"):
            usage = bool((call.body.get("stream_options") or {}).get("include_usage"))
            events = chat_events(*texts, usage=usage)
        else:
            events = text_events(*texts)
        for event in events:
            await call.event(event)
        await call.done()

    return script
