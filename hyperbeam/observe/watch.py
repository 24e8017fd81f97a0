"""Follows each request from its arrival to its end: id, counts, access line, trace."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import HyperbeamError
from .families import endpoint
from .histogram import SHORT
from .metrics import Metrics
from .request_id import HEADER, RAW_HEADER, RequestIds, RequestInfo, enter
from .tracing import TRACE_HEADERS, span

if TYPE_CHECKING:
    from .tracing import Tracing

LEFT = 499
"""The status of a request whose client left before there was a reply, as nginx has it."""

access_log = logging.getLogger("hyperbeam.access")


class Watch:
    """Called by the server. `access`: whether each request gets a line in the log."""

    def __init__(
        self, metrics: Metrics, *, access: bool = False, tracing: Tracing | None = None
    ) -> None:
        self.metrics = metrics
        self._access = access
        self._tracing = tracing
        self._ids = RequestIds()

    def begin(self, request: dict[str, Any]) -> RequestInfo:
        """`request` has arrived. From here on this task is about it.

        Its id is `priv["request-id"]`, and stands in the place of a header that is unsound.
        """
        private = request["priv"]
        info = RequestInfo(
            self._ids.of(request),
            request["method"],
            request["path"],
            private["client"],
            perf_counter(),
        )
        private["request-id"] = info.id
        if HEADER in request:
            request[HEADER] = info.id
        enter(info)
        if self._tracing is not None:
            info.trace = self._tracing.request(info, request)
            # What goes on to backends is the span that asks them, not the caller's.
            for name in TRACE_HEADERS:
                request.pop(name, None)
        return info

    def done(self, info: RequestInfo) -> None:
        """The reply has been sent, or the client has left."""
        if not info.status:
            info.status = LEFT
        if info.method == "HEAD":
            info.size = 0
        seconds = perf_counter() - info.started
        self.metrics.request(info.route, endpoint(info.path), info.status, seconds)
        self.metrics.sent(info.size)
        if info.trace is not None:
            info.trace.end(info)
        if self._access:
            self._line(info, seconds)

    def refused(self, request: dict[str, Any] | None, error: HyperbeamError) -> str:
        """A request is refused in front of the app; its head is None where it was unsound.

        Gives its id.
        """
        path = request["path"] if request is not None else ""
        self.metrics.request("", endpoint(path), error.status, 0.0)
        return self._ids.of(request or {})

    def _line(self, info: RequestInfo, seconds: float) -> None:
        fields = {
            "method": info.method,
            "path": info.path.partition("?")[0][:500],
            "status": info.status,
            "ms": round(seconds * 1000, 1),
            "bytes": info.size,
            "client": info.client,
            "key": info.key,
            "route": info.route,
            "node": info.node,
            "model": info.model,
        }
        access_log.info(
            "%s %s %d", info.method, fields["path"], info.status, extra={"fields": fields}
        )


class StreamWatch:
    """Follows one stream's chunks, for the request `info`."""

    __slots__ = ("_counts", "_gaps", "_last", "_size", "headers", "info", "metrics")

    def __init__(self, info: RequestInfo, metrics: Metrics) -> None:
        self.info = info
        self.metrics = metrics
        self.headers = [header(info.id)]
        self._gaps = metrics.gaps
        self._counts = metrics.gaps.counts
        self._last = 0.0
        self._size = 0

    def begin(self, status: int) -> None:
        """The head of the reply is about to be sent."""
        self.info.status = status

    def chunk(self, size: int) -> None:
        """A chunk of `size` bytes was handed on."""
        last = self._last
        self._last = now = perf_counter()
        self._size += size
        if last:
            # As Histogram.observe, without the calls: this is once a chunk.
            gap = now - last
            self._counts[bisect_left(SHORT, gap)] += 1
            self._gaps.sum += gap
        else:
            info = self.info
            self.metrics.began(info.route, now - info.started)

    def end(self, how: str) -> None:
        """`complete`, `failed` or `left`, as `Metrics.stream` has it."""
        self.info.size = self._size
        self.metrics.stream(how)


@contextmanager
def attesting(metrics: Metrics) -> Iterator[None]:
    """Count and trace the attestation that is made inside."""
    started, outcome = perf_counter(), "ok"
    try:
        with span("attestation"):
            yield
    except HyperbeamError as error:
        outcome = error.error
        raise
    except BaseException:
        outcome = "left"
        raise
    finally:
        metrics.attested(perf_counter() - started, outcome)


def header(id: str) -> tuple[bytes, bytes]:
    """The field of a reply that says its request's id."""
    return RAW_HEADER, id.encode()
