"""cache@1.0 over a node's resolver, as a device in the process and as a remote caller."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from devices.cache import CacheConfig, CacheDevice
from hyperbeam.cache import INLINE_LIMIT, Cache
from hyperbeam.commitments import unsigned_id
from hyperbeam.config import load
from hyperbeam.errors import BadRequest, Forbidden, NotFound
from hyperbeam.message import Link
from hyperbeam.node import Node
from hyperbeam.store import LMDBStore, MemoryStore

ID = "a" * 43
REMOTE = {"client": "127.0.0.1", "request-headers": frozenset({"host", "content-type"})}
OPEN = CacheConfig(writers="all")


def device_on(cache: Cache, config: CacheConfig) -> CacheDevice:
    return CacheDevice(cast(Node, SimpleNamespace(cache=cache)), config)


@pytest.fixture
def cache() -> Cache:
    return Cache(MemoryStore())


@pytest.fixture
def device(cache: Cache) -> CacheDevice:
    return device_on(cache, CacheConfig())


@pytest.mark.parametrize("name", ["read", "target"])
async def test_reads_a_message(cache: Cache, device: CacheDevice, name: str) -> None:
    id = cache.write({"hello": "world", "in": {"n": 1}})
    message = {"hello": "world", "in": {"n": 1}}
    assert await device.read({}, {"path": "read", name: id}) == message
    assert await device.read({name: id}, {"path": "read"}) == message
    assert await device.read({}, {"path": "read", name: f"/{id}/in/n"}) == 1
    assert await device.read("a value", {name: Link(id)}) == message


async def test_nested_messages_come_as_links(cache: Cache, device: CacheDevice) -> None:
    large = {"text": "x" * INLINE_LIMIT}
    id = cache.write({"large": large})
    assert await device.read({}, {"read": id}) == {"large": Link(unsigned_id(large))}
    assert await device.read({}, {"read": f"{id}/large"}) == large


async def test_reads_a_value(cache: Cache, device: CacheDevice) -> None:
    assert await device.read({}, {"read": cache.write_value(b"\xff")}) == b"\xff"


@pytest.mark.parametrize("target", [ID, f"data/{ID}", f"{ID}/key"])
async def test_what_is_unknown_is_404_with_its_name(device: CacheDevice, target: str) -> None:
    with pytest.raises(NotFound, match=target.removesuffix("/key")):
        await device.read({}, {"read": target})


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"read": ""},
        {"read": "/"},
        {"read": "short"},
        {"read": "data"},
        {"read": "data/short"},
        {"read": f"data/{ID}/more"},
        {"read": "../" + ID},
        {"read": 7},
        {"read": True},
        {"target": [ID]},
        {"read": "/".join([ID] * 65)},
    ],
)
async def test_what_is_malformed_is_400(device: CacheDevice, request_: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await device.read({}, {"path": "read", **request_})


async def test_devices_of_the_node_write(cache: Cache, device: CacheDevice) -> None:
    body = {"hello": "world", "priv": {"secret": 1}}
    reply = await device.write({}, {"path": "write", "body": body})
    assert reply == {"status": 200, "path": unsigned_id({"hello": "world"})}
    assert await device.read({}, {"read": reply["path"]}) == {"hello": "world"}
    assert await device.write({}, {"body": Link(reply["path"])}) == reply


async def test_the_request_itself_is_written(cache: Cache) -> None:
    device = device_on(cache, OPEN)
    request = {
        "path": "write",
        "method": "GET",
        "host": "here",
        "body": b"",
        "priv": REMOTE,
        "hello": "world",
        "n": 7,
    }
    reply = await device.write({}, request)
    assert cache.read(reply["path"]) == {"hello": "world", "n": 7}
    with pytest.raises(BadRequest, match="nothing to write"):
        await device.write({}, {"path": "write", "method": "GET", "host": "x", "priv": REMOTE})


async def test_a_json_body_is_a_message(cache: Cache) -> None:
    device = device_on(cache, OPEN)
    request = {
        "path": "write",
        "priv": REMOTE,
        "content-type": "application/json; charset=utf-8",
        "body": b'{"a": {"b": [1, null]}}',
    }
    reply = await device.write({}, request)
    assert cache.read(reply["path"]) == {"a": {"b": [1, None]}}
    for body in (b"{", b"[1]", b"7", b"null", b'{"a": NaN}', b"[" * 1000):
        with pytest.raises(BadRequest):
            await device.write({}, {**request, "body": body})


@pytest.mark.parametrize("body", ["text", b"bytes", b"\xff\xfe"])
async def test_other_bodies_are_values(
    cache: Cache, device: CacheDevice, body: str | bytes
) -> None:
    reply = await device.write({}, {"body": body})
    assert reply["status"] == 200
    value = await device.read({}, {"read": reply["path"]})
    assert (value.encode() if isinstance(value, str) else value) == (
        body.encode() if isinstance(body, str) else body
    )


@pytest.mark.parametrize("body", [7, 1.5, True, ["a"]])
async def test_other_types_are_refused(device: CacheDevice, body: Any) -> None:
    with pytest.raises(BadRequest, match="put it in a message"):
        await device.write({}, {"body": body})


async def test_a_remote_caller_may_not_write_unless_the_settings_say_so(
    cache: Cache, device: CacheDevice
) -> None:
    request = {"path": "write", "body": {"a": 1}, "priv": REMOTE}
    with pytest.raises(Forbidden, match=r'writers = "all"` under \[cache\]') as caught:
        await device.write({}, request)
    assert caught.value.status == 403
    assert cache.store.list(b"") == []
    reply = await device_on(cache, OPEN).write({}, request)
    assert cache.read(reply["path"]) == {"a": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LMDBStore]:
    made = LMDBStore(tmp_path)
    made.open()
    yield made
    made.close()


async def test_an_answered_write_is_on_the_disk(store: LMDBStore) -> None:
    device = device_on(Cache(store), CacheConfig())
    await device.write({}, {"body": {"a": 1}})
    assert not store._pending.records
    assert not store._committing.records


@asynccontextmanager
async def client_of(home: Path, **settings: str) -> AsyncIterator[httpx.AsyncClient]:
    flags = {"home": str(home), "http.port": 0, **settings}
    async with (
        Node(load(environment={}, flags=flags)) as node,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{node.server.port}",
            headers={"accept": "application/json"},
            trust_env=False,
        ) as client,
    ):
        yield client


async def test_over_http(tmp_path: Path) -> None:
    async with client_of(tmp_path, **{"cache.writers": "all"}) as client:
        reply = await client.post("/~cache@1.0/write", json={"hello": "world", "in": {"n": 1}})
        assert reply.status_code == 200
        path = reply.json()["path"]
        assert path == unsigned_id({"hello": "world", "in": {"n": 1}})
        for url in (
            f"/~cache@1.0/read?read={path}",
            f"/~cache@1.0/read&read={path}",
            f"/~cache@1.0/read?target={path}",
        ):
            assert (await client.get(url)).json() == {"hello": "world", "in": {"n": 1}}
        reply = await client.get("/~cache@1.0/write&hello=world&n+integer=7")
        assert reply.json()["path"] == unsigned_id({"hello": "world", "n": 7})
        reply = await client.post("/~cache@1.0/write", content=b"\xff\xfe")
        reply = await client.get("/~cache@1.0/read", params={"target": reply.json()["path"]})
        assert reply.status_code == 200
    async with client_of(tmp_path) as client:
        reply = await client.get(f"/~cache@1.0/read?read={path}")
        assert reply.json() == {"hello": "world", "in": {"n": 1}}


async def test_refusals_over_http(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        reply = await client.post("/~cache@1.0/write", json={"hello": "world"})
        assert reply.status_code == 403
        assert "[cache]" in reply.text
        # A sub-path is as remote as the request that it stands in.
        for path in (
            "/~message@1.0&x=1/set&y=(~cache@1.0/write&a=1)",
            "/(~cache@1.0/write&a=1)/path",
            "/~message@1.0/(~cache@1.0/write&a=1/path)",
            "/~(~cache@1.0/write&a=1/path)/x",
            "/~message@1.0/x~(~cache@1.0/write&a=1/path)",
        ):
            assert (await client.get(path)).status_code == 403, path
        reply = await client.get(f"/~cache@1.0/read?read={ID}")
        assert reply.status_code == 404
        assert ID in reply.text
        assert (await client.get("/~cache@1.0/read?read=short")).status_code == 400
        assert (await client.get("/~cache@1.0/read")).status_code == 400
