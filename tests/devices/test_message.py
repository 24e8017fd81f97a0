from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devices.message import MessageDevice
from hyperbeam import Atom, BadRequest, Message, NotFound
from hyperbeam.commitments import commit, committers, message_id, unsigned_id
from hyperbeam.node import Node
from hyperbeam.signers import Ed25519Signer

BASE: Message = {"a": "1", "B-c": {"d": 1, "e": 2}, "priv": {"secret": 1}, "priv.x": 2}


@pytest.fixture
def device(node: Node) -> MessageDevice:
    found = node.device("message@1.0")
    assert isinstance(found, MessageDevice)
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/~message@1.0&hello=world/hello", "world"),
        ("/~message@1.0&hello=world/HELLO", "world"),
        ("/~message@1.0&hello=world/get&key=Hello", "world"),
        ("/~message@1.0&a=1&b+integer=2/keys", ["a", "b", "device"]),
        ("/~message@1.0&a=1&b+integer=2/keys/2", "b"),
        ("/~message@1.0&l+list=1,2,3/l/3", 3),
        ("/~message@1.0&a=1/set&b+integer=2/keys", ["a", "b", "device"]),
        ("/~message@1.0&a=1&b=2/remove&item=a/keys", ["b", "device"]),
        ("/~message@1.0&a=1&b=2/remove&items+list=%22A%22,%22b%22/keys", ["device"]),
        ("/~message@1.0&a=1/set&a+atom=unset/keys", ["device"]),
    ],
)
async def test_paths(node: Node, path: str, value: object) -> None:
    assert await node.resolve(None, path) == value


@pytest.mark.parametrize(
    "path",
    [
        "/~message@1.0&a=1/nokey",
        "/~message@1.0&a=1/priv",
        "/~message@1.0&a=1/get&key=priv.x",
        "/~message@1.0&a=1/a/b",
        "/~message@1.0&l+list=1,2,3/l/4",
        "/~message@1.0&l+list=1,2,3/l/0",
        "/~message@1.0&l+list=1,2,3/l/-1",
        "/~message@1.0&l+list=1,2,3/l/%C2%B2",
    ],
)
async def test_what_is_not_there_is_404(node: Node, path: str) -> None:
    with pytest.raises(NotFound):
        await node.resolve(None, path)


@pytest.mark.parametrize(
    "path",
    [
        "/~message@1.0&a=1/get",
        "/~message@1.0&a=1/remove",
        "/~message@1.0&a=1/remove&items+list=1,2",
        "/~message@1.0&a=1/a/keys",
        "/~message@1.0&a=1/a/set&b=1",
    ],
)
async def test_what_cannot_be_done_is_400(node: Node, path: str) -> None:
    with pytest.raises(BadRequest):
        await node.resolve(None, path)


def test_private_keys_are_not_there(device: MessageDevice) -> None:
    for name in ("priv", "PRIV", "priv.x"):
        with pytest.raises(NotFound) as caught:
            device.default(name, BASE, {})
        assert caught.value.name == name


async def test_keys_are_the_public_ones(device: MessageDevice) -> None:
    assert await device.keys_(BASE, {}) == ["B-c", "a"]
    assert await device.keys_(["x", "y"], {}) == ["1", "2"]


def test_an_item_by_number_may_have_a_long_number(device: MessageDevice) -> None:
    with pytest.raises(NotFound):
        device.default("9" * 5000, ["x"], {})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"A": "2"}, {"a": "2"}),
        ({"a": None}, {}),
        ({"a": Atom("unset")}, {}),
        ({"a": "unset"}, {"a": "unset"}),
        ({"a": b""}, {"a": b""}),
        ({"path": "set", "method": "POST", "id": "x", "keys": 1, "set-mode": "deep"}, {"a": "1"}),
        ({"priv": {"y": 1}, "priv.x": 1}, {"a": "1"}),
        ({"host": "h", "body": b"", "priv": {"request-headers": {"host"}}}, {"a": "1"}),
        ({"body": b"text"}, {"a": "1", "body": b"text"}),
    ],
)
async def test_set(device: MessageDevice, request_: Message, expected: Message) -> None:
    base = {"a": "1", "priv": {"kept": 1}, "commitments": {"id": {}}}
    assert await device.set(base, request_) == {**expected, "priv": {"kept": 1}}
    assert base == {"a": "1", "priv": {"kept": 1}, "commitments": {"id": {}}}


