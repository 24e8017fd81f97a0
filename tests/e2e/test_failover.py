"""Backends that die, crawl, break and refuse, under 32 clients of the running node."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from .dummies import Behaviour, Dummy, DummyProcess, free_port
from .load import Reply, ask
from .process import NodeProcess, serve

CLIENTS = 32
WAIT = 20.0
RELAY, INFERENCE = "/raw/chat/completions", "/v1/chat/completions"
HEALTH = 'health = { path = "/health", interval = 0.1, unhealthy = 1 }'


class Backend(Protocol):
    name: str

    @property
    def url(self) -> str: ...
    @property
    def started(self) -> list[str]: ...


def table(nodes: Sequence[Any], *settings: str) -> str:
    """One route through inference@1.0 and one that relays, to the same nodes."""
    prefixes = ", ".join(f'{{ prefix = "{node.url}" }}' for node in nodes)
    lines = "\n".join([f"nodes = [{prefixes}]", *settings])
    return f"""
[[routes]]
template = "/v1/.*"
device = "inference@1.0"
{lines}

[[routes]]
template = "/raw/.*"
{lines}
"""


def start(tmp_path: Path, routes: str) -> NodeProcess:
    file = tmp_path / "routes.toml"
    file.write_text(routes)
    return serve("--home", tmp_path / "home", "--routes", file).listening()


async def until(found: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + WAIT
    while not await found():
        assert time.monotonic() < deadline, "it does not come about"
        await asyncio.sleep(0.02)


async def states(node: NodeProcess) -> dict[str, str]:
    """The state of every backend, by its address."""
    reply = await ask(node.port, "/~router@1.0/nodes")
    return {each["id"]: each["state"] for each in reply.json()}


async def crowd(
    port: int, path: str, number: int, when: Callable[[int], object] = lambda done: None
) -> dict[str, Reply]:
    """`number` requests of 32 clients at a time, every other one streamed; the replies by id.

    `when` is told after each how many are done.
    """
    replies: dict[str, Reply] = {}
    waiting = iter(range(number))

    async def client() -> None:
        for turn in waiting:
            name = f"{path[1]}{turn}"
            messages = [{"role": "user", "content": f"question {turn}"}]
            value = {"model": "m", "user": name, "messages": messages, "stream": turn % 2 == 0}
            replies[name] = await ask(port, path, value, headers={"x-test-id": name})
            when(len(replies))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return replies


def runs(*backends: Backend) -> Counter[str]:
    return Counter(name for each in backends for name in each.started)


@pytest.mark.parametrize("path", [RELAY, INFERENCE])
async def test_a_route_that_may_repeat_hides_every_failure_before_the_first_byte(
    tmp_path: Path, path: str
) -> None:
    async with Dummy("slow", "slow") as slow, Dummy("broken", "fail") as broken:
        with DummyProcess(tmp_path, "mortal") as mortal:
            routes = table([mortal, slow, broken], "idempotent = true", HEALTH)
            node = start(tmp_path, routes)

            def kill(done: int) -> None:
                if done == 60:
                    mortal.kill()

            replies = await crowd(node.port, path, 160, kill)
            cut = [reply for reply in replies.values() if not reply.good]
            for reply in cut:
                # A stream that had begun on the one that was killed: told, and not as if whole.
                assert reply.streamed and reply.events[-1] is not None and reply.error
                assert "mortal".startswith(reply.text[:6])
            assert len(cut) <= CLIENTS and broken.started and slow.started and mortal.started
            for name, reply in replies.items():
                assert reply in cut or reply.text.endswith(f"answers {name}")

            async def left() -> bool:
                return (await states(node))[mortal.url] == "down"

            async def back() -> bool:
                return (await states(node))[mortal.url] == "up"

            await until(left)
            broken.behaviour = "normal"
            assert all(reply.good for reply in (await crowd(node.port, path, 40)).values())
            mortal.start()
            await until(back)
            before = len(mortal.started)
            assert all(reply.good for reply in (await crowd(node.port, path, 64)).values())
            assert len(mortal.started) > before
            assert node.stop() == 0


@pytest.mark.parametrize("path", [RELAY, INFERENCE])
async def test_what_a_backend_may_have_begun_runs_once(tmp_path: Path, path: str) -> None:
    async with (
        Dummy("slow", "slow") as slow,
        Dummy("dying", "die") as dying,
        Dummy("cutting", "cut") as cutting,
    ):
        with DummyProcess(tmp_path, "mortal") as mortal:
            node = start(tmp_path, table([mortal, slow, dying, cutting], "retries = 3", HEALTH))
            replies = await crowd(
                node.port, path, 160, lambda done: mortal.kill() if done == 40 else None
            )
            assert set(runs(mortal, slow, dying, cutting).values()) == {1}
            at_fault = runs(mortal, dying, cutting)
            for name, reply in replies.items():
                if reply.good:
                    assert reply.text.endswith(f"answers {name}")
                    continue
                # What was sent to a process that was killed may have been read, or not.
                unread = "backend_died" in repr(reply)
                assert name in at_fault or unread, (name, reply)
                # Told as a failure, be it by a status, an event or a body cut short.
                assert reply.error or not reply.ended
                assert not reply.streamed or reply.events[-1] is not None
            bad = {name for name, reply in replies.items() if not reply.good}
            assert dying.started and {*dying.started} <= bad
            assert cutting.started and {*cutting.started} <= bad
            assert node.stop() == 0


@pytest.mark.parametrize("path", [RELAY, INFERENCE])
async def test_what_a_backend_refuses_is_asked_of_another(tmp_path: Path, path: str) -> None:
    event: Behaviour = "error-event" if path == INFERENCE else "full"
    async with Dummy("good") as good, Dummy("full", "full") as full, Dummy("q", event) as queue:
        gone = Dummy("gone", port=free_port())
        node = start(tmp_path, table([gone, full, queue, good], "retries = 3"))
        replies = await crowd(node.port, path, 96)
        for name, reply in replies.items():
            assert reply.good, (reply.status, reply.body)
            assert reply.text == f"good answers {name}"
        assert full.started and queue.started
        assert set(runs(good).values()) == {1} and len(good.started) == 96
        async with gone:

            async def taken() -> bool:
                await crowd(node.port, path, 32)
                return bool(gone.started)

            await until(taken)
        assert node.stop() == 0


async def test_all_that_remains_to_say_is_said(tmp_path: Path) -> None:
    async with Dummy("one", "full") as one, Dummy("two", "full") as two:
        node = start(tmp_path, table([one, two]))
        for path in (RELAY, INFERENCE):
            reply = await ask(node.port, path, {"messages": [], "user": path})
            assert reply.status == 503 and reply.error
            assert int(reply.headers["retry-after"]) >= 1
            assert len(one.started) + len(two.started) <= 4
        assert node.stop() == 0


def conversation(number: int, turns: int) -> list[dict[str, str]]:
    said = [{"role": "system", "content": "Answer briefly."}]
    for turn in range(turns):
        said += [
            {"role": "user", "content": f"conversation {number}, question {turn}"},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return said[:-1]


async def test_a_conversation_keeps_its_node_while_others_come_and_go(tmp_path: Path) -> None:
    dummies = [await Dummy(f"d{number}").start() for number in range(5)]
    strategy = 'strategy = "Prefix-Affinity"'
    node = start(tmp_path, table(dummies[:4], strategy))

    async def placed(turns: int) -> dict[int, str]:
        async def ask_one(number: int) -> str:
            value = {"messages": conversation(number, turns), "user": f"{number}"}
            reply = await ask(node.port, INFERENCE if number % 2 else RELAY, value)
            assert reply.good, reply.body
            return reply.text.split()[0]

        return {number: await ask_one(number) for number in range(40)}

    async def use(nodes: list[Dummy]) -> None:
        (tmp_path / "routes.toml").write_text(table(nodes, strategy))

        async def taken() -> bool:
            return {*await states(node)} == {each.url for each in nodes}

        await until(taken)

    first = await placed(1)
    assert len(set(first.values())) > 1
    assert await placed(2) == first
    await use(dummies)
    more = await placed(3)
    moved = {number for number in first if more[number] != first[number]}
    assert {more[number] for number in moved} <= {"d4"} and len(moved) < 20
    await use(dummies[1:])
    fewer = await placed(4)
    assert {number for number in more if fewer[number] != more[number]} == {
        number for number in more if more[number] == "d0"
    }
    assert node.stop() == 0
    for dummy in dummies:
        await dummy.stop()
