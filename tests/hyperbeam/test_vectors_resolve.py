"""Upstream's vectors of resolution: what a path gives on a message, and whose key answers.

Each holds with the kinds of `cache-control` that upstream runs it under.
Source: upstream hb_ao_test_vectors, dev_message.
"""

from pathlib import Path
from typing import Any

import pytest

from hyperbeam import Link, Message, NotFound
from hyperbeam.errors import GatewayTimeout
from hyperbeam.message import is_id
from hyperbeam.node import Node

DEVICES = '''
from hyperbeam import Device, key


class Args(Device):
    """Keys that use more and more of what they are given, and a set of its own."""

    name = "args@1.0"
    pure = True

    @key
    async def key_using_only_state(self, base, request):
        return base["state-key"]

    @key
    async def key_using_state_and_msg(self, base, request):
        return base["state-key"] + request["msg-key"]

    @key
    async def key_using_all(self, base, request):
        return base["state-key"] + request["msg-key"] + self.node.config.http.host

    @key
    async def set(self, base, request):
        return {**base, "set-count": base.get("set-count", "") + "."}

    @key
    async def test_func(self, base, request):
        return "GOOD"


class Handler(Device):
    """Answers every key but set."""

    name = "handler@1.0"
    pure = True
    excludes = frozenset({"set"})

    @key
    async def state_key(self, base, request):
        return "STATE"

    async def default(self, name, base, request):
        return "HANDLER VALUE"
'''
NESTED: Message = {
    "key1": "value1",
    "key2": {"key3": "value3", "key4": {"key5": "value5", "key6": {"key7": "value7"}}},
    "list": [["a", "b"], {"c": "d"}],
}
ARGS: Message = {"device": "args@1.0", "state-key": "1", "test-func": {"test-key": "MESSAGE"}}
HANDLER: Message = {"device": "handler@1.0", "test-key": "ACTUAL"}


@pytest.fixture
async def vectors(start_node: Any, tmp_path: Path) -> Node:
    (tmp_path / "devices" / "vectors.py").write_text(DEVICES)
    node: Node = await start_node()
    return node


@pytest.mark.parametrize(
    ("base", "path", "value"),
    [
        ({"a": "RESULT"}, "a", "RESULT"),
        ({"a": "1", "priv_a": "2", "private": "3"}, "keys", ["a"]),
        ({"path": ["test_path"]}, "path", ["test_path"]),
        ({"Path": ["a"]}, "Path", ["a"]),
        ({"Test-Header": "1"}, "Test-Header", "1"),
        ({"Test-Header": "1"}, "test-header", "1"),
        (NESTED, "key1", "value1"),
        (NESTED, "key2/key3", "value3"),
        (NESTED, "/key2/key4/key6/key7", "value7"),
        (NESTED, "key2/key4/key6/keys", ["key7"]),
        (NESTED, "list/1/2", "b"),
        (NESTED, "list/2/c", "d"),
        (["A", "B", "C", "D", "E"], "1", "A"),
        (["A", "B", "C", "D", "E"], "5", "E"),
        (ARGS, "state-key", "1"),
        (ARGS, "key-using-only-state", "1"),
        (ARGS, "key-using-only-state&msg-key=2", "1"),
        (ARGS, "key-using-state-and-msg&msg-key=3", "13"),
        (ARGS, "key-using-all&msg-key=3", "13127.0.0.1"),
        (ARGS, "test-func", "GOOD"),
        (ARGS, "test-func~message@1.0", {"test-key": "MESSAGE"}),
        (ARGS, "~message@1.0/test-func/test-key", "MESSAGE"),
        (ARGS, "~message@1.0/~args@1.0/test-func", "GOOD"),
        (HANDLER, "test-key", "HANDLER VALUE"),
        (HANDLER, "test-key~message@1.0", "ACTUAL"),
        (HANDLER, "any-random-key", "HANDLER VALUE"),
        (HANDLER, "state-key", "STATE"),
        (HANDLER, "set&test-key2=2/test-key2~message@1.0", "2"),
        ({"key1": "v1", "key2": "v2"}, "set&key1=new/key1", "new"),
        ({"key1": "v1", "key2": "v2"}, "set&key1=new/key2", "v2"),
        ({"dangerous": "Value1"}, "set&dangerous=Value2", {"dangerous": "Value2"}),
        ({"dangerous": "Value1"}, "set&dangerous+atom=unset", {}),
        ({"key1": "v1", "key2": "v2"}, "remove&item=key1", {"key2": "v2"}),
        ({"key1": "v1", "key2": "v2"}, 'remove&items+list="key1","key2"', {}),
        (ARGS, "set&state-key=X/set-count", "."),
        (ARGS, "set&state-key=X/set&state-key=Y/set-count", ".."),
        (ARGS, "set&state-key=X/set&state-key=Y/state-key", "1"),
    ],
)
async def test_what_a_path_gives(vectors: Node, base: Any, path: str, value: object) -> None:
    assert await vectors.resolve(base, path) == value
    for control in ("no-cache, no-store", "store", "store", "always", "always"):
        request: Message = {"path": path, "cache-control": control}
        request["priv"] = {"request-headers": frozenset({"cache-control"})}
        assert await vectors.resolve(base, request) == value