async def test_set_merges_nested_messages(device: MessageDevice) -> None:
    base: Message = {"M": {"x": {"y": 1, "z": 2}, "w": [1]}}
    change: dict[str, Any] = {"m": {"x": {"y": 3}, "w": [2]}}
    assert await device.set(base, change) == {"M": {"x": {"y": 3, "z": 2}, "w": [2]}}
    explicit = {**change, "set-mode": "explicit"}
    assert await device.set(base, explicit) == {"M": {"x": {"y": 3}, "w": [2]}}
    assert base == {"M": {"x": {"y": 1, "z": 2}, "w": [1]}}


async def test_set_on_a_list_gives_a_message(device: MessageDevice) -> None:
    assert await device.set(["x"], {"a": 1}) == {"1": "x", "a": 1}


async def test_id(node: Node, device: MessageDevice) -> None:
    message = {"a": "1", "device": "message@1.0"}
    assert await node.resolve(None, "/~message@1.0&a=1/id") == unsigned_id(message)
    assert await device.id(["x"], {}) == unsigned_id({"1": "x"})
    sha256 = "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"
    assert await device.id("hello", {}) == sha256
    assert await device.id(b"hello", {}) == sha256
    with pytest.raises(BadRequest):
        await device.id(1, {})


SIGNED = commit({"a": 1, "b": {"c": "x"}}, Ed25519Signer(Ed25519PrivateKey.generate()))
(ADDRESS,) = committers(SIGNED)


async def test_commitments_of_a_message(node: Node) -> None:
    assert await node.resolve(SIGNED, "committers") == [ADDRESS]
    assert await node.resolve(SIGNED, "committed") == ["a", "b"]
    assert await node.resolve(SIGNED, "verify") is True
    by = {"path": "id", "committers": "all"}
    assert await node.resolve(SIGNED, by) == message_id(SIGNED, "all")
    assert await node.resolve(SIGNED, {**by, "committers": [ADDRESS]}) == message_id(SIGNED, "all")
    assert await node.resolve(SIGNED, "id") == unsigned_id({"a": 1, "b": {"c": "x"}})
    assert await node.resolve({"a": 1}, "verify") is True
    assert await node.resolve({"a": 1}, "committers") == []


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({**SIGNED, "a": 2}, None),
        ({**SIGNED, "b": {"c": "y"}}, [ADDRESS]),
        (SIGNED, ["x" * 43]),
        ({**SIGNED, "commitments": "x"}, None),
        ({**SIGNED, "commitments": {"x" * 43: {}}}, None),
    ],
)
async def test_commitments_that_do_not_hold(node: Node, message: Message, wanted: Any) -> None:
    asked = {"path": "verify"} if wanted is None else {"path": "verify", "committers": wanted}
    assert await node.resolve(message, asked) is False


async def test_a_list_of_committers_is_one(node: Node) -> None:
    with pytest.raises(BadRequest):
        await node.resolve(SIGNED, {"path": "verify", "committers": 5})


async def test_a_path_is_set_and_removed(node: Node) -> None:
    assert await node.resolve({"a": 1}, "set-path&value=b") == {"a": 1, "path": "b"}
    assert await node.resolve({"a": 1, "path": "b"}, "set-path&value+atom=unset") == {"a": 1}
    with pytest.raises(BadRequest):
        await node.resolve({"a": 1}, "set-path")


async def test_whose_commitments_count_is_nothing_of_the_message(node: Node) -> None:
    id = await node.resolve(None, "/~message@1.0&a=1/id")
    for whose in ("none", "all"):
        assert await node.resolve(None, f"/~message@1.0&a=1/id?committers={whose}") == id
    assert await node.resolve(None, "/~message@1.0&committers=x/committers/keys") == []
    assert await node.resolve(None, "/~message@1.0&a=1/keys?committers=all") == ["a", "device"]
