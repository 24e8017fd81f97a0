"""What a request may be before the app sees it: sizes, times, the target, the refusals."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadRequest, HyperbeamError, TooLarge, Unavailable

HEAD_LIMIT = 64 * 1024
HEADER_COUNT = 200
PIPELINE_LIMIT = 64 * 1024
"""Bytes of later requests that wait while one is answered; over it the connection ends then."""
FRAMING_LIMIT = 64 * 1024
"""Bytes of chunk extensions or trailers in a row."""
FRAMING_HEADERS = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
LINGER = 10.0
"""Seconds in which a refused client may go on sending and still read its answer."""
SLOWEST_BODY = 1024
"""Bytes a second that a body must have on average after its first `body_timeout`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Body size in bytes; times in seconds. `unfinished`: bytes of all bodies that are on their
    way, which no key has been looked at for."""

    body: int = 32 * 1024 * 1024
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0
    send_timeout: float = 60.0
    unfinished: int = 256 * 1024 * 1024


def target(url: bytes, method: str) -> bytes:
    """The path and query of a request target: origin, absolute or asterisk form (RFC 9112 3.2)."""
    if url[:7].lower() == b"http://" or url[:8].lower() == b"https://":
        rest = url.partition(b"://")[2]
        ends = [at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0]
        url = rest[min(ends) :] if ends else b"/"
        if url.startswith(b"?"):
            url = b"/" + url
    if not url.startswith(b"/") and not (url == b"*" and method == "OPTIONS"):
        raise BadRequest("the target of the request is not a path that starts with /")
    if b"#" in url:
        raise BadRequest("the target of the request has a fragment (#)")
    return url


def head_too_large(detail: str) -> HyperbeamError:
    return BadRequest(detail, status=431, error="head_too_large")


def body_too_large(limit: int) -> HyperbeamError:
    return TooLarge(f"the body of the request is over {limit} bytes")


def too_many_bodies() -> HyperbeamError:
    return Unavailable(
        "the node takes in too many large bodies at once", error="overloaded", retry_after=1
    )


def too_slow(part: str) -> HyperbeamError:
    detail = f"the {part} of the request did not arrive in time"
    return BadRequest(detail, status=408, error="request_timeout")


def draining() -> HyperbeamError:
    return Unavailable("the node is shutting down", error="draining", retry_after=5)
