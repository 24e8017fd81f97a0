"""What a device does wrong: a 500 with an id, and what and whose it is in the log."""

import asyncio
import enum
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import HyperbeamError, Link, Stream
from hyperbeam.codecs import json as json_codec
from hyperbeam.codecs import msgpack, structured
from hyperbeam.faults import DeviceFault, check, check_raised
from hyperbeam.node import Node
from hyperbeam.resolver import call

from .codecs.strategies import deep, messages, values
from .conftest import StartNode

WRONG = '''
import asyncio
import collections
import math
import types

from hyperbeam import BadRequest, Device, HyperbeamError, Stream, key


def endless():
    message = {}
    message["a"] = [message]
    return message


def deep(levels):
    message = {}
    for _ in range(levels):
        message = {"a": message}
    return message


async def ended():
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def source(*chunks):
    for chunk in chunks:
        if isinstance(chunk, BaseException):
            raise chunk
        yield chunk


RESULTS = {
    "set": lambda: {1, 2},
    "tuple": lambda: (1,),
    "object": lambda: object(),
    "bytearray": lambda: bytearray(b"x"),
    "mapping": lambda: types.MappingProxyType({"a": 1}),
    "nested": lambda: {"a": {"b": {1, 2}}},
    "listed": lambda: [1, {2}],
    "nested-tuple": lambda: {"a": (1, 2)},
    "nan": lambda: {"a": math.nan},
    "infinity": lambda: {"a": [1.0, -math.inf]},
    "large": lambda: {"a": 1 << 20_000},
    "surrogate": lambda: {"a": "\\ud800"},
    "surrogate-by-itself": lambda: "\\ud800",
    "surrogate-key": lambda: {"a": {"\\ud800": 1}},
    "case": lambda: {"Hello": 1, "hello": 2},
    "link": lambda: {"a": {"b": 1, "b+link": "A" * 43}},
    "link-case": lambda: {"A": 1, "a+link": 2},
    "endless": endless,
    "deep": lambda: deep(200),
    "integer-key": lambda: {1: 2},
    "none-key": lambda: {"a": {None: 2}},
    "private": lambda: {"priv": "junk"},
    "nested-private": lambda: {"a": {"priv": 7}},
    "headers": lambda: {"body": "x", "priv": {"reply-headers": "junk"}},
    "pair": lambda: {"body": "x", "priv": {"reply-headers": [("a", "b"), 2]}},
    "header": lambda: {"body": "x", "priv": {"reply-headers": [("a", 1)]}},
    "line-end": lambda: {"body": "x", "priv": {"reply-headers": [("a", "b\\r\\nc: d")]}},
    "status-999": lambda: {"status": 999, "body": "x"},
    "status-0": lambda: {"status": 0},
    "status-101": lambda: {"status": 101, "body": "x"},
    "status-negative": lambda: {"status": -1},
    "status-text": lambda: {"status": "abc"},
    "status-float": lambda: {"status": 404.5},
    "status-true": lambda: {"status": True},
    "status-none": lambda: {"status": None},
    "stream-status": lambda: Stream(source(b"x"), status=999),
    "stream-status-text": lambda: Stream(source(b"x"), status="200"),
    "stream-source": lambda: Stream([b"x"]),
    "stream-type": lambda: Stream(source(b"x"), content_type=None),
    "stream-type-line": lambda: Stream(source(b"x"), content_type="text/plain\\r\\na: b"),
    "stream-headers": lambda: Stream(source(b"x"), headers=[("a", "b")]),
    "stream-header": lambda: Stream(source(b"x"), headers={"a": 1}),
    "stream-header-line": lambda: Stream(source(b"x"), headers={"a": "b\\nc: d"}),
    "stream-chunk": lambda: Stream(source("text")),
    "stream-cancelled": lambda: Stream(source(asyncio.CancelledError())),
    "stream-exit": lambda: Stream(source(SystemExit(3))),
}

RAISED = {
    "cancelled": asyncio.CancelledError,
    "generator-exit": GeneratorExit,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "own": lambda: type("Own", (BaseException,), {})(),
    "refusal-status": lambda: HyperbeamError("x", status=999),
    "refusal-text": lambda: HyperbeamError("x", status="404"),
    "refusal-detail": lambda: BadRequest(7),
    "refusal-header": lambda: BadRequest("x", headers={"a": 1}),
}


class Wrong(Device):
    """Does everything wrong."""

    name = "wrong@1.0"

    @key
    async def result(self, base, request):
        return RESULTS[request["what"]]()

    @key
    def threaded(self, base, request):
        return RESULTS[request["what"]]()

    @key
    async def ends(self, base, request):
        if request["what"] == "task":
            await ended()
        raise RAISED[request["what"]]()

    @key
    def ends_threaded(self, base, request):
        raise RAISED[request["what"]]()

    async def default(self, name, base, request):
        if request["what"] in RAISED:
            raise RAISED[request["what"]]()
        return RESULTS[request["what"]]()

    @key
    async def late(self, base, request):
        last = {"chunk": "text", "exit": SystemExit(3), "cancelled": asyncio.CancelledError()}
        return Stream(source(b"data: 1\\n\\n", last[request["what"]]))

    @key
    async def within(self, base, request):
        return await self.node.resolve(base, {"path": "wrong-within", "what": "nested"})

    @key
    async def base(self, base, request):
        return base

    @key
    async def copy(self, base, request):
        return {**base, "own": 1}

    @key
    async def wrap(self, base, request):
        return {"got": [base]}

    @key
    async def asked(self, base, request):
        return {k: v for k, v in request.items() if k != "priv"}

    @key
    async def beside(self, base, request):
        return {**base, "own": {1}}

    @key
    async def subclasses(self, base, request):
        return {
            "a": {
                "dict": collections.OrderedDict(b=type("Text", (str,), {})("x")),
                "list": [type("Float", (float,), {})(1.5), type("Bytes", (bytes,), {})(b"\\xff")],
            }
        }


class Shaped(Device):
    """Its errors are no better."""

    name = "shaped@1.0"

    @key
    async def fail(self, base, request):
        raise BadRequest("no")

    def render_error(self, error):
        return {"status": error.status, "body": {1}}


class Shapeless(Shaped):
    name = "shapeless@1.0"

    def render_error(self, error):
        return "no"
'''

