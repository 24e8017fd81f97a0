"""routes.toml saved again and again while the node answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from .dummies import Dummy
from .load import Reply, ask, follow
from .process import NodeProcess
from .test_failover import INFERENCE, RELAY, start, table, until

SAVES = 50
ROUTE = '[[routes]]\ntemplate = "/v1/.*"\n'
BROKEN = [
    f'{ROUTE}nodes = ["http://127.0.0.1:99999"]\n',
    f'{ROUTE}nodes = ["http://127.0.0.1:1"]\ncolour = 1\n',
    '[[routes]]\ntemplate = "/v1/(.*"\nnodes = ["http://127.0.0.1:1"]\n',
    f'{ROUTE}nodes = ["http://127.0.0.1:1"]\nstrategy = "Best"\n',
    f'{ROUTE}nodes = ["http://127.0.0.1:1"',
]


def save(file: Path, text: str, in_place: bool) -> None:
    """As editors do: over the old file, or a new one put in its place."""
    if in_place:
        file.write_text(text)
    else:
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)


async def status_error(node: NodeProcess) -> str:
    status = (await ask(node.port, "/~router@1.0/status")).json()
    error: str = status["error"]
    return error


async def begun(port: int, name: str) -> AsyncIterator[Reply]:
    """A stream that has its first event and stands."""
    stream = follow(port, "/held/x", {"stream": True, "user": name})
    async for reply in stream:
        if reply.events:
            break
    return stream


async def test_a_table_saved_fifty_times_under_load(tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    async with Dummy("one") as one, Dummy("two") as two, Dummy("held", "hold") as held:
        aside = f'\n[[routes]]\ntemplate = "/held/.*"\nnodes = ["{held.url}"]\n'
        node = start(tmp_path, table([one, two]) + aside)
        streams = [await begun(node.port, f"held {number}") for number in range(4)]
        replies: list[Reply] = []
        done = asyncio.Event()

        async def client(path: str) -> None:
            while not done.is_set():
                value = {"stream": len(replies) % 2 == 0, "messages": [], "user": "u"}
                replies.append(await ask(node.port, path, value))

        async def more(wanted: int) -> bool:
            return len(replies) >= wanted

        async def taken(number: int) -> bool:
            routes = (await ask(node.port, "/~router@1.0/routes")).json()
            return [route.get("priority", 0) for route in routes] == [number, number]

        clients = [asyncio.create_task(client(path)) for path in (RELAY, INFERENCE) * 8]
        for number in range(SAVES):
            broken = BROKEN[number // 2 % len(BROKEN)]
            text = broken if number % 2 else table([one, two], f"priority = {number}")
            save(file, text, in_place=number // 2 % 2 == 0)
            wanted = len(replies) + len(clients)
            await until(partial(more, wanted))
        for number, broken in enumerate(BROKEN, 100):
            save(file, table([one, two], f"priority = {number}"), in_place=True)
            await until(partial(taken, number))
            assert await status_error(node) == ""
            save(file, broken, in_place=False)
            await until(partial(status_error, node))
            assert str(file) in await status_error(node)
            assert await taken(number)
        done.set()
        await asyncio.gather(*clients)
        assert [reply.body for reply in replies if not reply.good] == []

        held.release.set()
        for stream in streams:
            assert [reply async for reply in stream][-1].good
        assert node.stop() == 0
