"""The two stores keep one contract: each against a model, and against each other."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hyperbeam.errors import BadRequest, TooLarge, Unavailable
from hyperbeam.store import MAX_KEY, LMDBStore, MemoryStore, Store


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = LMDBStore(tmp_path / "store") if request.param == "lmdb" else MemoryStore()
    made.open()
    yield made
    made.close()


def test_reads_what_was_written(store: Store) -> None:
    store.write(b"a", b"1")
    store.write(b"b", b"")
    assert store.read(b"a") == b"1"
    assert store.read(b"b") == b""
    assert store.read(b"c") is None
    store.write(b"a", b"2")
    assert store.read(b"a") == b"2"


async def test_reads_what_was_committed(store: Store) -> None:
    store.write(b"a/b", b"\x00" * 100_000)
    store.link(b"a", b"l")
    store.group(b"g")
    await store.flush()
    assert store.read(b"l/b") == b"\x00" * 100_000
    assert store.list(b"") == [b"a", b"g", b"l"]
    assert store.list(b"g") == []


def test_links_are_followed_everywhere_in_a_path(store: Store) -> None:
    store.write(b"a/b/c", b"not this")
    store.write(b"a/other/c", b"this")
    store.link(b"a/other", b"a/b")
    assert store.read(b"a/b/c") == b"this"
    assert store.resolve(b"/a//b/c/") == b"a/other/c"
    store.link(b"a/b", b"short")
    assert store.read(b"short/c") == b"this"
    assert store.type(b"short") == "composite"
    assert store.list(b"short") == [b"c"]


def test_a_write_behind_a_link_goes_where_it_leads(store: Store) -> None:
    store.link(b"real", b"alias")
    store.write(b"alias/x", b"1")
    assert store.read(b"real/x") == b"1"
    store.write(b"alias", b"replaced")
    assert store.read(b"alias") == b"replaced"
    assert store.read(b"real/x") == b"1"


def test_a_link_to_nothing_and_to_itself(store: Store) -> None:
    store.link(b"nowhere", b"l")
    store.link(b"self", b"self")
    assert store.read(b"l") is None
    assert store.type(b"l") is None
    assert store.list(b"l") is None
    assert store.type(b"self") is None
    store.write(b"nowhere", b"now")
    assert store.read(b"l") == b"now"


def test_links_in_a_circle(store: Store) -> None:
    store.link(b"a", b"b")
    store.link(b"b", b"a")
    assert store.read(b"a") is None
    assert store.resolve(b"a/x") is None
    assert store.type(b"b") is None
    assert store.list(b"b") is None
    with pytest.raises(BadRequest, match="circle"):
        store.write(b"a/x", b"1")


def test_groups_and_types(store: Store) -> None:
    store.write(b"g/deep/x", b"1")
    store.write(b"g-1", b"2")
    store.write(b"g", b"a value beside its children")
    store.group(b"g")
    assert store.read(b"g") == b"a value beside its children"
    assert store.type(b"g") == "simple"
    assert store.type(b"g/deep") == "composite"
    assert store.type(b"g/none") is None
    assert store.type(b"") == "composite"
    assert store.list(b"g") == [b"deep"]
    assert store.list(b"") == [b"g", b"g-1"]
    assert store.list(b"g-1") is None
    assert store.read(b"g/deep") is None


@pytest.mark.parametrize("key", [b"", b"/", b"k" * (MAX_KEY + 1), b"a/" + b"k" * MAX_KEY])
def test_keys_that_no_store_takes(store: Store, key: bytes) -> None:
    for refused in (
        lambda: store.write(key, b""),
        lambda: store.link(key, b"x"),
        lambda: store.link(b"x", key),
        lambda: store.group(key),
    ):
        with pytest.raises(BadRequest, match="store key"):
            refused()
    assert store.read(key) is None


def test_the_longest_key(store: Store) -> None:
    key = b"k" * MAX_KEY
    store.write(key, b"1")
    assert store.read(key) == b"1"
    assert store.list(key) is None
    assert store.type(key + b"/x") is None


def test_the_memory_store_is_bounded() -> None:
    store = MemoryStore(max_bytes=100)
    store.write(b"a", b"x" * 90)
    with pytest.raises(Unavailable, match="full"):
        store.write(b"b", b"x" * 10)
    store.write(b"a", b"")
    store.write(b"b", b"x" * 10)
    assert store.read(b"a") == b""


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    store = LMDBStore(tmp_path, max_pending=1000)
    store.open()
    with pytest.raises(TooLarge, match="at most 1000"):
        store.write(b"a", b"x" * 1001)
    with store._write_lock, pytest.raises(Unavailable, match="too slow"):
        for number in range(5):
            store.write(b"%d" % number, b"x" * 500)
    store.close()


PARTS = st.sampled_from([b"a", b"b", b"a-", b"a0"])
KEYS = st.lists(PARTS, min_size=1, max_size=3).map(b"/".join)


class Model:
    """The contract in its plainest form: a dict, and lookups that try every key."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes, ...], tuple[str, bytes]] = {}

    def find(self, key: bytes) -> tuple[bytes, ...] | None:
        parts = tuple(key.split(b"/"))
        for _ in range(33):
            for end in range(1, len(parts) + 1):
                kind, payload = self.entries.get(parts[:end], ("", b""))
                if kind == "link":
                    parts = (*payload.split(b"/"), *parts[end:])
                    break
            else:
                return parts
        return None

    def place(self, key: bytes) -> tuple[bytes, ...] | None:
        parent, slash, name = key.rpartition(b"/")
        if not slash:
            return (name,)
        found = self.find(parent)
        return None if found is None else (*found, name)

    def children(self, place: tuple[bytes, ...]) -> list[bytes]:
        size = len(place)
        return sorted(
            {key[size] for key in self.entries if len(key) > size and key[:size] == place}
        )


class StoresAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model()
        self.lmdb = LMDBStore(self.folder.name, map_size=1024**2, sync=False)
        self.stores: list[Store] = [self.lmdb, MemoryStore()]
        self.lmdb.open()

    def teardown(self) -> None:
        self.lmdb.close()
        self.folder.cleanup()

    def change(self, key: bytes, name: str, *arguments: bytes) -> tuple[bytes, ...] | None:
        place = self.model.place(key)
        for store in self.stores:
            if place is None:
                with pytest.raises(BadRequest):
                    getattr(store, name)(*arguments)
            else:
                getattr(store, name)(*arguments)
        return place

    @rule(key=KEYS, value=st.binary(max_size=4) | st.just(b"x" * 20_000))
    def write(self, key: bytes, value: bytes) -> None:
        if place := self.change(key, "write", key, value):
            self.model.entries[place] = ("value", value)

    @rule(existing=KEYS, new=KEYS)
    def link(self, existing: bytes, new: bytes) -> None:
        place = self.change(new, "link", existing, new)
        if place and b"/".join(place) != existing:
            self.model.entries[place] = ("link", existing)

    @rule(key=KEYS)
    def group(self, key: bytes) -> None:
        if place := self.change(key, "group", key):
            self.model.entries.setdefault(place, ("group", b""))

    @rule()
    def reopen(self) -> None:
        self.lmdb.close()
        self.lmdb.open()

    @rule(key=KEYS)
    def look(self, key: bytes) -> None:
        place = self.model.find(key)
        kind, payload = self.model.entries.get(place or (), ("", b""))
        children = self.model.children(place) if place else []
        for store in self.stores:
            assert store.resolve(key) == (None if place is None else b"/".join(place))
            assert store.read(key) == (payload if kind == "value" else None)
            expected = {"value": "simple", "group": "composite"}.get(kind)
            assert store.type(key) == (expected or ("composite" if children else None))
            assert store.list(key) == (children if children or kind == "group" else None)

    @invariant()
    def roots_agree(self) -> None:
        for store in self.stores:
            assert store.list(b"") == self.model.children(())


TestStoresAgree = StoresAgree.TestCase
TestStoresAgree.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
