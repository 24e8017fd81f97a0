from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest, Link, TooLarge
from hyperbeam.codecs import json

from .strategies import deep, messages, same

ID = "1sCX3bUsWnd6QkOWMrBTervlsS5kXY-rNtRwlzuxB7E"

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**60), 10**60),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text("abcXYZé /", max_size=6), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(plain)
def test_what_json_has_survives(value: Any) -> None:
    assert same(value, json.decode(json.encode(value)))


@settings(deadline=None)
@given(messages)
def test_every_message_is_json(message: dict[str, Any]) -> None:
    assert isinstance(json.decode(json.encode(message)), dict)


def test_written_forms() -> None:
    message = {
        "t": b"text",
        "bytes": b"\xff\xfe\xfd",
        "atom": Atom("not_found"),
        "link": Link(ID),
        "links": [Link(ID)],
        "priv": "secret",
        "in": {"priv.x": 1, "é": None},
        "n": 2**70,
        "f": 1.5,
    }
    assert json.encode(message).decode() == (
        '{"atom":"not_found","bytes":"__79","f":1.5,"in":{"é":null},'
        f'"link+link":"{ID}","links":["{ID}"],"n":1180591620717411303424,"t":"text"}}'
    )


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("-inf")],
        {"a": object()},
        "\ud800",
        [10**5000],
        deep(2000),
        {"a": Link(ID), "a+link": "x"},
    ],
)
def test_what_is_not_written(value: object) -> None:
    with pytest.raises(BadRequest):
        json.encode(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":\n x}', "line 2, column 2"),
        (b"", "line 1, column 1"),
        (b"{} {}", "Extra data"),
        (b"[1,]", "line 1"),
        (b'{"a":NaN}', "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e400]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "too large"),
        (b'{"a":1,"\\u0061":2}', "'a' stands twice"),
        (b'["\\ud83d"]', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b"\xff", "UTF-8 at byte 0"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"[" * 129 + b"]" * 129, "128 levels deep at byte 128"),
        (b'{"a":' * 100_000, "128 levels deep"),
        (b'["a\nb"]', "line 1, column 4"),
        (b"[]," * 200 + b'"' + b'\\"' * 500_000, "line 1"),
        (b"[]," * 200 + b'"\\', "line 1"),
    ],
)
def test_what_is_not_read(text: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        json.decode(text)


def test_limits_count_only_what_is_there() -> None:
    assert json.decode(b"[" * 128 + b"]" * 128) is not None
    brackets = "[" * 500 + '\\"{'
    assert json.decode(f'["{brackets}"]'.encode()) == [brackets.replace("\\", "")]
    assert json.decode(b"[" + b"[]," * 300 + b"0]")[-1] == 0
    assert json.decode(b'["\\ud83d\\ude00"]') == ["😀"]
    with pytest.raises(TooLarge, match="200,000"):
        json.decode(b"[" + b"1," * 200_000 + b"1]")


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(), st.text('[]{}",:\\u1eE+-.dD0nulNa \n').map(str.encode)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        json.decode(data)
    except BadRequest as error:
        assert error.detail


def test_what_upstream_writes_is_typed() -> None:
    text = (
        b'{"n":"7","a":"x","l":{"1":"1","ao-types":".=\\"list\\", 1=\\"integer\\""},'
        b'"ao-types":"a=\\"atom\\", e=\\"empty-list\\", n=\\"integer\\""}'
    )
    assert json.decode(text) == {"n": 7, "a": Atom("x"), "l": [1], "e": []}
    for wrong in (b'{"ao-types":"n=\\"integer\\"","n":"x"}', b'{"ao-types":".=\\"list\\"","a":1}'):
        with pytest.raises(BadRequest):
            json.decode(wrong)
    assert json.decode(b'{"ao-types":1}') == {"ao-types": 1}