RESULTS = sorted(
    set(re.findall(r'^    "([a-z0-9-]+)": ', WRONG.partition("RAISED")[0], re.MULTILINE))
)
RAISED = re.findall(r'^    "([a-z-]+)": ', WRONG.partition("RAISED")[2], re.MULTILINE)
ACCEPT = [
    {"accept": "*/*"},
    {"accept": "application/json"},
    {"accept": "application/msgpack"},
    {"accept": "text/html"},
    {"accept-codec": "flat@1.0"},
    {"accept-bundle": "true"},
]


@pytest.fixture
async def wrong(start_node: StartNode, tmp_path: Path) -> Node:
    (tmp_path / "devices" / "wrong.py").write_text(WRONG)
    return await start_node()


def client_of(node: Node) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}")


Logged = Callable[[], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """Gives the errors that have been logged since it was called last."""

    def take() -> list[str]:
        lines = [one.getMessage() for one in caplog.records if one.name == "hyperbeam.http"]
        caplog.clear()
        return lines

    return take


def is_named(line: str, reply: httpx.Response, key: str) -> bool:
    """Whether an error of the log is the reply's, and says whose it is and what."""
    (id,) = re.findall(r"\b[0-9a-f]{16}\b", reply.text)
    match = re.fullmatch(rf"error {id} in GET /\S+: {re.escape(key)} (?:gives|raises) (.+)", line)
    return match is not None and len(match[1].split()) > 3


@pytest.mark.parametrize("what", RESULTS)
async def test_a_wrong_result_is_a_500_whatever_is_asked_for(
    wrong: Node, logged: Logged, what: str
) -> None:
    async with client_of(wrong) as client:
        for key in ("result", "threaded", "any-key"):
            for headers in ACCEPT:
                reply = await client.get(f"/~wrong@1.0/{key}?what={what}", headers=headers)
                assert reply.status_code == 500
                (line,) = logged()
                assert is_named(line, reply, f"wrong@1.0/{key}"), line


@pytest.mark.parametrize("what", RESULTS)
async def test_a_wrong_result_is_no_base_either(wrong: Node, logged: Logged, what: str) -> None:
    if what.startswith("stream-") and what.removeprefix("stream-") in (
        "chunk",
        "cancelled",
        "exit",
    ):
        return
    async with client_of(wrong) as client:
        reply = await client.get(f"/~wrong@1.0/result&what={what}/~message@1.0/keys")
        assert reply.status_code == 500
        (line,) = logged()
        assert is_named(line, reply, "wrong@1.0/result"), line


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("set", "gives a set: a message's values are text, bytes, int"),
        ("nested", "gives a set under 'a/b': a message's values are"),
        ("listed", "gives a set under '2': a message's values are"),
        ("nan", "gives nan under 'a': a float has to be finite"),
        ("surrogate-key", "gives a text with half a surrogate pair under 'a':"),
        ("case", "gives a message with the keys 'Hello' and 'hello': they stand for the same"),
        ("endless", "gives a dict that holds itself under 'a/1':"),
        ("integer-key", "gives a message with the key 1: an int is no text"),
        ("private", "gives a message whose priv is a str: it has to be a dict"),
        ("pair", "gives reply-headers with 2: they have to be a list of (name, value) pairs"),
        ("status-999", "gives the status 999: a status is an integer from 200 to 599"),
        ("stream-source", "gives a stream whose source is a list: it has to be an async iterator"),
        ("stream-headers", "gives a stream whose headers are a list: they have to be a dict"),
        ("stream-chunk", "gives a stream with a str as a chunk: chunks are bytes"),
    ],
)
async def test_the_log_says_what_is_wrong(
    wrong: Node, logged: Logged, what: str, said: str
) -> None:
    async with client_of(wrong) as client:
        await client.get(f"/~wrong@1.0/result?what={what}")
    (line,) = logged()
    assert said in line


