"""NVIDIA's two services on loopback, for simulated GPUs: reference manifests and OCSP.

Each can be down, slow or a liar.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import unquote

Behaviour = Literal[
    "answers", "silent", "drips", "drips-head", "cut", "error", "huge", "nonsense", "redirects"
]

DRIP_SECONDS = 0.02
RIM_PREFIX = "/v1/rim/"


def closed_port() -> int:
    """A loopback port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    service: Service


class Service(ABC):
    """An HTTP server on a loopback port, in threads of its own; use it in a `with`.

    `asked`: paths in the order in which they came. `behaviour` may be changed at any time.
    """

    content_type = "application/octet-stream"

    def __init__(self, behaviour: Behaviour = "answers") -> None:
        self.behaviour = behaviour
        self.asked: list[str] = []
        self.elsewhere = ""
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @abstractmethod
    def reply(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for a request."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RimService(Service):
    """`/v1/rim/<id>`. `change` turns an honest reply object into what is sent instead."""

    content_type = "application/json"

    def __init__(
        self,
        rims: Mapping[str, bytes],
        behaviour: Behaviour = "answers",
        change: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__(behaviour)
        self.rims = dict(rims)
        self.change = change

    def reply(self, path: str, body: bytes) -> tuple[int, bytes]:
        id = unquote(path.removeprefix(RIM_PREFIX))
        if not path.startswith(RIM_PREFIX) or id not in self.rims:
            return 404, b'{"error": "no such manifest"}'
        rim = self.rims[id]
        value: Any = {
            "id": id,
            "rim": base64.b64encode(rim).decode(),
            "sha256": hashlib.sha256(rim).hexdigest(),
            "last_updated": "2026-01-01T00:00:00Z",
            "rim_format": "SWID",
            "request_id": "SIMULATED",
        }
        return 200, json.dumps(self.change(value) if self.change else value).encode()


class OcspResponder(Service):
    """Answers POSTed requests with `answer`, as `Simulator.ocsp` does."""

    content_type = "application/ocsp-response"

    def __init__(self, answer: Callable[[bytes], bytes], behaviour: Behaviour = "answers") -> None:
        super().__init__(behaviour)
        self.answer = answer

    def reply(self, path: str, body: bytes) -> tuple[int, bytes]:
        return 200, self.answer(body)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("content-length", 0))))

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have no use for an access log."""

    def _serve(self, body: bytes) -> None:
        service = self.server.service
        service.asked.append(self.path)
        try:
            self._behave(service, body)
        except OSError:
            self.close_connection = True

    def _behave(self, service: Service, body: bytes) -> None:
        behaviour = service.behaviour
        if behaviour == "silent":
            service.closing.wait()
        elif behaviour == "error":
            self._send(service, 500, b'{"error": "out of order"}')
        elif behaviour == "redirects":
            self.send_response(302)
            self.send_header("location", service.elsewhere + self.path)
            self.send_header("content-length", "0")
            self.end_headers()
        elif behaviour == "nonsense":
            self._send(service, 200, b"<html>Welcome to the hotel's network</html>")
        elif behaviour == "huge":
            self._huge(service)
        elif behaviour == "drips-head":
            self._drip(service, b"HTTP/1.1 200 OK\r\nx-drip: ")
        else:
            status, data = service.reply(self.path, body)
            if behaviour == "drips":
                head = f"HTTP/1.1 {status} OK\r\ncontent-length: {len(data)}\r\n\r\n".encode()
                self.wfile.write(head)
                self._drip(service, data[:1])
            elif behaviour == "cut":
                self._head(service, status, len(data))
                self.wfile.write(data[: len(data) // 2])
            else:
                self._send(service, status, data)

    def _send(self, service: Service, status: int, data: bytes) -> None:
        self._head(service, status, len(data))
        self.wfile.write(data)

    def _head(self, service: Service, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("content-type", service.content_type)
        self.send_header("content-length", str(length))
        self.end_headers()

    def _drip(self, service: Service, first: bytes) -> None:
        """A byte now and then, for ever: each comes well within any time limit for one."""
        self.wfile.write(first)
        while not service.closing.wait(DRIP_SECONDS):
            self.wfile.write(b"0")

    def _huge(self, service: Service) -> None:
        self._head(service, 200, 2**33)
        while not service.closing.is_set():
            self.wfile.write(bytes(2**16))
