"""The same call once, over a node and by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hyperbeam import BadRequest, Stream, Unavailable
from hyperbeam.faults import DeviceFault
from hyperbeam.grouping import Groups, same_call
from hyperbeam.node import Node

SLOW = '''
import asyncio

from hyperbeam import BadRequest, Device, Stream, key
from hyperbeam.grouping import same_call


class Slow(Device):
    """Answers when it is let to."""

    name = "slow@1.0"
    grouper = staticmethod(same_call)

    def __init__(self, node, config=None):
        super().__init__(node, config)
        self.calls = 0
        self.cancelled = 0
        self.began = asyncio.Event()
        self.let = asyncio.Event()

    async def answer(self):
        self.calls += 1
        self.began.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.calls

    @key
    async def ask(self, base, request):
        return {"n": await self.answer(), "list": []}

    @key
    async def fail(self, base, request):
        await self.answer()
        raise BadRequest("no")

    @key
    async def end(self, base, request):
        await self.answer()
        raise asyncio.CancelledError

    @key
    async def again(self, base, request):
        self.calls += 1
        return await self.node.resolve(base, {"path": "again", "priv": request.get("priv")})


class Lists(Slow):
    name = "lists@1.0"
    grouper = staticmethod(lambda called, base, request: [called])


class Alone(Slow):
    name = "alone@1.0"
    grouper = None


class Signed(Slow):
    name = "signed@1.0"
    sealed = True
'''


@pytest.fixture
async def node(start_node: Any, tmp_path: Path) -> Node:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    node: Node = await start_node(device_path=[str(folder)])
    return node


def begin(node: Node, device: str, key: str = "ask", **more: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(_ask(node, device, key, more))


async def _ask(node: Node, device: str, key: str, more: dict[str, Any]) -> Any:
    return await node.resolve({"device": device}, {"path": key, **more})


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def calls(node: Node, device: str, *asked: dict[str, Any]) -> int:
    """How many executions those requests have, asked at once."""
    slow: Any = node.device(device)
    tasks = [begin(node, device, **one) for one in asked]
    await settle()
    slow.let.set()
    await asyncio.gather(*tasks)
    return int(slow.calls)


async def test_the_same_call_is_made_once(node: Node) -> None:
    assert await calls(node, "slow@1.0", *[{"x": "1"}] * 5) == 1


async def test_later_it_is_made_again(node: Node) -> None:
    assert await calls(node, "slow@1.0", {}) == 1
    assert await calls(node, "slow@1.0", {}) == 2


@pytest.mark.parametrize("device", ["alone@1.0", "signed@1.0"])
async def test_others_are_not_grouped(node: Node, device: str) -> None:
    assert await calls(node, device, {}, {}) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"x": "2"},
        {"x": "1", "priv": {"client": "10.0.0.9"}},
        {"x": "1", "priv": {"headers": {"authorization": "Bearer a"}}},
        {"x": "1", "priv": {"signers": ("A",)}},
        {"x": "1", "priv": {"request-headers": {"x"}}},
    ],
)
async def test_what_is_not_the_same_is_not_shared(node: Node, other: dict[str, Any]) -> None:
    assert await calls(node, "slow@1.0", {"x": "1"}, other, other) == 2


async def test_each_caller_has_its_own_answer(node: Node) -> None:
    slow: Any = node.device("slow@1.0")
    tasks = [begin(node, "slow@1.0") for _ in range(2)]
    await slow.began.wait()
    slow.let.set()
    first, second = await asyncio.gather(*tasks)
    first["mine"] = True
    first["list"].append("mine")
    assert second == {"n": 1, "list": []}


@pytest.mark.parametrize(("called", "error"), [("fail", BadRequest), ("end", DeviceFault)])
async def test_an_error_is_everybodys(node: Node, called: str, error: type[Exception]) -> None:
    """Also a cancellation of the device's own."""
    slow: Any = node.device("slow@1.0")
    tasks = [begin(node, "slow@1.0", called) for _ in range(3)]
    await slow.began.wait()
    slow.let.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [error] * 3
    if called == "fail":
        assert slow.calls == 1


async def test_a_name_that_can_name_nothing_is_the_devices_fault(node: Node) -> None:
    with pytest.raises(DeviceFault, match=r"lists@1\.0\.grouper gives a list for ask"):
        await begin(node, "lists@1.0")


@pytest.mark.parametrize("leaving", [0, 1])
async def test_one_that_leaves_takes_nothing_from_the_others(node: Node, leaving: int) -> None:
    slow: Any = node.device("slow@1.0")
    tasks = [begin(node, "slow@1.0") for _ in range(2)]
    await slow.began.wait()
    await settle()
    tasks[leaving].cancel()
    await settle()
    assert (tasks[leaving].cancelled(), slow.cancelled) == (True, 0)
    slow.let.set()
    assert (await tasks[1 - leaving])["n"] == 1


async def test_with_the_last_one_it_is_cancelled_and_the_next_begins_anew(node: Node) -> None:
    slow: Any = node.device("slow@1.0")
    tasks = [begin(node, "slow@1.0") for _ in range(3)]
    await slow.began.wait()
    await settle()
    for task in tasks:
        task.cancel()
    await settle()
    assert slow.cancelled == 1
    slow.let.set()
    assert (await begin(node, "slow@1.0"))["n"] == 2


async def test_a_call_of_itself_does_not_wait_for_itself(node: Node) -> None:
    with pytest.raises(BadRequest, match="deep"):
        await begin(node, "slow@1.0", "again")


async def test_calls_that_wait_for_each_other_go_on() -> None:
    groups = Groups()
    begun: dict[str, asyncio.Event] = {"a": asyncio.Event(), "b": asyncio.Event()}
    depth = 0

    def call(name: str, other: str) -> Callable[[], Awaitable[str]]:
        async def start() -> str:
            nonlocal depth
            depth += 1
            begun[name].set()
            await begun[other].wait()
            if depth > 3:
                return "end"
            return name + await groups.run(other, call(other, name))

        return start

    answers = await asyncio.gather(groups.run("a", call("a", "b")), groups.run("b", call("b", "a")))
    assert all(answer.endswith("end") for answer in answers)


class Source:
    def __init__(self) -> None:
        self.closed = False

    def __aiter__(self) -> "Source":
        return self

    async def __anext__(self) -> bytes:
        return b"x"

    async def aclose(self) -> None:
        self.closed = True


async def test_a_stream_goes_to_one_and_the_others_start_anew() -> None:
    groups = Groups()
    streams: list[Stream] = []

    async def start() -> Stream:
        await asyncio.sleep(0)
        streams.append(Stream(Source()))
        return streams[-1]

    answers = await asyncio.gather(*[groups.run("a", start) for _ in range(3)])
    assert len({id(answer) for answer in answers}) == len(streams) == 3


async def test_a_stream_that_nobody_waits_for_any_more_is_closed() -> None:
    groups = Groups()
    source = Source()
    began = asyncio.Event()

    async def start() -> Stream:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Stream(source)
        raise AssertionError

    task = asyncio.create_task(groups.run("a", start))
    await began.wait()
    task.cancel()
    await settle()
    assert source.closed


async def test_an_execution_that_gives_itself_up_is_said() -> None:
    async def start() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Unavailable):
        await Groups().run("a", start)


def test_what_has_no_id_has_no_group() -> None:
    assert same_call("a", {"x": object()}, {}) is None
    assert same_call("a", {"x": 1}, {"y": 1}) == same_call("a", {"x": 1}, {"y": 1, "path": "a"})
