"""Loopback servers for what a verifier fetches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Answer = Callable[[BaseHTTPRequestHandler], None]


def body(data: bytes, status: int = 200) -> Answer:
    """A reply with this body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def redirect(to: str) -> Answer:
    """A redirect to `to`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("location", to)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


@contextmanager
def serving(answers: dict[str, Answer]) -> Iterator[tuple[str, list[str]]]:
    """A server of `answers` by path (404 else): its URL and the list of what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answers.get(urlsplit(self.path).path, body(b"", 404))(self)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
