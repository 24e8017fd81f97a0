"""A device of which there is one, called from another process."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hyperbeam import Device, HyperbeamError, Message, NotFound, Stream, key
from hyperbeam.about import about
from hyperbeam.config import load
from hyperbeam.node import Node
from hyperbeam.serve.channel import Channel
from hyperbeam.serve.proxy import CALL, DESCRIBE, answer_call, answer_describe, proxy


class Counter(Device):
    """Counts."""

    name = "counter@1.0"
    single = True

    def __init__(self, node: Node, config: Any = None) -> None:
        super().__init__(node, config)
        self.count = 0
        self.closed = False

    @key(name="add-up", last=True)
    async def add_up(self, base: Any, request: Message) -> Message:
        """Adds `n`."""
        self.count += request["n"]
        return {"count": self.count, "secret": request["priv"]["secret"], "base": base}

    @key
    def refuse(self, base: Any, request: Message) -> None:
        raise NotFound("thing", "no thing here", param="thing")

    @key
    async def stream(self, base: Any, request: Message) -> Stream:
        return Stream(self)

    @key
    async def odd(self, base: Any, request: Message) -> Any:
        return object()

    @key
    def exit(self, base: Any, request: Message) -> None:
        raise SystemExit(3)

    def __aiter__(self) -> "Counter":
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True

    async def default(self, called: str, base: Any, request: Message) -> str:
        """Any other."""
        return f"any {called}"

    def describe(self) -> Message:
        return {"count": self.count}


class Ends:
    """A worker's and the supervisor's node, joined by a channel; neither is started."""

    def __init__(self, home: Path) -> None:
        config = load(environment={}, flags={"home": str(home), "store.kind": "memory"})
        self.worker, self.supervisor = Node(config, "worker"), Node(config, "supervisor")
        self.device = self.supervisor.devices[Counter.name] = Counter(self.supervisor)
        one, other = socket.socketpair()
        self.asking = Channel(one, {}, {})
        self.answering = Channel(
            other,
            {
                CALL: lambda asked: answer_call(self.supervisor, asked),
                DESCRIBE: lambda name: answer_describe(self.supervisor, name),
            },
            {},
        )
        made = proxy(Counter, self.asking.call)(self.worker)
        self.proxy = self.worker.devices[Counter.name] = made


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[Ends]:
    ends = Ends(tmp_path)
    await ends.asking.open()
    await ends.answering.open()
    yield ends
    await ends.asking.close()
    await ends.answering.close()


async def test_keys_are_called_where_the_device_is(ends: Ends) -> None:
    for count in (7, 14):
        request = {"path": "/~counter@1.0/add-up", "n": 7, "priv": {"secret": {"a": b"\xff"}}}
        result = await ends.worker.resolve({"x": 2**70}, request)
        assert (result["count"], result["secret"]) == (count, {"a": b"\xff"})
        assert result["base"]["x"] == 2**70
    assert ends.device.count == 14
    assert await ends.proxy.described() == {"count": 14}
    assert await ends.worker.resolve(None, "/~counter@1.0/whatever") == "any whatever"


async def test_it_says_of_itself_what_the_device_does(ends: Ends) -> None:
    said, meant = type(ends.proxy), Counter
    assert (said.name, said.__doc__, said.single) == (meant.name, meant.__doc__, True)
    assert about(said) == about(meant)
    assert about(said)["default"] == "Any other."
    assert {key.name: (key.doc, key.last) for key in said.keys.values()} == {
        key.name: (key.doc, key.last) for key in meant.keys.values()
    }


async def test_refusals_come_back_and_streams_do_not(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFound, match="no thing here") as refused:
        await ends.worker.resolve(None, "/~counter@1.0/refuse")
    assert refused.value.param == "thing"
    with pytest.raises(HyperbeamError, match="internal error"):
        await ends.worker.resolve(None, "/~counter@1.0/stream")
    assert "counter@1.0/stream gives a stream, which a single device cannot" in caplog.text
    assert ends.device.closed
    for path in ("odd", "exit"):
        with pytest.raises(HyperbeamError, match="internal error"):
            await ends.worker.resolve(None, f"/~counter@1.0/{path}")
    assert "counter@1.0/odd gives an object" in caplog.text
    assert "counter@1.0/exit raises SystemExit(3)" in caplog.text
    del ends.supervisor.devices[Counter.name]
    with pytest.raises(NotFound):
        await ends.worker.resolve(None, "/~counter@1.0/refuse")