@pytest.mark.parametrize("what", ["task", *RAISED])
async def test_what_a_key_raises_ends_its_request_alone(
    wrong: Node, logged: Logged, what: str
) -> None:
    keys = ["ends"] if what == "task" else ["ends", "ends-threaded", "any-key"]
    async with client_of(wrong) as client:
        for key in keys:
            reply = await client.get(f"/~wrong@1.0/{key}?what={what}")
            assert reply.status_code == 500
            (line,) = logged()
            assert is_named(line, reply, f"wrong@1.0/{key}"), line
        assert (await client.get("/~meta@1.0/live")).status_code == 200


@pytest.mark.parametrize("what", ["chunk", "exit", "cancelled"])
async def test_a_stream_that_breaks_off_says_so_and_whose_it_is(
    wrong: Node, logged: Logged, what: str
) -> None:
    body = b""
    async with client_of(wrong) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("GET", f"/~wrong@1.0/late?what={what}") as reply:
                assert reply.status_code == 200
                async for chunk in reply.aiter_bytes():
                    body += chunk
    (line,) = logged()
    (id,) = re.findall(rb"\b[0-9a-f]{16}\b", body)
    assert line.startswith(f"error {id.decode()} in GET /~wrong@1.0/late: wrong@1.0/late ")


async def test_a_connection_goes_on_after_a_wrong_stream(wrong: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", wrong.server.port)
    for path in ("/~wrong@1.0/result?what=stream-status", "/~meta@1.0/live/live"):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    replies = []
    for _ in range(2):
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)\r\n", head)
        assert b"transfer-encoding" not in head
        replies.append((head[:12], await reader.readexactly(int(length))))
    assert [status for status, _ in replies] == [b"HTTP/1.1 500", b"HTTP/1.1 200"]
    assert replies[1][1] == b"true"
    writer.close()


async def test_the_device_that_is_called_by_another_is_named(wrong: Node, logged: Logged) -> None:
    async with client_of(wrong) as client:
        assert (await client.get("/~wrong@1.0/within")).status_code == 500
    (line,) = logged()
    assert "wrong@1.0/wrong-within gives a set under 'a/b'" in line


@pytest.mark.parametrize("name", ["shaped@1.0", "shapeless@1.0"])
async def test_an_error_of_a_wrong_shape_is_a_500(wrong: Node, logged: Logged, name: str) -> None:
    async with client_of(wrong) as client:
        reply = await client.get(f"/~{name}/fail")
    assert (reply.status_code, reply.json()["error"]) == (500, "internal_error")
    (line,) = logged()
    assert is_named(line, reply, f"{name}/render_error"), line


NAN = msgpack.pack({"a": float("nan")})


@pytest.mark.parametrize(
    ("read", "status"),
    [
        (("json@1.0", b'{"Hello": 1, "hello": 2}'), 400),
        (("json@1.0", b'{"a": 1, "a+link": 2}'), 400),
        (("msgpack@1.0", NAN), 400),
        (("msgpack@1.0", msgpack.pack({"a": [{"b": float("inf")}]})), 400),
        (("json@1.0", json.dumps(deep(126)).encode()), 200),
        (("json@1.0", b'{"status": "active"}'), 200),
        (("json@1.0", b'{"status": 999}'), 200),
    ],
)
@pytest.mark.parametrize("key", ["", "/base~wrong@1.0", "/copy~wrong@1.0", "/wrap~wrong@1.0"])
async def test_what_a_client_has_sent_is_no_fault_of_the_device(
    wrong: Node, logged: Logged, read: tuple[str, bytes], status: int, key: str
) -> None:
    codec, text = read
    async with client_of(wrong) as client:
        reply = await client.post(f"/~{codec}/deserialize{key}", content=text)
    assert reply.status_code == status
    assert logged() == []


