import pytest

from hyperbeam import BadRequest, NotFound
from hyperbeam.node import Node


async def test_serialize(node: Node) -> None:
    """Rows 13, 116 and 117 of the wire table, without a client's headers."""
    path = "/~json@1.0&x=1&y+integer=2&l+list=1,2,3&m+map=a%3D1/serialize"
    assert await node.resolve(None, path) == {
        "content-type": "application/json",
        "body": b'{"device":"json@1.0","l":[1,2,3],"m":{"a":1},"x":"1","y":2}',
    }


async def test_serialize_after_another_device(node: Node) -> None:
    result = await node.resolve(None, "/~message@1.0&a=1&b+integer=2/b/serialize~json@1.0")
    assert result == {"content-type": "application/json", "body": b"2"}


async def test_serialize_leaves_private_keys_out(node: Node) -> None:
    base = {"device": "json@1.0", "a": {"priv": 1, "b": 2}, "priv": {"key": "secret"}}
    result = await node.resolve(base, "serialize")
    assert result["body"] == b'{"a":{"b":2},"device":"json@1.0"}'


@pytest.mark.parametrize(
    ("path", "body", "value"),
    [
        ("deserialize", b'{"a":1,"c":{"d":[1,2]}}', {"a": 1, "c": {"d": [1, 2]}}),
        ("deserialize/c/d/2", b'{"c":{"d":[1,2]}}', 2),
        ("deserialize/a/b/c", '{"a":{"b":{"c":"deep"}}}', "deep"),
        ("deserialize", {"a": 1}, {"a": 1}),
        ("deserialize", b"[1]", [1]),
        ("deserialize", b" null ", None),
    ],
)
async def test_deserialize(node: Node, path: str, body: object, value: object) -> None:
    """Rows 23, 72 and 120 of the wire table."""
    assert await node.resolve(None, {"path": f"/~json@1.0/{path}", "body": body}) == value


async def test_deserialize_reads_the_message_then_the_request(node: Node) -> None:
    request = {"path": "deserialize", "body": b"2", "target": "x", "x": b"3"}
    assert await node.resolve({"device": "json@1.0", "body": b"1"}, "deserialize") == 1
    assert await node.resolve({"device": "json@1.0", "x": b"1"}, request) == 1
    assert await node.resolve({"device": "json@1.0"}, request) == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "'body' is empty"),
        (b" \n", "'body' is empty"),
        (b'{"a":', "line 1, column 6"),
        (b"{'a':1}", "line 1, column 2"),
        (b"\xff{}", "UTF-8"),
        (7, "'body' is of type int"),
        (b"[" * 1000, "128 levels"),
    ],
)
async def test_what_is_no_json(node: Node, body: object, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        await node.resolve(None, {"path": "/~json@1.0/deserialize", "body": body})


async def test_nothing_to_read(node: Node) -> None:
    with pytest.raises(NotFound, match="no key 'body'"):
        await node.resolve(None, "/~json@1.0/deserialize")
    with pytest.raises(BadRequest, match="target"):
        await node.resolve(None, "/~json@1.0/deserialize&target+integer=1")
