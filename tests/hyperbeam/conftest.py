from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hyperbeam.config import load
from hyperbeam.node import Node

StartNode = Callable[..., Awaitable[Node]]

DEVICES = '''
import asyncio

from hyperbeam import Device, NotFound, Stream, key


class Echo(Device):
    """Gives back what it was called with."""

    name = "echo@1.0"

    @key
    async def request(self, base, request):
        return {k: v for k, v in request.items() if k != "priv"}

    @key
    async def context(self, base, request):
        return request["priv"]

    @key
    def thread(self, base, request):
        import threading

        return threading.current_thread() is threading.main_thread()

    @key
    async def base(self, base, request):
        return base

    @key(rest=True)
    async def all(self, base, request):
        return request["rest"]

    @key
    async def stream(self, base, request):
        async def chunks():
            yield b"data: 1\\n\\n"

        return Stream(chunks())

    @key
    async def value(self, base, request):
        return 7

    @key(last=True)
    async def end(self, base, request):
        return {"end": True}

    @key(last=False)
    async def begin(self, base, request):
        return base

    @key
    def fault(self, base, request):
        raise {"stop": StopIteration, "exit": SystemExit, "interrupt": KeyboardInterrupt}[
            request["kind"]
        ]

    @key
    async def async_fault(self, base, request):
        raise {"stop": StopIteration, "exit": SystemExit, "interrupt": KeyboardInterrupt}[
            request["kind"]
        ]

    @key
    async def index(self, base, request):
        return {"index": request.get("a")}


class Any(Device):
    """Answers every key."""

    name = "any@1.0"

    async def default(self, key, base, request):
        return f"any {key}"


class Strict(Device):
    """Knows one key."""

    name = "strict@1.0"

    @key
    async def known(self, base, request):
        return "known"
'''


@pytest.fixture
async def start_node(tmp_path: Path) -> AsyncIterator[StartNode]:
    """Starts nodes on free ports, each with a home of its own and the devices above."""
    folder = tmp_path / "devices"
    folder.mkdir()
    (folder / "devices.py").write_text(DEVICES)
    async with AsyncExitStack() as stack:
        count = 0

        async def start(**flags: object) -> Node:
            nonlocal count
            count += 1
            settings = {
                "home": str(tmp_path / f"home{count}"),
                "http.port": 0,
                "device_path": [str(folder)],
                **{name.replace("__", "."): value for name, value in flags.items()},
            }
            return await stack.enter_async_context(Node(load(environment={}, flags=settings)))

        yield start


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()
