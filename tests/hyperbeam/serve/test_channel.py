"""Values, refusals and calls between two ends of a socket pair."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.errors import (
    BadRequest,
    Forbidden,
    HyperbeamError,
    NotFound,
    Unavailable,
)
from hyperbeam.message import Atom, Link
from hyperbeam.serve import values
from hyperbeam.serve.channel import Answer, Channel, Hear
from hyperbeam.verify.checks import Malformed

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.binary(max_size=40)
    | st.text(st.characters(codec=None), max_size=20)
    | st.text(max_size=20).map(Atom)
    | st.just(Link("a" * 43))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(st.text(max_size=5), max_size=3)
    ),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Equal, and of the same types all through: an Atom is no str, True is no 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@settings(max_examples=150)
@given(VALUES)
def test_values_arrive_as_they_are(value: Any) -> None:
    assert alike(values.unpack(values.pack(value)), value)


def test_what_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="a object cannot be given"):
        values.pack({"a": [object()]})


@pytest.mark.parametrize(
    "error",
    [
        NotFound("name", "no such thing", param="p"),
        Unavailable("later", retry_after=7, error="loading"),
        Forbidden("no", headers={"x-a": "b"}),
        HyperbeamError("teapot", status=418, error="teapot"),
    ],
)
def test_refusals_keep_their_kind(error: HyperbeamError) -> None:
    said = values.unpack(values.pack(values.describe_error(error)))
    made = values.error_of(said)
    assert type(made) is type(error)
    for name in ("status", "error", "detail", "param", "headers"):
        assert getattr(made, name) == getattr(error, name)


def test_a_refusal_of_a_kind_of_its_own_arrives_as_the_kind_above_it() -> None:
    made = values.error_of(values.describe_error(Malformed("bad", "raw-malformed")))
    assert type(made) is BadRequest
    assert made.detail == "bad"


async def _nothing(value: Any) -> Any:
    return value


@asynccontextmanager
async def pair(
    answers: Mapping[str, Answer], news: Mapping[str, Hear] | None = None
) -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    asking, answering = Channel(one, {}, {}), Channel(other, answers, news or {})
    await asking.open()
    await answering.open()
    try:
        yield asking, answering
    finally:
        await asking.close()
        await answering.close()


async def test_calls_at_the_same_time_and_large_values() -> None:
    release = asyncio.Event()

    async def held(value: Any) -> Any:
        await release.wait()
        return value

    async with pair({"held": held, "now": _nothing}) as (asking, _):
        first = asyncio.create_task(asking.call("held", 1))
        large = {"body": bytes(8 << 20), "n": 2**70}
        assert await asking.call("now", large) == large
        assert not first.done()
        release.set()
        assert await first == 1


async def test_refusals_and_faults_come_back(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(value: Any) -> Any:
        raise NotFound("x", "no x here", error="model_not_found")

    async def fault(value: Any) -> Any:
        raise ZeroDivisionError("secret")

    async def unsendable(value: Any) -> Any:
        return object()

    answers = {"refuse": refuse, "fault": fault, "unsendable": unsendable}
    async with pair(answers) as (asking, _):
        with pytest.raises(NotFound, match="no x here") as refused:
            await asking.call("refuse")
        assert refused.value.error == "model_not_found"
        for name in ("fault", "unsendable", "no such name"):
            with pytest.raises(HyperbeamError, match=r"internal error [0-9a-f]{16}: ") as faulted:
                await asking.call(name)
            assert faulted.value.status == 500
    assert "secret" in caplog.text


async def test_who_gives_up_cancels_the_work_at_the_other_end() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def work(value: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with pair({"work": work, "now": _nothing}) as (asking, answering):
        task = asyncio.create_task(asking.call("work"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(cancelled.wait(), 5)
        assert await asking.call("now", 3) == 3

        began.clear()
        cancelled.clear()
        task = asyncio.create_task(asking.call("work"))
        await began.wait()
        await answering.close()
        with pytest.raises(Unavailable):
            await task
        await asyncio.wait_for(cancelled.wait(), 5)
        await asyncio.wait_for(asking.ended.wait(), 5)
        with pytest.raises(Unavailable):
            await asking.call("now")


async def test_news_is_heard_in_order_and_before_a_later_result() -> None:
    heard: list[Any] = []
    one, other = socket.socketpair()
    hearing = Channel(one, {}, {"n": heard.append})
    telling: Channel

    async def tell(value: Any) -> Any:
        for n in range(50):
            telling.tell("n", n)
        return "told"

    telling = Channel(other, {"tell": tell}, {})
    await hearing.open()
    await telling.open()
    assert await hearing.call("tell") == "told"
    assert heard == list(range(50))
    await hearing.close()
    await telling.close()


async def test_an_end_that_talks_nonsense_is_left(caplog: pytest.LogCaptureFixture) -> None:
    for nonsense in (struct.pack(">I", 1 << 31), struct.pack(">I", 2) + b"\xc1\xc1"):
        one, other = socket.socketpair()
        channel = Channel(one, {}, {})
        await channel.open()
        with contextlib.closing(other):
            other.send(nonsense)
            await asyncio.wait_for(channel.ended.wait(), 5)
        await channel.close()
    assert caplog.text.count("the channel to another process of the node fails") == 2
