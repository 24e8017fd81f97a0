import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hyperbeam import ConfigError, Message, Unavailable
from hyperbeam.config import TracingConfig
from hyperbeam.http import Server
from hyperbeam.observe.metrics import Metrics
from hyperbeam.observe.request_id import current, trace_headers
from hyperbeam.observe.tracing import Tracing, open_tracing, span
from hyperbeam.observe.watch import Watch, attesting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Handler:
    """Answers with the headers that a backend would get."""

    async def handle(self, request: Message) -> Any:
        info = current()
        assert info is not None
        info.route, info.model = "r1", "m"

        async def attempt(node: str) -> dict[str, str]:
            with span("attempt", node=node):
                if node == "busy":
                    raise Unavailable("busy", error="overloaded")
                return {name.decode(): value.decode() for name, value in trace_headers()}

        busy = asyncio.create_task(attempt("busy"))
        await asyncio.wait([busy])
        assert busy.exception()
        with attesting(Metrics()):
            found = await attempt("n1")
        return {"content-type": "text/plain", "body": found["traceparent"]}

    def render_error(self, error: Any, request: Message) -> Message:
        return {"status": error.status, "body": error.detail}


@pytest.fixture
async def traced() -> AsyncIterator[tuple[str, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = Server(Handler(), port=0, watch=Watch(Metrics(), tracing=Tracing(provider)))
    await server.start()
    yield f"http://127.0.0.1:{server.port}", exporter
    await server.drain(0)


async def test_a_request_its_attempts_and_its_attestation_are_one_trace(
    traced: tuple[str, InMemorySpanExporter],
) -> None:
    url, exporter = traced
    async with httpx.AsyncClient() as client:
        headers = {"traceparent": PARENT, "x-request-id": "mine"}
        reply = await client.get(f"{url}/v1/models?secret=1", headers=headers)
    # The span ends after the reply has been written, perhaps after it has been read.
    async with asyncio.timeout(10):
        while len(exporter.get_finished_spans()) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
    busy, tried, attested, request = exporter.get_finished_spans()
    names = [one.name for one in (busy, tried, attested, request)]
    assert names == ["attempt", "attempt", "attestation", "GET models"]
    trace = int(PARENT.split("-")[1], 16)
    assert {one.context.trace_id for one in exporter.get_finished_spans()} == {trace}
    assert request.parent is not None
    assert request.parent.span_id == int(PARENT.split("-")[2], 16)
    assert tried.parent == attested.context
    assert attested.parent == busy.parent == request.context
    assert reply.text == f"00-{trace:032x}-{tried.context.span_id:016x}-01"
    assert dict(busy.attributes or {}) == {"node": "busy", "error.type": "overloaded"}
    said = dict(request.attributes or {})
    assert said.pop("http.response.body.size") == len(reply.content)
    assert said == {
        "http.request.method": "GET", "url.path": "/v1/models", "client.address": "127.0.0.1",
        "hyperbeam.request_id": "mine", "http.response.status_code": 200,
        "hyperbeam.route": "r1", "gen_ai.response.model": "m",
    }  # fmt: skip


@pytest.mark.parametrize("sent", ["00-0-0-01", "é" * 500, ""])
async def test_a_bad_traceparent_starts_a_trace_of_its_own(
    traced: tuple[str, InMemorySpanExporter], sent: str
) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.get(traced[0], headers={"traceparent": sent.encode()})
    assert reply.status_code == 200
    assert reply.text.startswith("00-")


def test_an_endpoint_that_is_none_and_a_missing_extra_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert open_tracing(TracingConfig()) is None
    with pytest.raises(ConfigError, match=r"\[tracing\] endpoint is 'localhost'"):
        open_tracing(TracingConfig(endpoint="localhost"))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"hyperbeam-node\[otel\]"):
        open_tracing(TracingConfig(endpoint="http://127.0.0.1:4318"))


def test_what_is_heavy_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys, hyperbeam.node, hyperbeam.cli, devices.metrics\n"
        "heavy = {'opentelemetry', 'prometheus_client', 'rich', 'httpx'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
