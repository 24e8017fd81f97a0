"""Measures inference@1.0: the node's CPU time for a streamed chunk and a whole request.

Receipts are made as on any node. The backend streams canned chunks; a plain request makes the
device read and assemble the same stream.

usage: inference.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from backend import CHUNKS, HEAD
from backend import Backend as CannedBackend
from passthrough import CONCURRENCY, REQUESTS, ROUNDS, cpu_seconds, free_port, load, pin, started

from devices.inference import Inference
from devices.inference.backends import BeforeReady, ModelIdentity, State, Where
from hyperbeam import Message
from hyperbeam.config import load as load_config
from hyperbeam.node import Node

ENVELOPE = (
    b'"created":1796079238,"id":"chatcmpl-0123456789abcdefghijklmnopqrstuv","model":"m",'
    b'"system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}'
)


def _event(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


CHUNK = _event(
    b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" token"}}],' + ENVELOPE
)
LAST = _event(b'{"choices":[{"finish_reason":"stop","index":0,"delta":{}}],' + ENVELOPE)
END = LAST + _event(b"[DONE]") + b"0\r\n\r\n"


class Streaming(CannedBackend):
    """Streams to every request, in llama.cpp's shape."""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if found and len(rest) >= length:
            self._data = rest[length:]
            self._stream = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        self._transport.write(HEAD)
        for _ in range(CHUNKS - 1):
            await asyncio.sleep(0)
            self._transport.write(CHUNK)
        self._transport.write(END)


class Elsewhere:
    """The backend as the device sees it."""

    kind = "bench"
    where: Where = "url"
    state: State = "ready"
    detail = ""
    model = "m"
    tools = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.settings: dict[str, Any] = {"slots": 4, "context": 2048}
        self.headers: list[tuple[bytes, bytes]] = []

    def identity(self) -> ModelIdentity:
        return ModelIdentity(self.model)

    async def unknown_model(self) -> str:
        return "it is not known"

    async def start(self, before_ready: BeforeReady | None = None) -> None: ...

    async def settled(self) -> None: ...

    async def stop(self, grace: float) -> None: ...

    def describe(self) -> Message:
        return {"kind": self.kind}


async def backend(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Streaming, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


async def serve(port: int, backend_port: int, home: str) -> None:
    config = load_config(environment={}, flags={"http.port": port, "home": home})
    async with Node(config) as node:
        device = node.device("inference@1.0")
        assert isinstance(device, Inference)
        device.backend = Elsewhere(f"http://127.0.0.1:{backend_port}")
        print("listens", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    pin(psutil.Process(), 1)
    script = str(Path(__file__).resolve())
    port, own = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        commands = (
            [sys.executable, script, "backend", str(port)],
            [sys.executable, script, "node", str(own), str(port), folder],
        )
        with started(commands[0], "ready", 1), started(commands[1], "listens", 0) as node:
            print(f"{'':8}{'CPU us/request':>16}{'CPU us/chunk':>14}")
            for mode in REQUESTS:
                costs = []
                for _ in range(ROUNDS):
                    before = cpu_seconds(node)
                    asyncio.run(load(own, mode))
                    count = REQUESTS[mode] // CONCURRENCY * CONCURRENCY
                    costs.append((cpu_seconds(node) - before) / count * 1e6)
                cost = statistics.median(costs)
                print(f"{mode:8}{cost:16.0f}{cost / CHUNKS:14.1f}")


if __name__ == "__main__":
    import uvloop

    match sys.argv[1:]:
        case ["backend", port]:
            uvloop.run(backend(int(port)))
        case ["node", port, behind, home]:
            uvloop.run(serve(int(port), int(behind), home))
        case _:
            main()
