"""Real sockets for the HTTP tests: a raw client, a scripted backend, a handler of one function."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hyperbeam import HyperbeamError, Message

PATIENCE = 10.0
"""Seconds after which a test that waits for something has failed."""


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Handler:
    """What the server needs of a node, around one function."""

    def __init__(self, answer: Callable[[Message], Awaitable[Any]]) -> None:
        self.answer = answer

    async def handle(self, request: Message) -> Any:
        return await self.answer(request)

    def render_error(self, error: HyperbeamError, request: Message) -> Message:
        if request["path"].startswith("/v1/"):
            body = json.dumps({"error": {"message": error.detail, "code": error.error}})
            return {"status": error.status, "content-type": "application/json", "body": body}
        return {"status": error.status, "error": error.error, "body": error.detail, **error.headers}


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    names: list[str]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A connection that sends exact bytes and reads replies strictly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def get(self, path: str, *headers: str, method: str = "GET") -> Response:
        lines = "".join(f"{line}\r\n" for line in headers)
        await self.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
        return await self.response(method)

    async def head(self) -> Response:
        raw = await soon(self.reader.readuntil(b"\r\n\r\n"))
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        names = [name for name, _ in pairs]
        return Response(int(status), dict(pairs), names)

    async def chunk(self) -> bytes:
        """The next HTTP chunk; b"" is the last one."""
        size = int(await soon(self.reader.readuntil(b"\r\n")), 16)
        data = await soon(self.reader.readexactly(size + 2))
        assert data.endswith(b"\r\n")
        return bytes(data[:-2])

    async def response(self, method: str = "GET") -> Response:
        response = await self.head()
        if method == "HEAD" or response.status in (204, 304):
            return response
        if response.headers.get("transfer-encoding") == "chunked":
            try:
                while chunk := await self.chunk():
                    response.chunks.append(chunk)
            except asyncio.IncompleteReadError:
                response.complete = False
            response.body = b"".join(response.chunks)
        elif "content-length" in response.headers:
            length = int(response.headers["content-length"])
            response.body = await soon(self.reader.readexactly(length))
        else:
            response.body = await soon(self.reader.read())
        return response

    async def at_end(self) -> bool:
        """Whether the server has closed without sending anything more."""
        return bool(await soon(self.reader.read(1)) == b"")

    def leave(self, way: str) -> None:
        """Go away: `close` (FIN), `reset` (RST) or `half-close` (FIN, and still reading)."""
        if way == "half-close":
            self.writer.write_eof()
            return
        if way == "reset":
            sock = self.writer.get_extra_info("socket")
            linger = struct.pack("ii", 1, 0)
            with socket.socket(fileno=os.dup(sock.fileno())) as copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()


class Connection:
    """A backend's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        return head, await self.reader.readexactly(size)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def closed(self) -> None:
        """Wait until the other side has gone."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


class Backend:
    def __init__(self, script: Callable[[Connection], Awaitable[None]]) -> None:
        self.script = script
        self.connections = 0
        self.open = 0
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []

    async def start(self, *, path: str = "", ssl: Any = None) -> None:
        if path:
            self.server: Any = await asyncio.start_unix_server(self._accept, path)
        else:
            self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=ssl)
            port = self.server.sockets[0].getsockname()[1]
            self.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            await self.script(Connection(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self.open -= 1
            self.tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=PATIENCE)
        assert not self.failures
