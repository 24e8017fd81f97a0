"""What `hyperbeam verify` gets from the network: whole within a time and a size, or not at all."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from hyperbeam.verify.nvidia import Fetch

MAX_REPLY = 128 << 20
TIMEOUT = 20.0
_CHUNK = 256 << 10
_SCHEMES = ("http", "https")


def fetcher(timeout: float = TIMEOUT, limit: int = MAX_REPLY) -> Fetch:
    """A fetch by http and https. `timeout`: seconds for a whole reply; `limit`: its bytes."""
    opener = build_opener(_SameScheme())

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        if urlsplit(url).scheme not in _SCHEMES:
            raise PermissionError(f"{url[:100]!r} is no http or https address")
        headers = {"accept": "*/*"}
        if body is not None:
            headers["content-type"] = content_type
        return _within(timeout, _Reply(opener, Request(url, body, headers), timeout, limit))

    return fetch


class _Reply:
    """One reply, read on a thread of its own: a server that drips cannot outlast the deadline."""

    def __init__(
        self, opener: OpenerDirector, request: Request, timeout: float, limit: int
    ) -> None:
        self._opener = opener
        self._request = request
        self._timeout = timeout
        self._limit = limit
        self.given_up = False
        self.body = b""
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            self.body = self._read()
        except HTTPError as error:
            with error:
                kind = FileNotFoundError if error.code == 404 else OSError
                self.error = kind(f"the server answered with status {error.code}")
        except URLError as error:
            reason = error.reason
            self.error = reason if isinstance(reason, OSError) else OSError(str(reason))
        except OSError as error:
            self.error = error
        except (HTTPException, ValueError) as error:
            self.error = OSError(f"no HTTP reply: {error or type(error).__name__}")

    def _read(self) -> bytes:
        found = bytearray()
        with self._opener.open(self._request, timeout=self._timeout) as reply:
            while not self.given_up and (chunk := reply.read1(_CHUNK)):
                found += chunk
                if len(found) > self._limit:
                    raise OSError(f"the reply is over {self._limit >> 20} MiB")
            if reply.length:
                raise OSError("the reply was cut")
        return bytes(found)


def _within(timeout: float, reply: _Reply) -> bytes:
    thread = threading.Thread(target=reply.run, daemon=True)
    ends = time.monotonic() + timeout
    thread.start()
    while thread.is_alive() and time.monotonic() < ends:
        thread.join(ends - time.monotonic())
    if thread.is_alive():
        reply.given_up = True
        raise TimeoutError(f"no whole reply within {timeout:g} s")
    if reply.error is not None:
        raise reply.error
    return reply.body


class _SameScheme(HTTPRedirectHandler):
    """Follows redirects to http and https, never from https to http."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        before, after = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if after not in _SCHEMES or (before == "https" and after != "https"):
            raise PermissionError(f"the server redirects to {newurl[:100]!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
