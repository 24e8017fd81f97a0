"""Stored values: what was packed comes back; what was not packed here is refused."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest, Link, Message
from hyperbeam.codecs.msgpack import MAX_INTEGER_BITS, decode, encode, pack, unpack

from .strategies import deep, messages, same

LIMIT = 1 << MAX_INTEGER_BITS
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ID = st.text("abcXYZ019_-", min_size=43, max_size=43)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1 - LIMIT, LIMIT - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary()
    | TEXT.map(Atom)
    | ID.map(Link)
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner))


def typed(value: Any) -> Any:
    """`value` with the types that `==` does not tell apart."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), value, math.copysign(1, value) if isinstance(value, float) else None


@given(VALUES)
def test_round_trip(value: Any) -> None:
    assert typed(unpack(pack(value))) == typed(value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": "b"}, b"\x81\xa1a\xa1b"),
        (b"a", b"\xc4\x01a"),
        (Atom("ok"), b"\xd5\x01ok"),
        (Link("a" * 43), b"\xc7\x2b\x02" + b"a" * 43),
        ((1 << 64) - 1, b"\xcf" + b"\xff" * 8),
        (1 << 64, b"\xc7\x09\x03\x01" + bytes(8)),
        (-(1 << 63) - 1, b"\xc7\x09\x03\xff\x7f" + b"\xff" * 7),
    ],
)
def test_the_form_never_changes(value: Any, data: bytes) -> None:
    assert pack(value) == data
    assert unpack(data) == value


@pytest.mark.parametrize(
    "value", [LIMIT, -LIMIT, "\ud800", {"\ud800": 1}, [object()], {"a": (1,)}, {1, 2}]
)
def test_what_cannot_be_stored(value: Any) -> None:
    with pytest.raises(BadRequest, match=r"cannot be stored|limit"):
        pack(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81\xa1a",
        b"\x81\x01\x02",
        b"\x81\xc4\x01a\x01",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc1",
        b"\x01\x02",
        b"\xd4\x02x",
        b"\xd4\x01\xff",
        b"\xd4\x07x",
        b"\x91\xd6\xff\x00\x00\x00\x00",
        b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\x91" * 100_000,
        msgpack.packb(msgpack.ExtType(3, bytes(100_000))),
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


@given(st.binary())
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = unpack(data)
    except ValueError:
        return
    pack(value)


@given(messages)
def test_a_message_comes_back(message: Message) -> None:
    assert same(decode(encode(message)), message)


def test_private_keys_do_not_leave_and_depth_is_bounded() -> None:
    assert decode(encode({"a": {"priv-x": 1, "b": 2}, "priv": {}})) == {"a": {"b": 2}}
    with pytest.raises(BadRequest, match="levels"):
        encode(deep(200))
    with pytest.raises(BadRequest):
        decode(b"\x91" * 200 + b"\xc0")


@given(st.binary(max_size=80))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except BadRequest:
        return
