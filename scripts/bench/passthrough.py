"""Measures the relay: the node's CPU time for a plain request and for a streamed chunk.

CPU time hardly moves with the noise of a machine; requests a second do. The node runs
on one core and all else on another, where the system can pin processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from backend import CHUNKS

HERE = Path(__file__).parent
HYPERBEAM = Path(sys.executable).with_name("hyperbeam")
ROUNDS = 3
CONCURRENCY = 16
REQUESTS = {"plain": 2000, "stream": 150}
BODY = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(command: list[str], said: str, core: int) -> Iterator[psutil.Process]:
    """A child that has printed `said`, on one core."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if said in line:
                    break
            process = psutil.Process(child.pid)
            pin(process, core)
            yield process
        finally:
            child.terminate()


def pin(process: psutil.Process, core: int) -> None:
    if hasattr(process, "cpu_affinity") and (os.cpu_count() or 1) > 1:
        process.cpu_affinity([core])


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def ask(port: int, request: bytes, count: int) -> None:
    """`count` requests one after another on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        if b"transfer-encoding: chunked" in head:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
    writer.close()


async def load(port: int, mode: str) -> float:
    """All requests of a round; seconds."""
    body = json.dumps({**BODY, "stream": mode == "stream"}).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\naccept: */*\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    began = time.perf_counter()
    each = REQUESTS[mode] // CONCURRENCY
    await asyncio.gather(*(ask(port, request, each) for _ in range(CONCURRENCY)))
    return time.perf_counter() - began


def main() -> None:
    pin(psutil.Process(), 1)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        routes = Path(folder) / "routes.toml"
        routes.write_text(f'[[routes]]\ntemplate = "/v1/.*"\nnode = "http://127.0.0.1:{port}"\n')
        own = free_port()
        serve = [str(HYPERBEAM), "serve", "--port", str(own), "--home", f"{folder}/home"]
        backend = [sys.executable, str(HERE / "backend.py"), str(port)]
        with (
            started(backend, "ready", 1),
            started([*serve, "--routes", str(routes)], "listens", 0) as node,
        ):
            print(f"{'':8}{'requests/s':>12}{'CPU us/request':>16}{'CPU us/chunk':>14}{'MB':>6}")
            for mode in REQUESTS:
                rates, costs = [], []
                for _ in range(ROUNDS):
                    before = cpu_seconds(node)
                    seconds = asyncio.run(load(own, mode))
                    count = REQUESTS[mode] // CONCURRENCY * CONCURRENCY
                    rates.append(count / seconds)
                    costs.append((cpu_seconds(node) - before) / count * 1e6)
                cost = statistics.median(costs)
                chunk = f"{cost / CHUNKS:.1f}" if mode == "stream" else ""
                memory = node.memory_info().rss / 2**20
                print(
                    f"{mode:8}{statistics.median(rates):12.0f}{cost:16.0f}{chunk:>14}{memory:6.0f}"
                )


if __name__ == "__main__":
    main()
