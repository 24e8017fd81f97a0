"""Devices that are made of others: stack@1.0, dedup@1.0, multipass@1.0, apply@1.0, patch@1.0,
name@1.0. Behaviours of upstream's own tests among them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import BadRequest, ConfigError, HyperbeamError, NotFound, Stream
from hyperbeam.node import Node

APPENDS = '''
from hyperbeam import Device, Stream, key


class First(Device):
    """Appends its mark and the request's `bin` to `result`."""

    name = "first@1.0"
    mark = "+D1"

    @key
    async def append(self, base, request):
        prefix = base.get("output-prefix", "")
        return {**base, prefix + "result": base.get("result", "") + self.mark + request["bin"]}

    @key
    async def both(self, base, request):
        return {**base, "first": base.get("first", 0) + 1}

    @key
    async def stream(self, base, request):
        async def chunks():
            yield b"x"

        return Stream(chunks())

    @key
    async def say(self, base, request):
        return base.get("input-prefix", "none")


class Second(First):
    """Knows a key more."""

    name = "second@1.0"
    mark = "+D2"

    @key
    async def special(self, base, request):
        return {**base, "output": 1337}


class Skips(Device):
    """Ends a pass."""

    name = "skips@1.0"

    @key
    async def append(self, base, request):
        return {**base, "skipped": True, "priv": {"stack": "skip"}}


class Names(Device):
    """Knows one name."""

    name = "names@1.0"

    @key
    async def lookup(self, base, request):
        return base[request["key"]] if request["key"] in base else self.unknown(request["key"])

    def unknown(self, name):
        from hyperbeam import NotFound

        raise NotFound(name)
