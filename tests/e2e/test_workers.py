"""Several worker processes: one dies, one is told to leave, all take new settings."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hyperbeam.verify import checkpoint
from hyperbeam.verify.merkle import verify_consistency

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


CHAT, HELD = "/v1/chat/completions", "/v1/completions"


def routes(chat: str, held: str) -> str:
    """Chat to one backend, completions to another, both by inference@1.0."""
    return f"""
[[routes]]
template = "{CHAT}"
device = "inference@1.0"
nodes = ["{chat}"]

[[routes]]
template = "{HELD}"
device = "inference@1.0"
nodes = ["{held}"]
"""


def start(folder: Path, workers: int, table: str, drain: float = 30.0) -> NodeProcess:
    (folder / "routes.toml").write_text(table)
    (folder / "hyperbeam.toml").write_text(CONFIG.format(drain=drain, limit=1_000_000))
    files: list[str | Path] = ["--config", folder / "hyperbeam.toml"]
    files += ["--routes", folder / "routes.toml", "--home", folder / "home"]
    node = serve("--workers", str(workers), *files).listening()
    node.wait_for(rf"workers {workers}$")
    return node


async def workers(node: NodeProcess) -> dict[int, str]:
    """The name of each worker, by its process."""
    summary = (await ask(node.port, "/~metrics@1.0/summary")).json()
    processes = {each["pid"]: each["role"] for each in summary["processes"]}
    return {pid: role for pid, role in processes.items() if role.startswith("worker")}


async def begun(port: int, name: str) -> AsyncIterator[Reply]:
    """A stream that has its first event and stands."""
    stream = follow(port, HELD, {"stream": True, "model": "m", "prompt": "p", "user": name})
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
        node = start(tmp_path, 4, routes(held.url, held.url), drain=0.2)
        asked = [begun(node.port, f"stream {number}") for number in range(STREAMS)]
        streams = [asyncio.create_task(last(one)) for one in await asyncio.gather(*asked)]
        one, two, *others = first = await workers(node)
        assert sorted(first.values()) == [f"worker {number}" for number in range(1, 5)]

        os.kill(one, signal.SIGKILL)
        killed = await ended(node, one, streams)
        assert {reply.error and reply.error["code"] for reply in killed} == {"worker_died"}
        os.kill(two, signal.SIGTERM)
        left = await ended(node, two, streams)
        assert {reply.error and reply.error["code"] for reply in left} == {"draining"}
        assert not any(reply.ended for reply in killed + left)

        async def replaced() -> bool:
            return sorted((await workers(node)).values()) == sorted(first.values())

        await until(replaced)
        assert {*others} < {*await workers(node)}
        held.release.set()
        rest = await asyncio.gather(*streams)
        assert rest
        assert all(reply.good for reply in rest)
        assert len(killed) + len(left) + len(rest) == STREAMS
        assert node.stop() == 0
        assert any(f"(process {one}) was killed by SIGKILL" in line for line in node.lines)


async def chat(node: NodeProcess, name: str = "") -> Reply:
    messages = [{"role": "user", "content": "Hello"}]
    return await ask(node.port, CHAT, {"model": "m", "messages": messages, "user": name})


async def receipt(node: NodeProcess, reply: Reply) -> dict[str, Any]:
    """A receipt asked for at once, whichever worker has it and whichever is asked."""
    found = await ask(node.port, f"/~inference@1.0/receipt/{reply.headers['x-receipt-id']}")
    assert found.status == 200, found.body
    value: dict[str, Any] = found.json()
    return value


async def keysets(node: NodeProcess) -> set[str]:
    """The key sets that some answers, of whichever workers, are signed with."""
    replies = [await chat(node) for _ in range(8)]
    assert all(reply.good for reply in replies)
    return {(await receipt(node, reply))["keyset"] for reply in replies}


async def head(node: NodeProcess) -> checkpoint.Checkpoint:
    """The log's head, which has every receipt of before."""
    reply = await ask(node.port, "/~receipt-log@1.0/head", headers={"accept": "text/plain"})
    return checkpoint.parse(reply.body).checkpoint


async def test_workers_share_keys_routes_settings_and_the_log(tmp_path: Path) -> None:
    async with Dummy("one") as one, Dummy("two") as two, Dummy("held", "hold") as held:
        node = start(tmp_path, 2, routes(one.url, held.url))
        pids = await workers(node)
        (first,) = await keysets(node)
        stream = await begun(node.port, "held")
        before = await head(node)
        assert before.size == 8

        # Routes: a new key set with them, in every worker; what began before stays as it began.
        (tmp_path / "routes.toml").write_text(routes(two.url, held.url))

        async def changed() -> bool:
            return "two" in (await chat(node)).text

        await until(changed)
        (second,) = await keysets(node)
        assert second != first

        # Settings: no request fails, and the stream that stands goes on in its old worker.
        failed: list[Reply] = []
        done = asyncio.Event()

        async def client() -> None:
            while not done.is_set():
                reply = await chat(node)
                if not reply.good:
                    failed.append(reply)

        clients = [asyncio.create_task(client()) for _ in range(4)]
        config = tmp_path / "hyperbeam.toml"

        def reload(limit: int | str, more: str = "") -> None:
            config.write_text(CONFIG.format(drain=30, limit=limit) + more)
            node.signal(signal.SIGHUP)

        reload('"much"')
        await asyncio.to_thread(node.wait_for, "not reloaded, all goes on as it was: .*body_limit")
        assert await workers(node) == pids
        reload(1000, "[receipts]\nkeep = 7\n")
        await asyncio.to_thread(node.wait_for, r"needs a restart: receipts\.keep$")
        await asyncio.to_thread(node.wait_for, "reloaded: 2 workers")
        done.set()
        await asyncio.gather(*clients)
        assert not failed
        assert (await ask(node.port, CHAT, {"messages": ["x" * 1000]})).status == 413
        (third,) = await keysets(node)
        assert third not in (first, second)
        now = (await workers(node)).keys() - pids.keys()
        assert len(now) == 2

        held.release.set()
        old = await last(stream)
        assert old.good
        assert (await receipt(node, old))["keyset"] == first

        # The log of all of them only grew.
        after = await head(node)
        path = f"/~receipt-log@1.0/consistency?old={before.size}&new={after.size}"
        proof = [bytes.fromhex(item) for item in (await ask(node.port, path)).json()["path"]]
        roots = before.root, after.root
        assert verify_consistency(before.size, after.size, *roots, proof)
        assert after.size > 24

        # Without the supervisor the workers end, and give the port free.
        node.signal(signal.SIGKILL)
        await asyncio.to_thread(node.wait)

        async def free() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", node.port)) != 0

        await until(free)

        async def gone() -> bool:
            return not any(alive(pid) for pid in now)

        await until(gone)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
