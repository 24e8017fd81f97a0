from typing import Any

import pytest

from hyperbeam import BadRequest, NotFound
from hyperbeam.codecs import msgpack
from hyperbeam.node import Node
from hyperbeam.resolver import call

MESSAGE = {"a": {"b": [1, "x"]}, "n": 2}


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("json@1.0", "application/json", b'{"a":{"b":[1,"x"]},"n":2}'),
        ("msgpack@1.0", "application/msgpack", msgpack.encode(MESSAGE)),
        ("flat@1.0", "text/plain", b'a/b/1: 1\na/b/2: x\na/b/ao-types: .="list", 1="integer"\n'
         b'ao-types: n="integer"\nn: 2\n'),
    ],
)  # fmt: skip
async def test_there_and_back(node: Node, name: str, kind: str, text: bytes) -> None:
    device = node.device(name)
    assert await call(device, device.keys["serialize"], MESSAGE, {}) == {
        "content-type": kind,
        "body": text,
    }
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


async def test_flat_is_for_messages(node: Node) -> None:
    with pytest.raises(BadRequest):
        await node.resolve("text", "serialize~flat@1.0")
