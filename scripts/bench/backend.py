"""A backend that is never the bottleneck: canned OpenAI answers on a raw asyncio protocol.

usage: backend.py PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

CHUNKS = 64
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 200}}],
    }
).encode()
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_ANSWER),
    _ANSWER,
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


CHUNK = _event(b'{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" token"}}]}')
END = _event(b"[DONE]") + b"0\r\n\r\n"


class Backend(asyncio.Protocol):
    """One connection; requests have a content-length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._data = b""
        self._stream: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        self._data = rest[length:]
        if b'"stream": true' in rest[:length]:
            self._stream = asyncio.ensure_future(self._send())
        else:
            self._transport.write(PLAIN)

    async def _send(self) -> None:
        self._transport.write(HEAD)
        for _ in range(CHUNKS):
            await asyncio.sleep(0)
            self._transport.write(CHUNK)
        self._transport.write(END)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Backend, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
