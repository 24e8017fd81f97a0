"""Manifests and certificate status from NVIDIA's services, for a verification's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

MAX_REPLY = 4 * 1024 * 1024
_CHUNK = 64 * 1024
_NVIDIA = ".nvidia.com"
_ONE_REPLY = 10.0


def fetcher(own: Iterable[str], timeout: float = _ONE_REPLY) -> Callable[..., bytes]:
    """A `hyperbeam.verify` fetch that reaches NVIDIA's hosts and those of the URLs in `own`.

    Certificates name the hosts to ask, and anybody may send a certificate. `timeout`:
    seconds for one reply. Redirects are not followed.
    """
    hosts = {urlsplit(url).netloc for url in own if url}
    opener = build_opener(_NoRedirects())

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        target = urlsplit(url)
        allowed = target.netloc in hosts or (target.hostname or "").endswith(_NVIDIA)
        if target.scheme not in ("http", "https") or not allowed:
            raise PermissionError(f"{target.netloc[:100]!r} is no host that this node asks")
        headers = {"accept": "*/*", **({"content-type": content_type} if body is not None else {})}
        return _read(opener, Request(url, body, headers), timeout)

    return fetch


def _read(opener: OpenerDirector, request: Request, timeout: float) -> bytes:
    ends = time.monotonic() + timeout
    found = bytearray()
    try:
        with opener.open(request, timeout=timeout) as reply:
            while chunk := reply.read1(_CHUNK):
                found += chunk
                if len(found) > MAX_REPLY:
                    raise OSError(f"the reply is over {MAX_REPLY // 2**20} MiB")
                if time.monotonic() > ends:
                    raise TimeoutError(f"no whole reply within {timeout:g} s")
            # Reading in pieces, http.client takes a lost connection for the reply's end.
            if reply.length:
                raise OSError(f"the reply lacks its last {reply.length} bytes")
    except HTTPError as error:
        with error:
            kind = FileNotFoundError if error.code == 404 else OSError
            raise kind(f"the server answered with status {error.code}") from None
    except HTTPException as error:
        raise OSError(f"no HTTP reply: {type(error).__name__}") from None
    return bytes(found)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None