'''


@pytest.fixture
async def node(start_node: Any, tmp_path: Path) -> Node:
    folder = tmp_path / "appends"
    folder.mkdir()
    (folder / "appends.py").write_text(APPENDS)
    node: Node = await start_node(device_path=[str(folder), str(tmp_path / "devices")])
    return node


def stack(*devices: str, **more: Any) -> dict[str, Any]:
    numbered = {str(number): device for number, device in enumerate(devices, 1)}
    return {"device": "stack@1.0", "device-stack": numbered, "result": "INIT", **more}


def append(text: str, **more: Any) -> dict[str, Any]:
    return {"path": "append", "bin": text, **more}


async def test_a_stack_calls_each_device_on_what_the_one_before_gave(node: Node) -> None:
    base = stack("first@1.0", "second@1.0")
    result = await node.resolve(base, append("2"))
    assert result == {**base, "result": "INIT+D12+D22"}
    again = await node.resolve(result, append("3"))
    assert again["result"] == "INIT+D12+D22+D13+D23"


async def test_a_stack_can_be_a_list(node: Node) -> None:
    base = {**stack(), "device-stack": ["first@1.0", {"name": "second@1.0"}]}
    assert (await node.resolve(base, append("_")))["result"] == "INIT+D1_+D2_"


async def test_skip_ends_the_pass(node: Node) -> None:
    result = await node.resolve(stack("first@1.0", "skips@1.0", "second@1.0"), append("2"))
    assert (result["result"], result["skipped"], "priv" in result) == ("INIT+D12", True, False)


async def test_another_pass_begins_again(node: Node) -> None:
    base = stack("first@1.0", "multipass@1.0", passes=2)
    result = await node.resolve(base, append("_"))
    assert (result["result"], "pass" in result) == ("INIT+D1_+D1_", False)


async def test_the_pass_that_a_message_had_stays(node: Node) -> None:
    base = stack("first@1.0", **{"pass": 7})
    assert (await node.resolve(base, append("_")))["pass"] == 7


async def test_multipass_may_be_forbidden(node: Node) -> None:
    base = stack("multipass@1.0", passes=2, **{"allow-multipass": False})
    with pytest.raises(BadRequest, match="another pass"):
        await node.resolve(base, append("_"))


@pytest.mark.parametrize("passes", [10**9, 2000])
async def test_passes_end(node: Node, passes: int) -> None:
    with pytest.raises(BadRequest, match="resolutions for one request"):
        await node.resolve(stack("multipass@1.0", passes=passes), append("_"))


async def test_a_stack_of_itself_ends(node: Node) -> None:
    with pytest.raises(BadRequest, match="deep"):
        await node.resolve(stack("stack@1.0", "stack@1.0"), append("_"))


async def test_devices_without_the_key_are_passed_over(node: Node) -> None:
    result = await node.resolve(stack("first@1.0", "second@1.0"), "special")
    assert (result["output"], result["result"], result["device"]) == (1337, "INIT", "stack@1.0")


async def test_a_plain_value_ends_the_stack(node: Node) -> None:
    assert await node.resolve(stack("first@1.0", "second@1.0"), "say") == "none"


@pytest.mark.parametrize("mode", ["Map", "map"])
async def test_map_gives_each_result_by_number(node: Node, mode: str) -> None:
    base = stack("first@1.0", "names@1.0", "second@1.0")
    result = await node.resolve(base, append("/", mode=mode))
    assert list(result) == ["1", "3"]
    assert (result["1"]["result"], result["3"]["result"]) == ("INIT+D1/", "INIT+D2/")


async def test_prefixes_are_those_of_the_device(node: Node) -> None:
    prefixes = {"output-prefixes": {"1": "a/", "2": "b/"}, "output-prefix": "own/"}
    result = await node.resolve(stack("first@1.0", "second@1.0", **prefixes), append("_"))
    assert (result["a/result"], result["b/result"]) == ("INIT+D1_", "INIT+D2_")
    assert result["output-prefix"] == "own/"
    asked = stack("first@1.0", **{"input-prefixes": ["in/"]})
    assert await node.resolve(asked, "say") == "in/"
    assert await node.resolve({**stack(), "output-prefix": "own/"}, "prefix") == "own/"


async def test_transform_calls_one_device(node: Node) -> None:
    base = stack("first@1.0", "second@1.0")
    result = await node.resolve(base, {"path": "transform/2/append", "bin": "_"})
    assert (result["result"], result["device"]) == ("INIT+D2_", "second@1.0")
    with pytest.raises(NotFound, match="no device '3'"):
        await node.resolve(base, "transform/3/append")


async def test_a_stack_has_the_keys_of_its_message(node: Node) -> None:
    base = stack("first@1.0")
    assert await node.resolve(base, "keys") == ["device", "device-stack", "result"]
    assert (await node.resolve(base, {"path": "set", "x": "1"}))["x"] == "1"


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        (stack("first@1.0"), {"path": "append", "mode": "sum", "bin": ""}),
        ({**stack(), "device-stack": [7]}, {"path": "append", "bin": ""}),
        ({**stack(), "device-stack": "first@1.0"}, {"path": "append", "bin": ""}),
        ({"device": "stack@1.0", "device-stac": ["first@1.0"]}, {"path": "append", "bin": ""}),
        ({**stack("nobody@1.0")}, {"path": "append", "bin": ""}),
        (stack("first@1.0"), {"path": "stream"}),
        (stack("multipass@1.0", passes="many"), {"path": "append"}),
        (stack("dedup@1.0", dedup="x"), {"path": "append", "body": "b"}),
        (stack("dedup@1.0", **{"dedup-subject": 7}), {"path": "append", "body": "b"}),
    ],
)
async def test_what_a_stack_cannot_do_is_refused(node: Node, base: Any, asked: Any) -> None:
    with pytest.raises(HyperbeamError) as caught:
        await node.resolve(base, asked)
    assert caught.value.status in (400, 404)


async def test_multipass_alone_gives_the_message(node: Node) -> None:
    base = {"device": "multipass@1.0", "passes": 2, "pass": 2}
    assert await node.resolve(base, "compute") == base


async def test_dedup_lets_each_request_through_once(node: Node) -> None:
    state = stack("dedup@1.0", "first@1.0", "second@1.0", **{"dedup-subject": "request"})
    for text in ("_", "_", "/", "/"):
        state = await node.resolve(state, append(text))
    assert state["result"] == "INIT+D1_+D2_+D1/+D2/"


async def test_dedup_by_body_or_by_a_key(node: Node) -> None:
    state = stack("dedup@1.0", "first@1.0")
    for body in ("a", "b", "a", {"x": 1}, {"x": 1}):
        state = await node.resolve(state, append(".", body=body))
    assert state["result"].count("+D1") == 3
    state = stack("dedup@1.0", "first@1.0", **{"dedup-subject": "bin"})
    for text in ("1", "2", "1"):
        state = await node.resolve(state, append(text))
    assert state["result"] == "INIT+D11+D12"


async def test_dedup_counts_on_the_first_pass_only(node: Node) -> None:
    state = stack("dedup@1.0", "first@1.0", "multipass@1.0", passes=2)
    state = await node.resolve(state, append("_", body="b"))
    assert state["result"] == "INIT+D1_+D1_"
    state = await node.resolve(state, append("_", body="b"))
    assert state["result"] == "INIT+D1_+D1_"


async def test_without_a_subject_nothing_is_skipped(node: Node) -> None:
    state = stack("dedup@1.0", "first@1.0")
    for _ in range(2):
        state = await node.resolve(state, append("_"))
    assert state["result"] == "INIT+D1_+D1_"


async def test_apply_resolves_the_path_under_a_key(node: Node) -> None:
    asked = {"path": "body", "body": b"/~message@1.0&a=1/a", "x": "y"}
    assert await node.resolve({"device": "apply@1.0", "irrelevant": "x"}, asked) == "1"


async def test_apply_resolves_a_message_or_a_list_of_them(node: Node) -> None:
    base = {
        "device": "apply@1.0",
        "one": {"path": "test-key", "test-key": "DATA"},
        "many": [{"a": {"b": "deep"}}, {"path": "a"}, "b"],
    }
    assert await node.resolve(base, "one") == "DATA"
    assert await node.resolve(base, "many") == "deep"
    assert await node.resolve(base, "base:one") == "DATA"


async def test_apply_resolves_a_pair(node: Node) -> None:
    base = {
        "device": "apply@1.0",
        "data-container": {"relevant": "DATA"},
        "base": "data-container",
    }
    asked = {"data-path": "relevant", "request": "data-path", "path": "pair"}
    assert await node.resolve(base, asked) == "DATA"


async def test_apply_calls_its_key_on_a_pair(node: Node) -> None:
    path = "/~message@1.0&a=1/node~apply@1.0&node=TEST&base=request:&request=base:"
    assert await node.resolve(None, path) == "TEST"


async def test_apply_has_no_more_rights_than_its_request(node: Node) -> None:
    base = {"device": "apply@1.0", "one": {"path": "/~echo@1.0/context", "priv": {"x": 1}}}
    asked = {"path": "one", "priv": {"client": "10.0.0.9"}}
    assert await node.resolve(base, asked) == {"client": "10.0.0.9"}


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ({}, "missing"),
        ({"a": 7}, "a"),
        ({"a": {"no": "path"}}, "a"),
        ({"a": []}, "a"),
        ({"a": [{"x": 1}] * 65}, "a"),
        ({"a": [{"x": 1}, 7]}, "a"),
        ({"request": "x"}, "pair"),
        ({"request": "x", "base": "y", "x": "k"}, "pair"),
        ({"request": 7, "base": "y"}, "pair"),
        ({"a": "("}, "a"),
        ({"a": "private"}, "base:priv"),
    ],
)
async def test_what_cannot_be_applied_is_refused(node: Node, base: Any, path: str) -> None:
    with pytest.raises(HyperbeamError) as caught:
        await node.resolve({"device": "apply@1.0", **base}, path)
    assert caught.value.status in (400, 404)


async def test_applying_a_stream_is_the_end(node: Node) -> None:
    base = {"device": "apply@1.0", "a": [{"device": "first@1.0"}, "stream"]}
    stream = await node.resolve(base, "a")
    assert isinstance(stream, Stream)
    await stream.aclose()
    with pytest.raises(BadRequest, match="follow a stream"):
        await node.resolve({**base, "a": [*base["a"], "x"]}, "a")


async def test_patches_are_applied_and_leave_the_outbox(node: Node) -> None:
    base = {
        "device": "patch@1.0",
        "results": {
            "outbox": {
                "1": {"method": "PATCH", "prices": {"apple": 100, "banana": 200}},
                "2": {"method": "GET", "prices": {"apple": 1000}},
            }
        },
        "other-message": "other-value",
        "patch-to": "/",
        "patch-from": "/results/outbox",
    }
    result = await node.resolve(base, "compute")
    assert result["prices"] == {"apple": 100, "banana": 200}
    assert result["results"]["outbox"] == {"2": {"method": "GET", "prices": {"apple": 1000}}}
    assert "method" not in result


async def test_patches_go_into_a_nested_message_in_order(node: Node) -> None:
    base = {
        "device": "patch@1.0",
        "outbox": [
            {"device": "patch@1.0", "prices": {"apple": 1}},
            {"method": "PATCH", "prices": {"apple": 2}},
            *[{"method": "PATCH", "prices": {"apple": n}} for n in range(3, 12)],
        ],
        "state": {"prices": {"apple": 1000, "pear": 5}},
    }
    asked = {"path": "patches", "from": "outbox", "to": "/state"}
    result = await node.resolve(base, asked)
    assert result["state"] == {"prices": {"apple": 11, "pear": 5}}
    assert result["outbox"] == {}


async def test_all_moves_everything(node: Node) -> None:
    base = {
        "device": "patch@1.0",
        "input": {
            "zones": {
                "1": {"method": "PATCH", "prices": {"apple": 100}},
                "2": {"method": "GET", "prices": {"orange": 300}},
            }
        },
        "state": {"prices": {"apple": 1000}},
    }
    asked = {"path": "all", "patch-to": "/state", "patch-from": "/input/zones"}
    result = await node.resolve(base, asked)
    assert result["state"]["1"]["prices"] == {"apple": 100}
    assert result["state"]["2"]["prices"] == {"orange": 300}
    assert result["state"]["prices"] == {"apple": 1000}
    assert result["input"] == {}


async def test_a_source_in_the_request(node: Node) -> None:
    base = {"device": "patch@1.0", "state": {"a": 1}}
    asked = {"path": "all", "from": "req:/results/1", "to": "state", "results": {"1": {"b": 2}}}
    assert (await node.resolve(base, asked))["state"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("key", ["init", "normalize", "snapshot"])
async def test_keys_of_an_execution_device_leave_the_message(node: Node, key: str) -> None:
    base = {"device": "patch@1.0", "a": 1}
    assert await node.resolve(base, key) == base


@pytest.mark.parametrize(
    "asked",
    [
        {"from": "missing"},
        {"from": "plain"},
        {"from": 7},
        {"from": "priv/x"},
        {"from": "deep", "to": "private"},
        {"from": "a/" * 65},
    ],
)
async def test_what_cannot_be_patched_is_refused(node: Node, asked: Any) -> None:
    base = {"device": "patch@1.0", "plain": "x", "deep": {"1": {"method": "PATCH", "x": 1}}}
    with pytest.raises(HyperbeamError) as caught:
        await node.resolve(base, {"path": "patches", **asked})
    assert caught.value.status in (400, 404)


async def test_names_are_loaded(start_node: Any, tmp_path: Path) -> None:
    folder = tmp_path / "appends"
    folder.mkdir()
    (folder / "appends.py").write_text(APPENDS)
    id = "1" * 43
    resolvers = [
        {"device": "names@1.0", "irrelevant": "world"},
        {"device": "names@1.0", "hello": "bigger-world"},
    ]
    node = await start_node(
        device_path=[str(folder)],
        name__resolvers=resolvers,
        name__names={"reference": id, "text": "plain"},
    )
    assert await node.resolve(None, "/~name@1.0/hello&load=false") == "bigger-world"
    assert await node.resolve(None, "/~name@1.0/reference&load=false") == id
    assert await node.resolve(None, "/~name@1.0/text") == "plain"
    with pytest.raises(NotFound, match=id):
        await node.resolve(None, "/~name@1.0/reference")
    with pytest.raises(NotFound, match="'unknown' is not known"):
        await node.resolve(None, "/~name@1.0/unknown")
    with pytest.raises(BadRequest, match="load"):
        await node.resolve(None, "/~name@1.0/text&load=maybe")


async def test_a_name_leads_on(start_node: Any) -> None:
    node = await start_node(name__names={})
    written = node.cache.write({"deep": {"x": "PING"}})
    again = await start_node(name__names={"test": written, "inner": f"{written}/deep"})
    again.cache.write({"deep": {"x": "PING"}})
    assert await again.resolve(None, "/~name@1.0/test/deep/x") == "PING"
    assert await again.resolve(None, "/~name@1.0/inner/x") == "PING"


@pytest.mark.parametrize("resolver", [{}, {"device": "nobody@1.0"}])
async def test_a_resolver_that_there_is_not_is_said(start_node: Any, resolver: Any) -> None:
    try:
        node = await start_node(name__resolvers=[resolver])
    except ConfigError as error:
        assert "a resolver needs a device" in str(error)
    else:
        assert "name@1.0" in node.failures


@pytest.mark.parametrize(
    ("path", "stack"),
    [
        ("~stack@1.0&passes+integer=100000000/x", ["multipass@1.0"]),
        ("~stack@1.0&mode=map/result", ["message@1.0"] * 5000),
        ("~stack@1.0/x", ["dedup@1.0"] * 5000),
    ],
)
async def test_what_a_request_brings_about_is_counted(
    node: Node, path: str, stack: list[str]
) -> None:
    message = {"device-stack": stack, "result": "x"}
    url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=url) as client:
        ended = []

        async def ask(name: str, target: str, body: str = "") -> httpx.Response:
            reply = await client.post(target, content=body, headers={"codec-device": "json@1.0"})
            ended.append(name)
            return reply

        many = asyncio.create_task(ask("many", f"/{path}", json.dumps(message)))
        await asyncio.sleep(0)
        assert (await ask("other", "/~message@1.0&a=1/a", "{}")).text == "1"
        assert (await many).headers["error"] == "too_many_resolutions"
    assert ended == ["other", "many"]