@pytest.mark.parametrize(
    "path", ["private_key", "priv", "nosuch", "key2/nosuch", "key1/key2", "list/0", "list/3"]
)
async def test_what_is_not_there(vectors: Node, path: str) -> None:
    with pytest.raises(NotFound):
        await vectors.resolve({**NESTED, "private_key": 2, "priv": {"a": 1}}, path)


async def test_only_what_is_kept(vectors: Node) -> None:
    base: Message = {"a": {"b": {"c": "1"}}}
    only = {"path": "a/b/c", "cache-control": "only-if-cached"}
    with pytest.raises(GatewayTimeout):
        await vectors.resolve(base, only)
    assert await vectors.resolve(base, {**only, "cache-control": "store"}) == "1"
    assert await vectors.resolve(base, only) == "1"


async def test_a_message_has_an_id(vectors: Node) -> None:
    id = await vectors.resolve({"test_key": "1"}, "id")
    assert is_id(id)
    assert await vectors.resolve({"test_key": "1"}, "id") == id
    assert await vectors.resolve({"test_key": "2"}, "id") != id


async def test_a_path_starts_as_a_device(vectors: Node) -> None:
    assert await vectors.resolve(None, "/~args@1.0/test-func") == "GOOD"
    assert await vectors.resolve(None, "/~args@1.0&state-key=x/key-using-only-state") == "x"
    id = vectors.cache.write(ARGS)
    assert await vectors.resolve(None, f"/{id}/test-func") == "GOOD"
    assert await vectors.resolve(None, f"/{id}~message@1.0/test-func/test-key") == "MESSAGE"
    assert await vectors.resolve(None, f"/{id}/~message@1.0/test-func/test-key") == "MESSAGE"


async def test_setting_in_depth(vectors: Node) -> None:
    async def set_(base: Message, **values: Any) -> Any:
        return await vectors.resolve(base, {"path": "set", **values})

    assert await set_({"a": {"b": "1"}}, a={"b": "2"}) == {"a": {"b": "2"}}
    assert await set_({"a": {"b": {"c": "1"}}}, a={"b": {"c": "2"}}) == {"a": {"b": {"c": "2"}}}
    deep = {"a": {"b": {"c": "1"}}}
    more = await set_(await set_(deep, d={"e": "3"}), d={"f": "4"})
    assert more == {**deep, "d": {"e": "3", "f": "4"}}
    assert await set_(more, z={"a": "0", "y": {"x": "2"}}) == {
        **more,
        "z": {"a": "0", "y": {"x": "2"}},
    }
    assert deep == {"a": {"b": {"c": "1"}}}
    assert await set_({"a": {"b": "1"}}, a="flat") == {"a": "flat"}
    assert await set_({"a": "flat"}, a={"b": "1"}) == {"a": {"b": "1"}}


async def test_a_nested_message_answers_by_its_own_device(vectors: Node) -> None:
    base: Message = {"in": HANDLER, "other": ARGS, "items": [HANDLER]}
    assert await vectors.resolve(base, "in/any") == "HANDLER VALUE"
    assert await vectors.resolve(base, "other/test-func") == "GOOD"
    assert await vectors.resolve(base, "items/1/any") == "HANDLER VALUE"
    linked = {"in": Link(vectors.cache.write(HANDLER))}
    assert await vectors.resolve(linked, "in/any") == "HANDLER VALUE"


async def test_the_step_hook_sees_each_step(start_node: Any, tmp_path: Path) -> None:
    (tmp_path / "devices" / "steps.py").write_text(
        "from hyperbeam import Device, key\n\n\n"
        'class Steps(Device):\n    name = "steps@1.0"\n    seen = []\n\n'
        "    @key\n    async def step(self, base, request):\n"
        '        self.seen.append(request["body"])\n        return request\n'
    )
    node: Node = await start_node(on__step={"device": "steps@1.0"})
    base: Message = {"a": {"b": {"c": "1"}}}
    assert await node.resolve(base, "a/b/c") == "1"
    assert node.device("steps@1.0").seen == [{"b": {"c": "1"}}, {"c": "1"}, "1"]  # type: ignore[attr-defined]
