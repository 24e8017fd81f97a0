"""Several worker processes: one dies, one is told to leave, all take new settings."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from .dummies import Dummy
from .load import Reply, ask, follow
from .process import NodeProcess, serve
from .test_failover import until

STREAMS = 200
CONFIG = """
[http]
drain = {drain}
body_limit = {limit}
"""


def routes(url: str, *settings: str) -> str:
    lines = "\n".join([f'nodes = ["{url}"]', *settings])
    return f"""
[[routes]]
template = "/v1/.*"
device = "inference@1.0"
{lines}

[[routes]]
template = "/held/.*"
{lines}
"""


def start(folder: Path, workers: int, url: str, drain: float = 30.0) -> NodeProcess:
    (folder / "routes.toml").write_text(routes(url))
    (folder / "hyperbeam.toml").write_text(CONFIG.format(drain=drain, limit=1_000_000))
    settings = ["--workers", str(workers), "--home", folder / "home"]
    files = ["--config", folder / "hyperbeam.toml", "--routes", folder / "routes.toml"]
    node = serve(*settings, *files).listening()
    node.wait_for(rf"workers {workers}$")
    return node


async def workers(node: NodeProcess) -> dict[str, int]:
    """The process of each worker, by its name."""
    summary = (await ask(node.port, "/~metrics@1.0/summary")).json()
    return {
        each["role"]: each["pid"]
        for each in summary["processes"]
        if each["role"].startswith("worker")
    }


async def begun(port: int, name: str, path: str = "/held/x") -> AsyncIterator[Reply]:
    """A stream that has its first event and stands."""
    stream = follow(port, path, {"stream": True, "model": "m", "messages": [], "user": name})
    async for reply in stream:
        assert reply.status == 200, reply.body
        if reply.events:
            break
    return stream


async def last(stream: AsyncIterator[Reply]) -> Reply:
    return [reply async for reply in stream][-1]


async def ended(node: NodeProcess, pid: int, streams: list[asyncio.Task[Reply]]) -> list[Reply]:
    """The replies of the streams of a worker that ended, taken out of `streams`."""

    async def all_told() -> bool:
        summary = (await ask(node.port, "/~metrics@1.0/summary")).json()
        running = [each["pid"] for each in summary["processes"]]
        # One of those in flight asked this.
        left = summary["requests"]["in_flight"] - 1
        return pid not in running and left == sum(not stream.done() for stream in streams)

    await until(all_told)
    done = [stream for stream in streams if stream.done()]
    streams[:] = [stream for stream in streams if not stream.done()]
    return [stream.result() for stream in done]


async def test_a_worker_that_ends_takes_only_its_own_streams_along(tmp_path: Path) -> None:
    async with Dummy("held", "hold") as held:
        node = start(tmp_path, 4, held.url, drain=0.2)
        asked = [begun(node.port, f"stream {number}") for number in range(STREAMS)]
        streams = [asyncio.create_task(last(one)) for one in await asyncio.gather(*asked)]
        first = await workers(node)
        assert len(first) == 4

        os.kill(first["worker 1"], signal.SIGKILL)
        killed = await ended(node, first["worker 1"], streams)
        assert {reply.error and reply.error["code"] for reply in killed} == {"worker_died"}
        os.kill(first["worker 2"], signal.SIGTERM)
        left = await ended(node, first["worker 2"], streams)
        assert {reply.error and reply.error["code"] for reply in left} == {"draining"}
        assert not any(reply.ended for reply in killed + left)

        async def replaced() -> bool:
            now = await workers(node)
            return len(now) == 4 and not {first["worker 1"], first["worker 2"]} & {*now.values()}

        await until(replaced)
        now = await workers(node)
        assert [now[f"worker {n}"] for n in (3, 4)] == [first[f"worker {n}"] for n in (3, 4)]
        held.release.set()
        rest = await asyncio.gather(*streams)
        assert rest
        assert all(reply.good for reply in rest)
        assert len(killed) + len(left) + len(rest) == STREAMS
        assert node.stop() == 0
        assert any("worker 1 (process" in line and "SIGKILL" in line for line in node.lines)
