"""Traces by OpenTelemetry, where `[tracing] endpoint` says so (the extra `otel`).

A request is a span, each try at a backend and each attestation one inside it. The caller's
trace is taken from its `traceparent` header and handed on to backends
(https://www.w3.org/TR/trace-context/). No span has a query, a prompt or a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, HyperbeamError
from .families import endpoint
from .request_id import RequestInfo, current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from ..config import TracingConfig

TRACE_HEADERS = ("traceparent", "tracestate")

_NOTHING = nullcontext()
_EXPORT_SECONDS = 5.0
_TRACES = "/v1/traces"


class Tracing:
    """Makes the spans of one process, for the exporters of `provider`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("hyperbeam")
        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    def request(self, info: RequestInfo, headers: Mapping[str, Any]) -> RequestTrace:
        """Begin the span of a request whose `headers` may name the trace it belongs to.

        It is the current span of this task, which has to be the request's own.
        """
        sent = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        span = self._tracer.start_span(
            f"{info.method} {endpoint(info.path)}",
            context=self._propagator.extract(sent),
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "http.request.method": info.method,
                "url.path": info.path.partition("?")[0][:500],
                "client.address": info.client,
                "hyperbeam.request_id": info.id,
            },
        )
        self._context.attach(self._trace.set_span_in_context(span))
        return RequestTrace(self, span)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`traceparent` and `tracestate` for what is sent within the current span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return [(name.encode(), value.encode()) for name, value in carrier.items()]

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        """A span inside the current one; an exception that leaves it is its error."""
        with self._tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                word = error.error if isinstance(error, HyperbeamError) else type(error).__name__
                span.set_attribute("error.type", word)
                span.set_status(self._trace.StatusCode.ERROR)
                raise

    def close(self) -> None:
        """Export what is left; takes some seconds where nobody takes it."""
        self._provider.shutdown()


class RequestTrace:
    """The span of one request."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span

    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._tracing.headers()

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[None]:
        return self._tracing.span(name, attributes)

    def end(self, info: RequestInfo) -> None:
        """End it as `info` says."""
        span = self._span
        span.set_attribute("http.response.status_code", info.status)
        span.set_attribute("http.response.body.size", info.size)
        for name, value in (
            ("hyperbeam.route", info.route),
            ("hyperbeam.node", info.node),
            ("gen_ai.response.model", info.model),
        ):
            if value:
                span.set_attribute(name, value)
        if info.status >= 500:
            span.set_attribute("error.type", str(info.status))
            span.set_status(self._tracing._trace.StatusCode.ERROR)
        span.end()


def span(name: str, **attributes: str) -> AbstractContextManager[None]:
    """A span inside the current request's, where requests are traced."""
    info = current()
    if info is None or info.trace is None:
        return _NOTHING
    return info.trace.span(name, attributes)


def open_tracing(config: TracingConfig) -> Tracing | None:
    """As the operator has it; None without an endpoint. Raises ConfigError."""
    if not config.endpoint:
        return None
    if not config.endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"[tracing] endpoint is {config.endpoint!r}: give the address of an OTLP receiver, "
            'such as "http://127.0.0.1:4318"'
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise ConfigError(
            f"[tracing] endpoint is set, but OpenTelemetry is not installed ({error}): "
            "pip install 'hyperbeam-node[otel]', or leave the endpoint out"
        ) from None
    url = config.endpoint.rstrip("/")
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(config.sample),
        resource=Resource.create({"service.name": config.service}),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(
        url if url.endswith(_TRACES) else url + _TRACES, timeout=_EXPORT_SECONDS
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)
