"""The verifier's own fetch: whole, within a time and a size, by http and https only."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler

import pytest

from hyperbeam.cli.fetching import fetcher

from .servers import body, redirect, serving


def test_a_body_is_fetched_and_posted() -> None:
    seen: list[tuple[str, str | None, bytes]] = []

    def echo(handler: BaseHTTPRequestHandler) -> None:
        data = handler.rfile.read(int(handler.headers.get("content-length", "0")))
        seen.append((handler.command, handler.headers.get("content-type"), data))
        body(data)(handler)

    with serving({"/a": body(b"hello"), "/b": echo}) as (url, asked):
        fetch = fetcher()
        assert fetch(f"{url}/a?x=1", None, "") == b"hello"
        assert fetch(f"{url}/b", b"data", "text/x") == b"data"
        assert asked == ["/a?x=1", "/b"] and seen == [("POST", "text/x", b"data")]


def test_what_is_not_there_or_fails_is_an_error() -> None:
    with serving({"/500": body(b"secret", 500)}) as (url, _):
        with pytest.raises(FileNotFoundError):
            fetcher()(f"{url}/404", None, "")
        with pytest.raises(OSError, match="500"):
            fetcher()(f"{url}/500", None, "")
    with pytest.raises(OSError, match="refused"):
        fetcher()(f"{url}/a", None, "")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "x", "http:"]
)
def test_other_schemes_are_not_fetched(url: str) -> None:
    with pytest.raises(OSError):
        fetcher()(url, None, "")


def test_a_redirect_stays_with_the_web() -> None:
    with serving({"/a": body(b"here")}) as (there, _):
        answers = {
            "/there": redirect(f"{there}/a"),
            "/file": redirect("file:///etc/passwd"),
            "/ftp": redirect("ftp://127.0.0.1/"),
            "/loop": redirect("/loop"),
        }
        with serving(answers) as (url, _):
            assert fetcher()(f"{url}/there", None, "") == b"here"
            for path in ("/file", "/ftp", "/loop"):
                with pytest.raises(OSError):
                    fetcher()(url + path, None, "")


def test_a_reply_that_is_too_large_or_cut_is_refused() -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100")
        handler.end_headers()
        handler.wfile.write(b"half")

    with serving({"/large": body(b"x" * 1001), "/cut": cut}) as (url, _):
        with pytest.raises(OSError, match="over"):
            fetcher(limit=1000)(f"{url}/large", None, "")
        assert len(fetcher(limit=1001)(f"{url}/large", None, "")) == 1001
        with pytest.raises(OSError, match="cut"):
            fetcher()(f"{url}/cut", None, "")


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_server_that_drips_does_not_outlast_the_deadline(part: str) -> None:
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        if part == "body":
            handler.send_response(200)
            handler.end_headers()
        try:
            while not over.wait(0.01):
                handler.wfile.write(b"x")
                handler.wfile.flush()
        except OSError:
            pass

    with serving({"/": drip}) as (url, _):
        with pytest.raises(TimeoutError):
            fetcher(timeout=0.2)(f"{url}/", None, "")
        over.set()


def test_what_is_no_http_is_an_error() -> None:
    def nonsense(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\0\1\2\n\n")

    with serving({"/": nonsense}) as (url, _), pytest.raises(OSError):
        fetcher()(f"{url}/", None, "")
