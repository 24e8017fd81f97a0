import json
from typing import Any

import pytest

from hyperbeam import BadRequest, NotFound
from hyperbeam.codecs import msgpack
from hyperbeam.codecs.msgpack import pack as packed
from hyperbeam.node import Node
from hyperbeam.resolver import call

MESSAGE = {"a": {"b": [1, "x"]}, "n": 2}


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("json@1.0", "application/json", b'{"a":{"b":[1,"x"]},"n":2}'),
        ("msgpack@1.0", "application/msgpack", msgpack.encode(MESSAGE)),
        ("flat@1.0", "", b'a/b/1: 1\na/b/2: x\na/b/ao-types: .="list", 1="integer"\n'
         b'ao-types: n="integer"\nn: 2\n'),
    ],
)  # fmt: skip
async def test_there_and_back(node: Node, name: str, kind: str, text: bytes) -> None:
    device = node.device(name)
    written = await call(device, device.keys["serialize"], "serialize", MESSAGE, {})
    assert written == ({"content-type": kind, "body": text} if kind else text)
    named = await node.resolve(MESSAGE, f"serialize~{name}")
    assert await node.resolve(named, f"deserialize~{name}") == {**MESSAGE, "device": name}
    read = {"path": f"/~{name}/deserialize", "body": text}
    assert await node.resolve(None, read) == MESSAGE


@pytest.mark.parametrize("name", ["json@1.0", "msgpack@1.0", "flat@1.0"])
@pytest.mark.parametrize(
    ("body", "error"), [(b"\xc1", BadRequest), (b"", BadRequest), (5, BadRequest), (None, NotFound)]
)
async def test_refusals(node: Node, name: str, body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await node.resolve(None, {"path": f"/~{name}/deserialize", "body": body})


FORGED = {"a": {"b": 1, "priv": {"sealed": True}}, "priv": {"reply-headers": [["x", "y"]]}}


@pytest.mark.parametrize("name", ["json@1.0", "msgpack@1.0"])
@pytest.mark.parametrize("inside", [{"a": {"b": 1}}, [{"a": {"b": 1}}]])
async def test_private_keys_are_the_nodes_alone(node: Node, name: str, inside: Any) -> None:
    """A text cannot say what the node itself says of a message, such as headers of a reply."""
    forged = FORGED if isinstance(inside, dict) else [FORGED]
    text = json.dumps(forged).encode() if name == "json@1.0" else packed(forged)
    read = {"path": f"/~{name}/deserialize", "body": text}
    assert await node.resolve(None, read) == inside
    assert await node.resolve(None, {**read, "body": forged}) == inside


@pytest.mark.parametrize("target", ["priv", "PRIV", "private", "priv.x"])
async def test_what_is_private_is_no_target(node: Node, target: str) -> None:
    request = {
        "path": "/~json@1.0/deserialize",
        "target": target,
        "priv": {"headers": {"cookie": "x"}},
    }
    with pytest.raises(NotFound):
        await node.resolve(
            {"priv": {"headers": {}}, "priv.x": "1"}, {**request, "path": "deserialize~json@1.0"}
        )
    with pytest.raises(NotFound):
        await node.resolve(None, request)


async def test_flat_is_for_messages(node: Node) -> None:
    with pytest.raises(BadRequest):
        await node.resolve("text", "serialize~flat@1.0")
