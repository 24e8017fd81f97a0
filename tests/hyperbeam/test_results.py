"""Results that are kept: cache-control, hashpaths, reading by hashpath."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import GatewayTimeout, Message, NotFound, Stream, TooLarge
from hyperbeam.cache import Cache
from hyperbeam.codecs.structured import MAX_VALUES
from hyperbeam.commitments import commit, unsigned_id
from hyperbeam.node import Node
from hyperbeam.results import MISSING, Control, Results, control_of
from hyperbeam.store import MemoryStore, Recent

from .vectors import ed25519

COUNTS = '''
from hyperbeam import Device, Stream, key


class Pure(Device):
    """Counts how often it was asked."""

    name = "pure@1.0"
    pure = True
    count = 0

    @key
    async def ask(self, base, request):
        type(self).count += 1
        return {"count": self.count, "x": request.get("x")}

    @key
    async def refuse(self, base, request):
        type(self).count += 1
        return {"count": self.count, "cache-control": "no-store"}

    @key
    async def set_header(self, base, request):
        type(self).count += 1
        return {"count": self.count, "priv": {"reply-headers": [("x-a", "b")]}}

    @key
    async def stream(self, base, request):
        async def chunks():
            yield b"x"

        return Stream(chunks())


class Impure(Pure):
    name = "impure@1.0"
    pure = False

    @key
    async def grant(self, base, request):
        type(self).count += 1
        return {"count": self.count, "priv": {"cache-control": "store"}}

    @key
    async def echo(self, base, request):
        type(self).count += 1
        return {**base, "count": self.count}


class Sealed(Pure):
    name = "sealed@1.0"
    sealed = True
'''


@pytest.fixture
async def counting(start_node: Any, tmp_path: Path) -> Any:
    folder = tmp_path / "counts"
    folder.mkdir()
    (folder / "counts.py").write_text(COUNTS)

    async def start(**flags: Any) -> Node:
        node: Node = await start_node(device_path=[str(folder)], **flags)
        return node

    return start


@pytest.mark.parametrize(
    ("said", "control"),
    [
        (None, Control()),
        ("max-age=0", Control()),
        (7, Control()),
        ("store", Control(True)),
        ("no-store", Control(False)),
        ("no-store, store", Control(False)),
        ("Cache", Control(None, True)),
        ("cache, no-cache", Control()),
        ("only-if-cached", Control(None, True, True)),
        (["store", "cache"], Control(True, True)),
        ("always", Control(True, True)),
    ],
)
def test_what_cache_control_says(said: object, control: Control) -> None:
    assert control_of(said) == control


async def ask(node: Node, key: str, control: str = "", device: str = "pure@1.0") -> Any:
    asked = {"path": key, **({"cache-control": control} if control else {})}
    return (await node.resolve({"device": device}, asked))["count"]


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_what_is_stored_is_given_again(counting: Any, where: str) -> None:
    node = await counting(store__results=where)
    assert [await ask(node, "ask", word) for word in ("store", "cache", "cache", "", "store")] == [
        1, 1, 1, 2, 3
    ]  # fmt: skip
    assert await ask(node, "ask", "only-if-cached") == 3


async def test_nothing_is_stored_unless_it_is_asked_for(counting: Any) -> None:
    node = await counting()
    await ask(node, "ask")
    await ask(node, "ask", "cache")
    with pytest.raises(GatewayTimeout) as caught:
        await ask(node, "ask", "only-if-cached")
    assert (caught.value.status, caught.value.headers) == (504, {"cache-status": "miss"})


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("impure@1.0", "ask"),
        ("sealed@1.0", "ask"),
        ("pure@1.0", "refuse"),
        ("pure@1.0", "set-header"),
    ],
)
async def test_what_may_not_be_stored(counting: Any, device: str, key: str) -> None:
    node = await counting()
    await ask(node, key, "always", device)
    with pytest.raises(GatewayTimeout):
        await ask(node, key, "only-if-cached", device)


async def test_none_is_stored_where_the_config_says_so(counting: Any) -> None:
    node = await counting(store__results="none")
    await ask(node, "ask", "always")
    with pytest.raises(GatewayTimeout):
        await ask(node, "ask", "only-if-cached")


async def test_a_device_may_grant_it(counting: Any) -> None:
    node = await counting()
    for control in ("", "cache", "only-if-cached"):
        assert await ask(node, "grant", control, "impure@1.0") == 1


async def test_what_a_request_brings_along_grants_nothing(counting: Any) -> None:
    node = await counting()
    base = {"device": "impure@1.0", "cache-control": "store"}
    for number in (1, 2):
        asked = {"path": "echo", "cache-control": "always"}
        assert (await node.resolve(base, asked))["count"] == number


async def test_other_requests_are_other_results(counting: Any) -> None:
    node = await counting()
    base = {"device": "pure@1.0"}
    for number, x in enumerate("ab", 1):
        asked = {"path": "ask", "x": x, "cache-control": "always"}
        assert await node.resolve(base, asked) == {"count": number, "x": x}
    for number, x in enumerate("ab", 1):
        asked = {"path": "ask", "x": x, "cache-control": "only-if-cached"}
        assert await node.resolve(base, asked) == {"count": number, "x": x}
    with pytest.raises(GatewayTimeout):
        await node.resolve({**base, "b": 1}, asked)


async def test_a_stream_is_never_kept(counting: Any) -> None:
    node = await counting()
    asked = {"path": "stream", "cache-control": "always", "hashpath": True, "priv": {}}
    stream = await node.resolve({"device": "pure@1.0"}, asked)
    assert isinstance(stream, Stream)
    await stream.aclose()


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{node.server.port}{path}", headers=headers)


async def test_over_http(counting: Any) -> None:
    node = await counting()
    path = "/~pure@1.0/ask&x=1/count"
    assert (await get(node, path, **{"cache-control": "only-if-cached"})).status_code == 504
    assert (await get(node, path, **{"cache-control": "store"})).text == "1"
    assert (await get(node, path, **{"cache-control": "only-if-cached"})).text == "1"
    assert (await get(node, path)).text == "2"
    assert (await get(node, "/~message@1.0&a=1/a?cache-control=store")).text == "1"


async def test_a_hashpath_is_told_when_it_is_asked_for(counting: Any) -> None:
    node = await counting()
    reply = await get(node, "/~pure@1.0/ask/count?hashpath=true&cache-control=store")
    assert reply.text == "1"
    path = reply.headers["hashpath"]
    assert "hashpath" not in (await get(node, "/~pure@1.0/ask/count")).headers
    again = await get(node, f"/{path}")
    assert (again.status_code, again.text) == (200, "1")
    assert await node.resolve(None, f"/~cache@1.0/read?target={path}") == 1
    assert (await get(node, f"/{path[:43]}/{'x' * 43}")).status_code == 404


async def test_a_path_goes_on_behind_a_hashpath(counting: Any) -> None:
    node = await counting()
    node.cache.results.write("b" * 43 + "/" + "r" * 43, {"deep": {"x": 5}})
    assert await node.resolve(None, "/" + "b" * 43 + "/" + "r" * 43 + "/deep/x") == 5


async def test_the_hashpath_of_a_stored_message_is_its_id_and_the_key(node: Node) -> None:
    id = node.cache.write({"a": {"b": 1}})
    private: dict[str, Any] = {}
    await node.resolve(None, {"path": f"{id}/a", "hashpath": True, "priv": private})
    assert private == {"hashpath": f"{id}/a"}


async def test_nobody_keeps_a_result_for_what_another_signed(node: Node) -> None:
    signed = commit({"real": "X", "other": "Y"}, ed25519(1))
    forged = {**signed, "real": "EVIL"}

    async def ask(path: str, control: str, message: Message) -> Any:
        return await node.resolve(message, {"path": path, "cache-control": control})

    assert await ask("real", "store", forged) == "EVIL"
    assert await ask("real", "always", signed) == "X"
    assert await ask("other", "cache", signed) == "Y"
    assert await ask("verify", "always", signed) is True
    assert await ask("verify", "cache", forged) is False
    assert await ask("real", "only-if-cached", signed) == "X"


async def test_a_message_without_an_id_has_no_hashpath(node: Node) -> None:
    base = {str(number): number for number in range(MAX_VALUES + 1)}
    with pytest.raises(TooLarge):
        await node.resolve(base, {"path": "1", "hashpath": True})
    assert await node.resolve(base, {"path": "1", "cache-control": "always"}) == 1


def test_what_cannot_be_kept_is_not() -> None:
    results = Results(Cache(MemoryStore()))
    results.write("a", {"x": object()})
    assert results.read("a") is MISSING
    results.write("a", {"x": None, "priv": 1})
    assert results.read("a") == {"x": None}


async def test_nested_messages_of_a_reply_are_links_that_can_be_read(node: Node) -> None:
    path = "/~message@1.0&a=(~message@1.0&b=(~message@1.0&c=deep))&l+list=1,2/set"
    reply = await get(node, path)
    id = reply.headers["a+link"]
    assert reply.headers["l+link"]
    assert "a" not in reply.headers
    assert (await get(node, f"/{id}/b/c")).text == "deep"
    assert (await get(node, f"/{reply.headers['l+link']}/2")).text == "2"
    listed = await get(node, f"/{reply.headers['l+link']}", accept="application/json")
    assert listed.json() == [1, 2]
    assert node.store.read(id.encode()) is None


async def test_a_bundle_has_them_inside(node: Node) -> None:
    path = "/~message@1.0&a=(~message@1.0&b=1)/set"
    reply = await get(node, path, **{"accept-bundle": "true"})
    assert "a+link" not in reply.headers
    assert 'name="a"' in reply.text


async def test_a_link_to_nothing_is_a_404_that_names_it(node: Node) -> None:
    id = "x" * 43
    reply = await get(node, f"/~message@1.0&l+link={id}/l")
    assert (reply.status_code, id in reply.text) == (404, True)
    with pytest.raises(NotFound, match=id):
        await node.resolve({"deep": {"l": node.cache.read}}, f"/{id}/x")


async def test_a_message_can_be_read_through_a_link(node: Node) -> None:
    id = node.cache.write({"big": {"x": "y" * 5000, "in": {"z": 1}}, "n": 1})
    assert await node.resolve(None, f"/{id}/big/in/z") == 1
    assert await node.resolve(None, f"/~message@1.0&l+link={id}/l/big/in/z") == 1


def test_kept_messages_go_when_there_is_no_room() -> None:
    cache = Cache(MemoryStore(), recent=Recent(2000))
    ids = [cache.keep({"a": str(number) * 500}) for number in range(4)]
    with pytest.raises(NotFound, match=ids[0]):
        cache.read(ids[0])
    assert cache.read(ids[3])["a"] == "3" * 500
    with pytest.raises(TooLarge):
        cache.keep({"a": "x" * 2000})


def test_what_is_kept_has_the_id_that_it_is_stored_under() -> None:
    cache = Cache(MemoryStore())
    message = {"A": b"text", "n": {"x": "y" * 3000}}
    assert cache.keep(message) == cache.write(message) == unsigned_id(message)
    assert cache.keep([1, "a"]) != cache.keep({"1": 1, "2": "a"})


def test_the_least_recently_used_goes_first() -> None:
    recent = Recent(1000)
    for name in (b"a", b"b", b"c", b"d"):
        assert recent.put(name, b"x" * 40)
    assert recent.get(b"a") is not None
    assert recent.put(b"e", b"x" * 40)
    assert [recent.get(name) is None for name in (b"a", b"b", b"c")] == [False, True, False]
    assert not recent.put(b"f", b"x" * 1000)
    assert recent.put(b"a", b"y")
    assert recent.get(b"a") == b"y"
