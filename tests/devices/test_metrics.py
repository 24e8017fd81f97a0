import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_strictly
from prometheus_client.parser import text_string_to_metric_families as read

from hyperbeam import ConfigError
from hyperbeam.node import Node
from hyperbeam.observe.metrics import Metrics
from tests.hyperbeam.conftest import StartNode

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
PAGE = b"# TYPE sglang:gen_throughput gauge\nsglang:gen_throughput 12.5\nhyperbeam_in_flight 99\n"


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        return await client.get(path, headers=headers)


def samples(reply: httpx.Response, reader: Any = read) -> dict[str, list[Any]]:
    assert reply.status_code == 200, reply.text
    found: dict[str, list[Any]] = {}
    for family in reader(reply.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def routes_to(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "routes.toml"
    file.write_text("\n".join(("[[routes]]", *lines)))
    return str(file)


async def test_every_number_for_prometheus_with_any_route_table(
    start_node: StartNode, tmp_path: Path
) -> None:
    line = 'nodes = [{ prefix = "http://127.0.0.1:1" }]'
    routes = await routes_to(tmp_path, 'template = "/v1/.*"', line)
    node = await start_node(routes=routes)
    assert (await get(node, "/v1/models")).status_code == 502
    assert (await get(node, "/nowhere")).status_code == 404
    for path in ("/metrics", "/~metrics@1.0", "/metrics?x=1"):
        found = samples(await get(node, path))
        (missing,) = [one for one in found["hyperbeam_requests_total"]
                      if one.labels["status"] == "404"]  # fmt: skip
        assert missing.labels == {"route": "", "endpoint": "other", "status": "404"}
        assert missing.value == 1
    reply = await get(node, "/metrics", accept=OPENMETRICS)
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    found = samples(reply, read_strictly)
    (failed,) = [one for one in found["hyperbeam_requests_total"] if one.labels["status"] == "502"]
    assert failed.labels["endpoint"] == "models"
    assert failed.labels["route"] == node.routes.routes[0].id
    states = {one.labels["node"]: one.labels["state"]
              for one in found["hyperbeam_node_state"] if one.value}  # fmt: skip
    assert states[node.routes.routes[0].nodes[0].id] == "down"
    assert found["hyperbeam_in_flight"][0].value == 1
    assert found["hyperbeam_store_bytes"][0].value > 0
    assert {one.labels["process"] for one in found["hyperbeam_process_threads"]} == {"node"}
    assert found["hyperbeam_event_loop_lag_seconds_count"][0].value >= 1


async def test_who_may_read(start_node: StartNode) -> None:
    node = await start_node(metrics__allow=["10.0.0.0/8"])
    for path in ("/metrics", "/~metrics@1.0/summary"):
        reply = await get(node, path, accept="application/json")
        assert reply.status_code == 403
        assert "[metrics] allow" in reply.text
    for client, allowed in (
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("::1", False),
        ("", False),
        ("nonsense", False),
    ):
        request = {"path": "/~metrics@1.0/index", "priv": {"client": client}}
        try:
            await node.resolve(None, request)
        except Exception as error:
            assert not allowed, error
        else:
            assert allowed, client
    with pytest.raises(ConfigError, match=r"\[metrics\] allow: 'everyone'"):
        await start_node(metrics__allow=["everyone"])


async def test_no_page_of_another_origin_reads_it_and_nothing_is_written(node: Node) -> None:
    assert (await get(node, "/metrics", origin="http://evil.example")).status_code == 403
    own = f"http://127.0.0.1:{node.server.port}"
    assert (await get(node, "/metrics", origin=own)).status_code == 200
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{own}/metrics")).status_code == 405
        reply = await client.head(f"{own}/metrics")
    assert (reply.status_code, reply.content) == (200, b"")


async def test_the_summary_is_json(node: Node) -> None:
    await get(node, "/nowhere")
    reply = await get(node, "/~metrics@1.0/summary")
    assert reply.headers["content-type"] == "application/json"
    found = json.loads(reply.text)
    assert found["requests"]["by_status"] == {"404": 1}
    assert found["rates"]["requests"] == 1
    assert found["latency"]["request_seconds"]["p50"] > 0
    assert found["latency"]["chunk_gap_seconds"]["p50"] is None
    assert found["serving"] is False  # no profile: the one node of the table is not there
    assert found["backend"]["status"] == "no_backend"
    assert [one["id"] for one in found["nodes"]] == ["local"]
    assert found["address"] == node.identity.address


async def test_what_ended_processes_counted_stays_in_the_sum(node: Node) -> None:
    workers = [Metrics(f"worker-{number}") for number in range(200)]
    alive = workers[:2]

    async def others() -> list[Any]:
        found = [worker.snapshot() for worker in alive]
        for number, one in enumerate(found):
            one["processes"][0]["pid"] = 1000 + workers.index(alive[number])
        return found

    node.metrics.others = others
    for worker in workers:
        worker.tokens("m", 0, 5)
        worker.gauge("in_flight", lambda: 1)

    async def tokens() -> float:
        found = samples(await get(node, "/metrics"))
        assert found["hyperbeam_in_flight"][0].value == 1 + len(alive)
        (one,) = [s for s in found["hyperbeam_tokens_total"] if s.labels["kind"] == "completion"]
        return float(one.value)

    assert await tokens() == 10
    alive[:] = workers[1:3]
    assert await tokens() == 15
    alive[:] = workers[:2]
    assert await tokens() == 15
    for start in range(2, 200, 40):
        alive[:] = workers[start : start + 40]
        await tokens()
    alive[:] = []
    assert await tokens() == 1000


async def test_the_backends_own_metrics_are_shown_under_their_names(node: Node) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /metrics HTTP/1.1")
        assert b"x-key: k" in head
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    node.backends.register("local", f"http://127.0.0.1:{port}", [(b"x-key", b"k")])
    try:
        for accept, reader in (("", read), (OPENMETRICS, read_strictly)):
            found = samples(await get(node, "/metrics", accept=accept), reader)
            (speed,) = found["sglang:gen_throughput"]
            assert (speed.value, speed.labels) == (12.5, {"node": "local"})
            assert [one.value for one in found["hyperbeam_in_flight"]] == [1]
        assert asked == 1  # a page is kept for some seconds
    finally:
        server.close()
