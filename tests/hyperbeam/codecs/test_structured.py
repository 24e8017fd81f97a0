import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest, Link
from hyperbeam.codecs import structured

from .strategies import deep, messages, same

ID = "1sCX3bUsWnd6QkOWMrBTervlsS5kXY-rNtRwlzuxB7E"


@settings(deadline=None)
@given(messages)
def test_a_message_survives(message: dict[str, object]) -> None:
    assert same(message, structured.decode(structured.encode(message)))


def test_the_text_form_is_upstreams() -> None:
    message = {"n": 42, "f": 1.5, "t": True, "s": "x", "l": [1, "two", 3], "e": {}, "Up": None}
    assert structured.encode(message) == {
        "ao-types": 'f="float", n="integer", t="atom", up="atom"',
        "n": "42",
        "f": "1.50000000000000000000e+00",
        "t": "true",
        "s": "x",
        "l": {"ao-types": '.="list", 1="integer", 3="integer"', "1": "1", "2": "two", "3": "3"},
        "e": {},
        "up": "null",
    }


def test_types_name_keys_escaped() -> None:
    assert structured.encode({"a b": 1, "é": 2})["ao-types"] == 'a%20b="integer", %c3%a9="integer"'
    key = "A" * 43
    assert structured.encode({key: 1}) == {"ao-types": f'{"%41" * 43}="integer"', key: "1"}


def test_links_and_what_is_left_out() -> None:
    message = {"a": Link(ID), "priv": 1, "priv.x": 2, "ao-types": "b", "commitments": {}, "b": "c"}
    assert structured.encode(message) == {"a+link": ID, "b": "c"}
    assert structured.decode({"a+link": ID, "priv": "x"}) == {"a": Link(ID)}
    assert structured.decode({"a+link": "no id"}) == {"a+link": "no id"}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "-7", -7),
        ("integer", "1" * 40, int("1" * 40)),
        ("float", "1.5", 1.5),
        ("float", "1.50000000000000000000e+00", 1.5),
        ("Atom", "not_found", Atom("not_found")),
        ("atom", "true", True),
        ("atom", '"two words"', Atom("two words")),
        ("boolean", "false", False),
        ("list", "1, 2.5, a, ?1", [1, 2.5, Atom("a"), True]),
        ("list", '"(ao-type-integer) 1", "x", "(ao-type-atom) y";p=1', [1, "x", Atom("y")]),
        ("map", 'a=1, b="x, y", c', {"a": 1, "b": "x, y", "c": True}),
        ("list", "", []),
        ("map", "", {}),
        ("binary", "x", "x"),
    ],
)
def test_typed_values(kind: str, text: str, value: object) -> None:
    assert same(structured.decode_value(kind, text), value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"),
        ("integer", "٣"),
        ("integer", " 1"),
        ("integer", "9" * 5000),
        ("float", "nan"),
        ("float", "1e999"),
        ("float", "x"),
        ("date", "@1"),
        ("list", '"open'),
        ("list", "1 2"),
        ("list", ":%:"),
        ("map", "(1)"),
    ],
)
def test_badly_typed_values(kind: str, text: str) -> None:
    with pytest.raises(BadRequest):
        structured.decode_value(kind, text)


@pytest.mark.parametrize(
    "types",
    [
        '1="integer",  .="other"',
        "1=integer",
        '1="INTEGER"; x=1',
        '\t1="integer" ,other="float",',
        '%31="integer"',
        '="integer", 1="integer"',
    ],
)
def test_ao_types_is_read_leniently(types: str) -> None:
    assert structured.decode({"1": "5", "ao-types": types}) == {"1": 5}


@pytest.mark.parametrize(
    ("tabm", "reason"),
    [
        ({"n": "x", "ao-types": 'n="integer"'}, "'n'"),
        ({"n": b"\xff", "ao-types": 'n="integer"'}, "'n'"),
        ({"n": "1", "ao-types": "n=("}, "ao-types"),
        ({"n": "1", "ao-types": 'n="integer" "x"'}, "character 0"),
        ({"n": "1", "ao-types": '%ff="integer"'}, "ao-types"),
        ({"n": "1", "ao-types": {}}, "ao-types"),
        ({"l": {"1": "a", "3": "b", "ao-types": '.="list"'}}, "'2'"),
        ({"ao-types": '.="list"'}, "list"),
        ({"a": "1", "a+link": ID}, "'a'"),
    ],
)
def test_what_cannot_be_decoded(tabm: dict[str, object], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        structured.decode(tabm)


@pytest.mark.parametrize(
    "message",
    [
        {"A": 1, "a": 2},
        {"a": {}, "a+link": "x"},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": object()},
        {"a": "\ud800"},
        {"\ud800": "a"},
        {"a": [10**5000]},
        deep(2000),
    ],
)
def test_what_cannot_be_encoded(message: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        structured.encode(message)


def test_depth_is_bounded_both_ways() -> None:
    assert structured.decode(structured.encode(deep(128))) == deep(128)
    with pytest.raises(BadRequest, match="128 levels"):
        structured.decode(deep(2000))


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=10)), st.text())
def test_any_text_is_decoded_or_refused(tabm: dict[str, object], types: str) -> None:
    try:
        structured.decode({**tabm, "ao-types": types})
    except BadRequest as error:
        assert error.detail


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["integer", "float", "atom", "list", "map"]), st.text('a1."=,;:?() \\-*+'))
def test_any_typed_text_is_decoded_or_refused(kind: str, text: str) -> None:
    try:
        structured.decode_value(kind, text)
    except BadRequest as error:
        assert error.detail
