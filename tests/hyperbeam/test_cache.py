"""Messages in the store: once, under their id, whatever way they were written first."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.cache import INLINE_LIMIT, Cache
from hyperbeam.codecs import structured
from hyperbeam.codecs.msgpack import pack
from hyperbeam.commitments import commit, message_id, of_committers, unsigned_id, verify
from hyperbeam.errors import BadRequest, NotFound, TooLarge, Unavailable
from hyperbeam.message import Atom, Link, Message
from hyperbeam.store import LMDBStore, MemoryStore

from .vectors import ed25519

ID = "a" * 43
LARGE = {"text": "x" * INLINE_LIMIT}


@pytest.fixture
def cache() -> Cache:
    return Cache(MemoryStore())


def names(cache: Cache) -> list[str]:
    return [name.decode() for name in cache.store.list(b"") or []]


def loaded(cache: Cache, value: Any) -> Any:
    """`value` with everything behind its links."""
    value = cache.load(value)
    if isinstance(value, dict):
        return {key: loaded(cache, item) for key, item in value.items()}
    return [loaded(cache, item) for item in value] if isinstance(value, list) else value


def test_a_message_lies_under_its_unsigned_id(cache: Cache) -> None:
    message = {"hello": "world", "n": 1 << 70, "flag": True, "nothing": None, "atom": Atom("ok")}
    id = cache.write(message)
    assert id == unsigned_id(message)
    assert cache.read(id) == message
    assert type(cache.read(id)["atom"]) is Atom
    assert cache.write({}) == unsigned_id({})
    assert cache.read(unsigned_id({})) == {}


def test_small_messages_lie_inside_and_large_ones_under_their_own_id(cache: Cache) -> None:
    message = {"small": {"a": {"b": 1}}, "large": LARGE, "list": [LARGE, {"c": 2}]}
    id = cache.write(message)
    link = Link(unsigned_id(LARGE))
    assert id == unsigned_id(message)
    assert cache.read(id) == {"small": {"a": {"b": 1}}, "large": link, "list": [link, {"c": 2}]}
    assert names(cache) == sorted([id, link.id])
    assert cache.load(link) == LARGE
    assert cache.load("no link") == "no link"


def test_what_is_written_twice_is_kept_once(tmp_path: Path) -> None:
    store = LMDBStore(tmp_path)
    store.open()
    cache = Cache(store)
    id = cache.write({"large": LARGE})
    store.close()
    store.open()
    assert cache.write({"large": LARGE}) == id
    assert cache.write({"other": LARGE}) != id
    assert len(names(cache)) == 3
    assert len(store._pending.records) + len(store._committing.records) <= 1
    store.close()


def test_a_link_may_be_written_without_what_it_leads_to(cache: Cache) -> None:
    id = cache.write({"link": Link(ID), "same+link": ID})
    assert cache.read(id) == {"link": Link(ID), "same": Link(ID)}
    with pytest.raises(NotFound, match=ID):
        cache.load(cache.read(id)["link"])


def test_private_keys_are_never_stored(cache: Cache) -> None:
    secret = {"priv": {"key": "secret"}, "priv.x": "secret", "a": 1}
    id = cache.write({**secret, "in": secret, "list": [{**secret, **LARGE}]})
    assert loaded(cache, Link(id)) == {"a": 1, "in": {"a": 1}, "list": [{"a": 1, **LARGE}]}
    for name in names(cache):
        assert b"secret" not in (cache.store.read(name.encode()) or b"")


def test_what_the_id_does_not_cover_is_not_stored(cache: Cache) -> None:
    id = cache.write({"a": 1, **dict.fromkeys(structured.RESERVED, "x")})
    assert id == unsigned_id({"a": 1})
    assert cache.read(id) == {"a": 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"Key": b"text"}, {"key": "text"}),
        ({"a": Atom("false")}, {"a": False}),
        ({"a": Atom("null"), "b": [Atom("true")]}, {"a": None, "b": [True]}),
        ({"a": bytearray(b"\xff")}, {"a": b"\xff"}),
        ({"a+link": ID}, {"a": Link(ID)}),
    ],
)
def test_messages_of_one_id_are_stored_in_one_form(
    cache: Cache, first: dict[str, Any], second: dict[str, Any]
) -> None:
    id = cache.write(first)
    assert id == unsigned_id(second)
    read = cache.read(id)
    assert read == second
    assert [type(value) for value in read.values()] == [type(v) for v in second.values()]


def test_reading_inside_a_message(cache: Cache) -> None:
    id = cache.write({"a": {"b": LARGE}, "list": [{"c": 1}, [2, LARGE]]})
    assert cache.read(id, "a", "b", "text") == LARGE["text"]
    assert cache.read(id, "A", "b") == LARGE
    assert cache.read(id, "list", "1", "c") == 1
    assert cache.read(id, "list", "2", "2") == LARGE
    for path in (["no"], ["a", "no"], ["list", "0"], ["list", "3"], ["list", "x"], ["list", "²"]):
        with pytest.raises(NotFound, match="/".join([id, *path])):
            cache.read(id, *path)
    with pytest.raises(NotFound):
        cache.read(id, "a", "b", "text", "deeper")


@pytest.mark.parametrize("id", ["", "short", "a" * 44, "a" * 42 + "/", "ä" * 43, "a" * 42 + "\n"])
def test_what_cannot_be_an_id(cache: Cache, id: str) -> None:
    with pytest.raises(BadRequest, match="43 characters"):
        cache.read(id)
    with pytest.raises(BadRequest, match="43 characters"):
        cache.read_value(id)


def test_an_unknown_id_is_named(cache: Cache) -> None:
    with pytest.raises(NotFound, match=ID):
        cache.read(ID)
    with pytest.raises(NotFound, match=f"data/{ID}"):
        cache.read_value(ID)


@pytest.mark.parametrize("value", ["text", "", b"\xff\x00", "é" * 1000])
def test_values_lie_under_their_digest(cache: Cache, value: str | bytes) -> None:
    path = cache.write_value(value)
    assert path.startswith("data/")
    assert cache.read_value(path[5:]) == value
    assert cache.write_value(value) == path
    with pytest.raises(NotFound):
        cache.read(path[5:])


def test_a_value_has_upstreams_name(cache: Cache) -> None:
    assert cache.write_value(b"abc") == "data/ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"


def test_sizes_and_depths_are_bounded() -> None:
    cache = Cache(MemoryStore(), max_size=10_000)
    with pytest.raises(TooLarge, match="10000"):
        cache.write({str(number): {"text": str(number) * 2000} for number in range(6)})
    with pytest.raises(TooLarge, match="10000"):
        cache.write_value("x" * 10_001)
    deep: Any = {}
    wide: Any = []
    for _ in range(1000):
        deep, wide = {"a": deep}, [wide]
    for message in (deep, {"a": wide}):
        with pytest.raises(BadRequest, match="levels deep"):
            cache.write(message)
    assert names(cache) == []


@pytest.mark.parametrize(
    "message",
    [
        {1: 2},
        {"a": object()},
        {"a": float("nan")},
        {"a": {"b": [{"c": float("inf")}]}},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": 1, "A": 2},
        {"a": 1, "a+link": ID},
        {"a": 1 << 20_000},
        [],
        "text",
    ],
)
def test_what_is_no_message(cache: Cache, message: Any) -> None:
    with pytest.raises(BadRequest):
        cache.write(message)
    assert names(cache) == []


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa1a", pack([1]), pack("text")])
def test_a_damaged_record_is_said(cache: Cache, data: bytes) -> None:
    cache.store.write(ID.encode(), data)
    with pytest.raises(Unavailable, match=f"{ID} cannot be read") as caught:
        cache.read(ID)
    assert caught.value.error == "store_damaged"


async def test_flush_makes_it_durable(tmp_path: Path) -> None:
    store = LMDBStore(tmp_path)
    store.open()
    cache = Cache(store)
    id = cache.write({"a": 1})
    await cache.flush()
    assert not store._pending.records
    assert not store._committing.records
    assert cache.read(id) == {"a": 1}
    store.close()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.text("abcAB-/ é1", min_size=1, max_size=4)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary(max_size=8)
    | st.sampled_from([Atom("ok"), Atom("true"), Link(ID), "long " * 300])
)
INNER = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


@given(st.dictionaries(KEYS, INNER, max_size=5))
def test_any_message_comes_back_in_its_one_form(message: dict[str, Any]) -> None:
    cache = Cache(MemoryStore())
    try:
        tabm = structured.encode(message)
    except BadRequest:
        with pytest.raises(BadRequest):
            cache.write(message)
        return
    id = cache.write(message)
    assert id == unsigned_id(message)
    read = cache.read(id)
    assert unsigned_id(read) == id
    expected = structured.decode(tabm)

    def through(value: Any) -> Any:
        if isinstance(value, Link) and value.id != ID:
            return through(cache.load(value))
        if isinstance(value, dict):
            return {key: through(item) for key, item in value.items()}
        return [through(item) for item in value] if isinstance(value, list) else value

    assert through(read) == expected


@pytest.mark.parametrize("signers", [1, 2])
def test_a_signed_message_is_read_by_its_signatures_with_them(signers: int) -> None:
    cache = Cache(MemoryStore())
    message: Message = {"a": 1, "In": {"x": "y" * 5000}, "b": b"\xff"}
    signed = message
    for number in range(signers):
        signed = commit(signed, ed25519(number))
    id = cache.write(signed)
    assert id == unsigned_id(message)
    assert "commitments" not in cache.read(id)
    for name in (message_id(signed, "all"), *of_committers(signed, "all")):
        found = cache.read(name)
        assert found["commitments"] == signed["commitments"]
        verify({**found, "in": message["In"]})
        assert cache.read(name, "in", "x") == "y" * 5000


def test_commitments_that_do_not_hold_are_not_kept() -> None:
    cache = Cache(MemoryStore())
    signed = commit({"a": 1}, ed25519(1))
    for forged in ({**signed, "a": 2}, {**signed, "b": 2}):
        cache.write(forged)
        for name in of_committers(forged, "all"):
            with pytest.raises(NotFound):
                cache.read(name)
