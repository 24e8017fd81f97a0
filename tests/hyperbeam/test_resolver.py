import pytest

from hyperbeam import BadRequest, NotFound, Stream
from hyperbeam.node import Node


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/~message@1.0&hello=world/hello", "world"),
        ("/~message@1.0&a+integer=7/a", 7),
        ("/~message@1.0&a=(~message@1.0&q=5/q)/a", "5"),
        ("/~message@1.0&x=y&y=z/(~message@1.0&q=x/q)", "y"),
        ("/(~message@1.0&q=x)/q", "x"),
        ("/(~message@1.0&q=x)&r=y/r", "y"),
        ("/(~message@1.0&q=x)~any@1.0/q", "any q"),
        ("/q~(~message@1.0&d=any@1.0/d)", "any q"),
        ("/~message@1.0&a=1/~message@1.0/a", "1"),
        ("/~message@1.0&a=1/a~message@1.0", "1"),
        ("/~message@1.0&a=1/set&b+integer=2/b", 2),
        ("/~message@1.0&a=1/a/", "1"),
        ("//~message@1.0&a=1//a", "1"),
        ("/a?a=1", "1"),
        ("/~echo@1.0/value", 7),
        ("/~echo@1.0/thread", False),
        ("/~echo@1.0/all/a/b%2Fc", ["a", "b/c"]),
        ("/~echo@1.0/all", []),
        ("/~any@1.0/whatever", "any whatever"),
        ("/~Any@1.0/whatever", "any whatever"),
        ("/(~message@1.0&q=x)&device=Any@1.0/whatever", "any whatever"),
        ("/q~(~message@1.0&d=ANY@1.0/d)", "any q"),
        ("/~strict@1.0/known", "known"),
        ("/~echo@1.0&a=1", {"index": "1"}),
        ("/~echo@1.0/end", {"end": True}),
        ("/~echo@1.0/begin/value", 7),
        ("/~strict@1.0&a=1/a", "1"),
        ("/~message@1.0&l+list=1,2,3/l/2", 2),
    ],
)
async def test_values(node: Node, path: str, value: object) -> None:
    assert await node.resolve(None, path) == value


async def test_a_key_gets_its_parts_keys_and_its_name(node: Node) -> None:
    assert await node.resolve(None, "/~echo@1.0/request&a=1&b?c=3&1.d=4&0.e=5") == {
        "path": "request",
        "a": "1",
        "b": True,
        "c": "3",
        "d": "4",
    }


async def test_resolving_on_a_base(node: Node) -> None:
    assert await node.resolve({"a": 1}, "a") == 1
    assert await node.resolve({"device": "echo@1.0"}, {"path": "request", "x": 2}) == {
        "path": "request",
        "x": 2,
    }


async def test_an_id_gives_the_base(node: Node) -> None:
    written = node.cache.write({"a": 1, "list": ["x", "y"]})
    assert await node.resolve(None, f"/{written}/a") == 1
    assert await node.resolve(None, f"/{written}/list/2") == "y"
    assert await node.resolve(None, f"/{written}&b=2/b") == "2"
    assert await node.resolve(None, f"/{written}~any@1.0/a") == "any a"


async def test_a_stream_ends_a_path(node: Node) -> None:
    result = await node.resolve(None, "/~echo@1.0/stream")
    assert isinstance(result, Stream)
    await result.source.aclose()
    with pytest.raises(BadRequest):
        await node.resolve(None, "/~echo@1.0/stream/body")


@pytest.mark.parametrize(
    "path",
    [
        "/~nosuch@1.0/x",
        "/~message@1.0/nosuch",
        "/~strict@1.0/nosuch",
        "/~echo@1.0/end/x",
        "/~echo@1.0/end/~echo@1.0",
        "/~echo@1.0/begin",
        "/~message@1.0/priv",
        "/~strict@1.0/priv",
        "/" + "A" * 43,
        "/" + "A" * 43 + "/x",
        "/~message@1.0&a=1/a/b",
        "/~echo@1.0/value/x",
    ],
)
async def test_not_found(node: Node, path: str) -> None:
    with pytest.raises(NotFound):
        await node.resolve(None, path)


@pytest.mark.parametrize(
    "path",
    ["/~message@1.0/(~echo@1.0/value)", "/~message@1.0/(~message@1.0&a=1)", "/a~(~echo@1.0/value)"],
)
async def test_sub_paths_that_name_nothing(node: Node, path: str) -> None:
    with pytest.raises(BadRequest):
        await node.resolve(None, path)


async def test_private_keys_reach_devices_but_not_values(node: Node) -> None:
    request = {"path": "/~echo@1.0/base", "priv": {"headers": {"authorization": "x"}}}
    base = await node.resolve(None, request)
    assert base["priv"]["headers"] == {"authorization": "x"}


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/~echo@1.0/context", False),
        ("/(~echo@1.0/context)", True),
        ("/~message@1.0&x=(~echo@1.0/context)/x", True),
        ("/~message@1.0&x=(~message@1.0&y=(~echo@1.0/context)/y)/x", True),
        ("/(~message@1.0&x=1)/~echo@1.0/context", False),
    ],
)
async def test_a_sub_path_is_told_that_it_is_one(node: Node, path: str, inside: bool) -> None:
    for private in ({}, {"client": "10.0.0.1"}):
        found = await node.resolve(None, {"path": path, "priv": private})
        assert found == {**private, **({"sub-path": True} if inside else {})}


@pytest.mark.parametrize("key", ["fault", "async-fault"])
@pytest.mark.parametrize("kind", ["stop", "exit", "interrupt"])
async def test_nothing_that_a_key_raises_ends_the_node(node: Node, key: str, kind: str) -> None:
    with pytest.raises(RuntimeError):
        await node.resolve(None, f"/~echo@1.0/{key}&kind={kind}")
