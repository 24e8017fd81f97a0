import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.inference.strict_json import parse_object
from hyperbeam import BadRequest, HyperbeamError, TooLarge
from hyperbeam.codecs.json_reader import MAX_DEPTH, MAX_ITEMS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "line 1, column 2"),
        (b'{"a": 1}\n}', "line 2, column 1"),
        (b"[]", "expected an object, but got an array"),
        (b"null", "got null"),
        (b"1", "got an integer"),
        (b'"x"', "got a string"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8 at byte 0"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": 1, "a": 1}', "'a' stands twice in one object, in the top level"),
        (b'{"a": 1, "\\u0061": 2}', "'a' stands twice"),
        (b'{"m": [0, {"b": {"c": 1, "c": 2}}]}', "'c' stands twice in one object, in m[1].b"),
        (b'{"a": NaN}', "NaN is not JSON, in a"),
        (b'{"a": [Infinity]}', "Infinity is not JSON, in a[0]"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": {"b": 1e400}}', "1e400 is too large, in a.b"),
        (b'{"a": -1e400}', "too large"),
        (b'{"a": ' + b"9" * 310 + b"}", "too large"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "too large"),
        (b'{"a": ["x", "\\ud800"]}', "a[1] has one half of a surrogate pair"),
        (b'{"a": "\\udc00\\ud800"}', "a has one half"),
        (b'{"a": {"\\uD83D": 1}}', "a key in a has one half"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "stands twice"),
        (b'{"messages": 1, "Messages": 2}', "'messages' and 'Messages' differ only in case"),
        (b'{"a": "\t"}', "control character"),
        (b"\x00", "column 1"),
    ],
)
def test_what_parsers_disagree_on_is_refused_by_name_and_place(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_object(body)
    assert words in caught.value.detail
    assert caught.value.error == "invalid_json"
    caught.value.detail.encode("utf-8")


def test_integers_stay_exact_and_pairs_are_text() -> None:
    found = parse_object(
        b'{"a": 9007199254740993, "b": "\\ud83d\\ude00 \\\\ud800", "c": {"A": 1, "a": 2}}'
    )
    assert found == {"a": 2**53 + 1, "b": "\U0001f600 \\ud800", "c": {"A": 1, "a": 2}}
    assert parse_object(b'{"a": ' + b"9" * 308 + b"}")["a"] == 10**308 - 1


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 1_000, 100_000])
def test_nesting_over_the_limit_is_refused_at_any_depth(opening: bytes, depth: int) -> None:
    closing = b"]" if opening == b"[" else b"}"
    for end in (b"1" + closing * depth + b"}", b""):
        with pytest.raises(BadRequest):
            parse_object(b'{"a":' + opening * depth + end)


def test_the_deepest_nesting_that_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert parse_object(b'{"a":[' + b"[]," * 1000 + b"[]]}")


def test_too_many_marks_are_refused_before_parsing() -> None:
    with pytest.raises(TooLarge):
        parse_object(b"{" * (MAX_ITEMS + 1))
    with pytest.raises(TooLarge):
        parse_object(b'{"a": "' + b"," * MAX_ITEMS + b'"}')


def test_a_flaw_below_long_keys_is_named_in_few_words() -> None:
    body = b'{"a":' * 100 + b"[" + b"1," * 1000 + b"NaN]" + b"}" * 100
    with pytest.raises(BadRequest) as caught:
        parse_object(body.replace(b'"a"', b'"' + b"k" * 500 + b'"'))
    assert "[1000]" in caught.value.detail
    assert len(caught.value.detail) < 10_000


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_refusal(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except HyperbeamError as error:
        assert error.status in (400, 413)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('aé"\\\x01'), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "ç"]), _JSON), st.booleans())
def test_sound_json_is_read_as_json_has_it(value: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_object(body) == value


@given(st.lists(st.floats()))
def test_only_finite_numbers_are_read(values: list[float]) -> None:
    body = json.dumps({"a": values}).encode()
    if all(map(math.isfinite, values)):
        assert parse_object(body) == {"a": values}
    else:
        with pytest.raises(BadRequest):
            parse_object(body)
