"""Other nodes as the last tier of the store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hyperbeam import BadGateway, ConfigError, NotFound, Unavailable
from hyperbeam.codecs import httpsig, msgpack
from hyperbeam.codecs.siginfo import Fields
from hyperbeam.commitments import (
    as_signed,
    commit,
    list_id,
    message_id,
    of_committers,
    unsigned_id,
)
from hyperbeam.node import Node
from hyperbeam.store import Remotes
from hyperbeam.store.remote import MAX_ASKED
from tests.hyperbeam.conftest import start_node
from tests.hyperbeam.vectors import ed25519

__all__ = ["start_node"]

MESSAGE = {"big": {"x": "y" * 5000, "in": {"z": 1}}, "n": 1.5, "content-type": "a", "body": "b"}
Answer = tuple[int, dict[str, str], bytes]


def address(node: Node) -> str:
    return f"http://127.0.0.1:{node.server.port}"


async def test_what_another_node_has_is_found(start_node: Any) -> None:
    other = await start_node()
    id = other.cache.write(MESSAGE)
    node = await start_node(store__remotes=[address(other)])
    assert await node.resolve(None, f"/{id}/n") == 1.5
    assert await node.resolve(None, f"/{id}/big/in/z") == 1
    assert await node.resolve(None, f"/~message@1.0&l+link={id}/l/n") == 1.5
    assert (await node.resolve(None, f"/~cache@1.0/read?target={id}/big/in")) == {"z": 1}
    assert node.store.read(id.encode()) is None
    await other.stop()
    assert await node.resolve(None, f"/{id}/n") == 1.5


async def test_values_are_found_too(start_node: Any) -> None:
    other = await start_node()
    node = await start_node(store__remotes=[address(other)])
    for value in ("text", b"\xff\x00", ""):
        path = other.cache.write_value(value)
        for _ in range(2):
            found = await node.resolve(None, f"/~cache@1.0/read?target={path}")
            assert found == value
    with pytest.raises(NotFound):
        await node.resolve(None, f"/~cache@1.0/read?target=data/{'x' * 43}")


async def test_what_no_node_has_is_a_404_that_names_it(start_node: Any) -> None:
    first = await start_node()
    second = await start_node(store__remotes=[address(first)])
    first.cache.remotes = Remotes([address(second)], first._get)
    for node in (first, second):
        with pytest.raises(NotFound, match="x" * 43):
            await node.resolve(None, f"/{'x' * 43}/a")
    await first.cache.remotes.close()


async def test_scope_local_asks_nobody(start_node: Any) -> None:
    other = await start_node()
    id = other.cache.write(MESSAGE)
    node = await start_node(store__remotes=[address(other)])
    with pytest.raises(NotFound, match=id):
        await node.resolve(None, f"/~cache@1.0/read?scope=local&target={id}")


async def test_a_node_that_is_not_there_is_no_404(start_node: Any) -> None:
    other = await start_node()
    node = await start_node(store__remotes=[address(other)])
    await other.stop()
    with pytest.raises(BadGateway) as caught:
        await node.resolve(None, f"/{'x' * 43}/a")
    assert caught.value.error == "remote_store_failed"
    assert address(other) not in caught.value.detail


async def test_an_answer_has_its_limits(start_node: Any) -> None:
    other = await start_node()
    id = other.cache.write({"a": "x" * 2000})
    node = await start_node(store__remotes=[address(other)], store__remote_limit=1000)
    with pytest.raises(BadGateway):
        await node.resolve(None, f"/{id}/a")


async def test_a_node_that_does_not_answer_is_given_up(start_node: Any) -> None:
    async with silent() as url:
        node = await start_node(store__remotes=[url], store__remote_timeout=0.01)
        with pytest.raises(BadGateway):
            await node.resolve(None, f"/{'x' * 43}/a")


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that takes connections and says nothing."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()


@pytest.mark.parametrize("items", [[1, {"a": 1}], [[1, 2], ["x"]], ["a", "b"]])
async def test_a_list_is_believed_in_the_forms_that_upstream_gives(items: list[Any]) -> None:
    numbered = {str(number): item for number, item in enumerate(items, 1)}
    for message in ({"body": items}, numbered):
        headers, body = httpsig.encode(message, status=200)
        answer = (200, headers, body)
        source, _ = remotes((406, {}, b""), answer)
        assert await source.fetch(list_id(items)) == items
        source, _ = remotes((406, {}, b""), answer, (406, {}, b""), answer)
        with pytest.raises(BadGateway):
            await source.fetch(list_id([*items, "more"]))


@pytest.mark.parametrize("signers", [1, 2])
async def test_a_signed_message_is_believed_by_the_ids_of_its_signatures(signers: int) -> None:
    signed: dict[str, Any] = {"a": 1, "in": {"b": "x"}}
    for number in range(signers):
        signed = commit(signed, ed25519(number))
    packed = (200, {"content-type": "application/msgpack"}, msgpack.encode(signed))
    written, body = httpsig.encode(signed, status=200)
    fields = Fields()
    for one in signed["commitments"].values():
        fields.add(as_signed(signed, one))
    answer = (200, {**written, **fields.headers()}, body)
    for id in (message_id(signed, "all"), *of_committers(signed, "all")):
        assert await remotes(packed)[0].fetch(id) == signed
        found = await remotes((406, {}, b""), answer)[0].fetch(id)
        assert message_id(found, "all") == message_id(signed, "all")
    forged = (200, packed[1], msgpack.encode({**signed, "a": 2}))
    with pytest.raises(BadGateway):
        await remotes(forged, forged)[0].fetch(message_id(signed, "all"))


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ("ftp://x", "'ftp://x' does not begin with http://, https:// or http+unix://"),
        ("nonsense", "'nonsense' does not begin with http://, https:// or http+unix://"),
        ("localhost:1", "'localhost:1' does not begin with http://, https:// or http+unix://"),
        ("", "'' does not begin with http://, https:// or http+unix://"),
        ("http://", "'http://' names no host"),
        ("http://u:p@127.0.0.1:1", "'http://127.0.0.1:1' has a user or password in it"),
        ("http://u:p@127.0.0.1:x", "'http://127.0.0.1:x' is not a URL"),
        ("http://127.0.0.1:1/path?x=1", "'http://127.0.0.1:1/path?x=1' has a query"),
        ("http://127.0.0.1:1?", "'http://127.0.0.1:1?' has a query"),
        ("http://127.0.0.1:1/#x", "has a path or query that cannot be sent"),
        ("http://127.0.0.1:1/a b", "has a path or query that cannot be sent"),
    ],
)
async def test_an_address_that_is_none_is_said(start_node: Any, remote: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await start_node(store__remotes=[remote])
    assert caught.value.detail.startswith("[store] remotes: ")
    assert said in caught.value.detail
    assert "u:p" not in caught.value.detail


def remotes(*answers: Answer | Exception) -> tuple[Remotes, list[str]]:
    """Two nodes that give these answers, one after the other, then 404."""
    asked: list[str] = []
    waiting = list(answers)

    async def get(url: str, headers: Any) -> Answer:
        asked.append(url)
        answer = waiting.pop(0) if waiting else (404, {}, b"")
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Remotes(["http://a/", "http://b"], get), asked


def packed(value: Any) -> Answer:
    return 200, {"content-type": "application/msgpack"}, msgpack.encode(value)


@pytest.mark.parametrize("value", [{"a": 1}, {"a": {"b": [1, {"c": None}]}}])
async def test_a_message_with_its_id_is_believed(value: dict[str, Any]) -> None:
    source, asked = remotes(packed(value))
    assert await source.fetch(unsigned_id(value)) == value
    assert len(asked) == 1


async def test_lists_have_ids_too() -> None:
    source, _ = remotes(packed([1, "a"]))
    assert await source.fetch(list_id([1, "a"])) == [1, "a"]


@pytest.mark.parametrize(
    "lie",
    [
        packed({"a": 2}),
        packed("text"),
        packed(7),
        (200, {"content-type": "application/msgpack"}, b"\xc1"),
        (200, {"content-type": "application/msgpack"}, b"\x81" * 5000),
        (200, {"ao-types": "((("}, b""),
        (200, {"content-type": "multipart/form-data; boundary=x"}, b"nonsense"),
    ],
)
async def test_a_lie_is_not_believed_and_the_next_is_asked(lie: Answer) -> None:
    message = {"a": 1}
    answers = (
        [lie] if lie[1].get("content-type") == "application/msgpack" else [(404, {}, b""), lie]
    )
    source, asked = remotes(*answers, packed(message))
    assert await source.fetch(unsigned_id(message)) == message
    assert asked[-1].startswith("http://b/")
    source, _ = remotes(*answers)
    with pytest.raises(BadGateway):
        await source.fetch(unsigned_id(message))


async def test_a_node_of_another_make_gives_headers() -> None:
    message = {"a": 1, "b": "two", "c": {"d": [1, 2]}, "body": "text"}
    headers, body = httpsig.encode(message, status=200)
    extra = {"date": "now", "server": "Cowboy", "access-control-allow-origin": "*", "status": "200"}
    source, asked = remotes((500, {}, b""), (200, {**headers, **extra}, body))
    assert await source.fetch(unsigned_id(message)) == message
    assert len(asked) == 2


async def test_what_is_nowhere_is_not_asked_for_again_at_once() -> None:
    source, asked = remotes()
    for _ in range(2):
        with pytest.raises(NotFound, match="x" * 43):
            await source.fetch("x" * 43)
    assert len(asked) == 4


async def test_one_is_asked_for_once_at_a_time() -> None:
    message = {"a": 1}
    source, asked = remotes(packed(message))
    found = await asyncio.gather(*[source.fetch(unsigned_id(message)) for _ in range(3)])
    assert found == [message] * 3
    assert len(asked) == 1


def waiting_get() -> tuple[Callable[..., Awaitable[Answer]], asyncio.Event]:
    let = asyncio.Event()

    async def get(url: str, headers: Any) -> Answer:
        await let.wait()
        return packed({"a": 1})

    return get, let


async def test_there_is_a_limit_to_what_is_asked_for() -> None:
    get, _ = waiting_get()
    source = Remotes(["http://a"], get)
    tasks = [asyncio.create_task(source.fetch(f"{n:043d}")) for n in range(MAX_ASKED)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await source.fetch("x" * 43)
    await source.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)


async def test_one_that_leaves_takes_nothing_from_the_others() -> None:
    get, let = waiting_get()
    source = Remotes(["http://a"], get)
    id = unsigned_id({"a": 1})
    first, second = (asyncio.create_task(source.fetch(id)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    let.set()
    assert await second == {"a": 1}