@pytest.mark.parametrize("accept", ["application/json", "*/*"])
async def test_what_is_nested_deeper_than_a_reply_can_be_is_the_clients(
    wrong: Node, logged: Logged, accept: str
) -> None:
    async with client_of(wrong) as client:
        text = json.dumps(deep(127)).encode()
        reply = await client.post(
            "/~json@1.0/deserialize/wrap~wrong@1.0/wrap~wrong@1.0/wrap~wrong@1.0",
            content=text,
            headers={"accept": accept},
        )
    assert reply.status_code == 400
    assert logged() == []


async def test_a_clients_own_keys_are_given_back(wrong: Node, logged: Logged) -> None:
    async with client_of(wrong) as client:
        reply = await client.get("/~wrong@1.0/asked?status=active&x=1")
        assert (reply.status_code, reply.headers["x"]) == (200, "1")
        reply = await client.get("/~message@1.0&status+integer=999&x=1/set&y=2")
        assert (reply.status_code, reply.headers["y"]) == (200, "2")
    assert logged() == []


async def test_a_fault_beside_what_a_client_sent_is_the_devices(
    wrong: Node, logged: Logged
) -> None:
    async with client_of(wrong) as client:
        reply = await client.post("/~msgpack@1.0/deserialize/beside~wrong@1.0", content=NAN)
    assert reply.status_code == 500
    (line,) = logged()
    assert "wrong@1.0/beside gives a set under 'own'" in line


async def test_a_status_in_digits_is_that_status(wrong: Node) -> None:
    async with client_of(wrong) as client:
        assert (await client.get("/~message@1.0&status=404&body=x")).status_code == 404


async def test_subclasses_of_values_are_values(wrong: Node) -> None:
    async with client_of(wrong) as client:
        for headers in ACCEPT:
            reply = await client.get("/~wrong@1.0/subclasses", headers=headers)
            assert reply.status_code == 200
        links = (await client.get("/~wrong@1.0/subclasses")).headers
        stored = await client.get(f"/{links['a+link']}", headers={"accept": "application/json"})
        assert stored.json()["dict"] == {"b": "x"}


async def test_a_cancelled_call_is_cancelled(wrong: Node) -> None:
    device: Any = wrong.device("wrong@1.0")
    began = asyncio.Event()

    async def hang(base: Any, request: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    device.base = hang
    task = asyncio.create_task(call(device, device.keys["base"], "base", {}, {}))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_takes_too_long_for_its_caller_is_cancelled(wrong: Node) -> None:
    device = wrong.device("wrong@1.0")

    async def hang(base: Any, request: Any) -> None:
        await asyncio.sleep(60)

    device.base = hang
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await call(device, device.keys["base"], "base", {}, {})


@given(values)
def test_every_value_that_can_be_written_is_a_result(value: Any) -> None:
    check({"a": value}, "x@1.0", "key", {}, {})


ODD = st.one_of(
    st.floats(),
    st.text(st.characters(categories=["Cs", "Lu", "Ll"]), max_size=3),
    st.integers(),
    st.sampled_from([(), {1}, object(), 1j, enum.Enum("Odd", "A").A, "\ud800", Link("A" * 43)]),
    st.integers(13_990, 14_010).map(lambda bits: 1 << bits),
)
LINKS = ["a+link", "A+link", "a" * 38 + "+link", "A" * 38]
ANYTHING = st.recursive(
    st.one_of(ODD, messages),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text("aA\ud800", max_size=2), st.integers(), st.sampled_from(LINKS)),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_what_is_taken_can_be_written(value: Any) -> None:
    try:
        check(value, "x@1.0", "key", {}, {})
    except DeviceFault:
        return
    structured.encode({"a": value})
    json_codec.encode(value)
    msgpack.encode(value)


def test_a_value_that_is_shared_is_looked_at_once() -> None:
    value: Any = [1]
    for _ in range(100):
        value = [value, value]
    check(value, "x@1.0", "key", {}, {})
    with pytest.raises(DeviceFault):
        check([value, {1}], "x@1.0", "key", value, {})


async def nothing() -> AsyncIterator[bytes]:
    yield b""


async def test_what_is_right_is_taken() -> None:
    for result in (None, True, 1, "x", b"x", [], {}, Link("A" * 43), {"status": "404"}):
        check(result, "x@1.0", "key", {}, {})
    check({"priv": {"reply-headers": [("a", "b"), ["c", "d"]]}}, "x@1.0", "key", {}, {})
    check({"priv": None, "private": object(), "a": bytearray(b"x")}, "x@1.0", "key", {}, {})
    stream = Stream(nothing(), status=404, headers={"a": "b"})
    check(stream, "x@1.0", "key", {}, {})
    assert stream.giver == "x@1.0/key"
    check_raised(HyperbeamError("x", status=418, headers={"a": "b"}), "x@1.0", "key")
