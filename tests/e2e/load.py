"""A client cheap enough to be many: one raw connection a request, read as it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """What came back. `ended`: the body was whole as HTTP has it; `events` those of a stream."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    ended: bool = False
    events: list[Any] = field(default_factory=list)
    """A stream's events as JSON; the last is None where it was `[DONE]`."""

    @property
    def text(self) -> str:
        """The answer's text, of a stream put together."""
        if not self.streamed:
            content: str = self.json()["choices"][0]["message"]["content"]
            return content
        pieces = [event["choices"][0]["delta"] for event in self.events if choices(event)]
        return "".join(piece.get("content") or "" for piece in pieces)

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def error(self) -> Any:
        """The error object that the client was told, of a body or of a stream's event."""
        if self.streamed:
            found = [event["error"] for event in self.events if event and "error" in event]
            return found[0] if found else None
        if self.status < 400:
            return None
        value = self.json()
        return value.get("error", value) if isinstance(value, dict) else value

    @property
    def good(self) -> bool:
        """A whole answer: nothing that a client could take for a failure."""
        whole = self.events[-1:] == [None] if self.streamed else True
        return self.status == 200 and self.ended and whole and self.error is None

    def json(self) -> Any:
        return json.loads(self.body)


def choices(event: Any) -> bool:
    """Whether an event brings a piece of an answer."""
    return bool(event) and bool(event.get("choices"))


async def ask(
    port: int,
    path: str,
    value: Any = None,
    *,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request, its reply whole; `value` goes as JSON."""
    replies = follow(port, path, value, method=method, headers=headers)
    return [reply async for reply in replies][-1]


async def follow(
    port: int,
    path: str,
    value: Any = None,
    *,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Reply]:
    """The reply at its head, and the same again after each piece and at its end."""
    body = b"" if value is None else json.dumps(value).encode()
    fields = {
        "host": "localhost",
        "accept": "application/json",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **(headers or {}),
    }
    head = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
    method = method or ("GET" if value is None else "POST")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        parts = (line.partition(":") for line in lines if line)
        reply = Reply(int(first.split()[1]), {n.lower(): text.strip() for n, _, text in parts})
        yield reply
        rest = b""
        try:
            async for piece in _body(reader, reply.headers):
                reply.body += piece
                *blocks, rest = (rest + piece).split(b"\n\n")
                reply.events += [_event(block) for block in blocks if block.startswith(b"data: ")]
                yield reply
            reply.ended = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        yield reply
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif length := int(headers.get("content-length", 0)):
        yield await reader.readexactly(length)


def _event(block: bytes) -> Any:
    data = block.removeprefix(b"data: ")
    return None if data == b"[DONE]" else json.loads(data)
