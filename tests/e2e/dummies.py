"""Backends that speak just enough of OpenAI's API, and misbehave as they are told.

`Dummy` serves in the test's own event loop; `DummyProcess` is the same in a process that can
be killed. Each keeps the id of every request that it began, told by the header `x-test-id` or
the body's `user`, so that a test can see whether any ran twice. Run as a program:
`python dummies.py NAME PORT BEHAVIOUR LOG`, the ids going into the file LOG as they begin.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

Behaviour = Literal["normal", "slow", "fail", "cut", "die", "full", "error-event", "hold"]
"""What happens to a request that is no health check:

normal       an answer, plain or streamed
slow         the same after `DELAY` seconds
fail         500
cut          the connection breaks after the first chunk, or in the middle of a plain body
die          the connection breaks with no byte of an answer
full         503 with retry-after
error-event  a stream: 200, an error event and [DONE], as SGLang does; plain: 503
hold         a stream stands after its first chunk, a plain request before its answer,
             until `Dummy.release` is set
"""
DELAY = 0.3
CHUNKS = 4
MODEL = "dummy"


class Dummy:
    """A server on loopback. `sick` makes its health check fail; `started` has the ids it began."""

    def __init__(self, name: str = "dummy", behaviour: Behaviour = "normal", port: int = 0) -> None:
        self.name = name
        self.behaviour = behaviour
        self.port = port
        self.sick = False
        self.started: list[str] = []
        self.headers: dict[str, str] = {}
        """Of the last request that it began, by lower-case name."""
        self.release = asyncio.Event()
        self.on_start: Callable[[str], object] = self.started.append
        self._server: asyncio.Server | None = None
        self._running: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections from now on, and break those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
            for task, writer in self._running.items():
                writer.transport.abort()
                task.cancel()
            await asyncio.gather(*self._running)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                fields = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in fields}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, first.split()[1], headers, body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            del self._running[task]
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        if path in ("/health", "/ready"):
            await _plain(writer, 503 if self.sick else 200, {})
        elif path.endswith("/models"):
            model = {"id": MODEL, "object": "model", "created": 1, "owned_by": self.name}
            await _plain(writer, 200, {"object": "list", "data": [model]})
        else:
            asked = json.loads(body or b"{}")
            request_id = headers.get("x-test-id") or asked.get("user", "")
            self.headers = dict(headers)
            self.on_start(request_id)
            text = f"{self.name} answers {request_id}"
            await self._behave(writer, text, bool(asked.get("stream")))

    async def _behave(self, writer: asyncio.StreamWriter, text: str, streamed: bool) -> None:
        behaviour = self.behaviour
        if behaviour == "fail":
            await _plain(writer, 500, _error("it is broken"))
        elif behaviour == "full" or (behaviour == "error-event" and not streamed):
            await _plain(
                writer, 503, _error("The request queue is full.", 503), {"retry-after": "1"}
            )
        elif behaviour == "die":
            raise ConnectionAbortedError
        else:
            if behaviour == "slow":
                await asyncio.sleep(DELAY)
            if streamed:
                await self._stream(writer, text, behaviour)
                return
            if behaviour == "hold":
                await self.release.wait()
            await _plain(writer, 200, _answer(text), cut=behaviour == "cut")

    async def _stream(self, writer: asyncio.StreamWriter, text: str, behaviour: Behaviour) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if behaviour == "error-event":
            await _event(writer, _error("The request queue is full.", 503))
            await _event(writer, None)
            return
        step = -(-len(text) // CHUNKS)
        await _event(writer, _piece({"role": "assistant", "content": ""}))
        for at in range(0, len(text), step):
            await _event(writer, _piece({"content": text[at : at + step]}))
            if behaviour == "cut":
                raise ConnectionAbortedError
            if behaviour == "hold" and at == 0:
                await self.release.wait()
            await asyncio.sleep(0.002)
        await _event(writer, _piece({}, "stop"))
        await _event(writer, None)


async def _plain(
    writer: asyncio.StreamWriter,
    status: int,
    value: Any,
    headers: Mapping[str, str] | None = None,
    cut: bool = False,
) -> None:
    body = json.dumps(value).encode()
    fields = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{fields}"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + (body[: len(body) // 2] if cut else body)
    )
    await writer.drain()
    if cut:
        raise ConnectionAbortedError


async def _event(writer: asyncio.StreamWriter, value: Any) -> None:
    """A server-sent event as a chunk; None ends the stream with `[DONE]`."""
    text = "[DONE]" if value is None else json.dumps(value)
    data = f"data: {text}\n\n".encode()
    end = b"0\r\n\r\n" if value is None else b""
    writer.write(b"%x\r\n%s\r\n%s" % (len(data), data, end))
    await writer.drain()


def _error(message: str, code: int = 500) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": code}}


def _answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


def _piece(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


class DummyProcess:
    """A Dummy in a process of its own, on a port that it keeps when it is started again."""

    def __init__(self, folder: Path, name: str, behaviour: Behaviour = "normal") -> None:
        self.name = name
        self.behaviour = behaviour
        self.port = free_port()
        self._log = folder / f"{name}.started"
        self._log.touch()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def started(self) -> list[str]:
        """The ids of all requests that it began, in all its lives."""
        return self._log.read_text().split()

    def start(self) -> Self:
        """Start it and wait until it listens."""
        arguments = [self.name, str(self.port), self.behaviour, str(self._log)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, *arguments], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"listens\n"
        return self

    def kill(self) -> None:
        """kill -9, in the middle of whatever it does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def free_port() -> int:
    """A port of loopback that nothing listened on just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def _main(name: str, port: str, behaviour: Behaviour, log: str) -> None:
    with Path(log).open("a", buffering=1) as kept:  # noqa: ASYNC230
        dummy = Dummy(name, behaviour, int(port))
        dummy.on_start = lambda request_id: kept.write(f"{request_id}\n")
        await dummy.start()
        sys.stdout.write("listens\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        name, port, behaviour, log = sys.argv[1:]
        asyncio.run(_main(name, port, cast(Behaviour, behaviour), log))
