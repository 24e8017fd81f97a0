from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.message import Atom
from hyperbeam.verify import jcs
from hyperbeam.verify.checks import Malformed

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KEYS = st.text(st.characters(max_codepoint=127), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-jcs.MAX_INTEGER, jcs.MAX_INTEGER) | TEXT
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(VALUES)
def test_it_is_the_reference_implementations_text(value: Any) -> None:
    assert jcs.encode(value) == rfc8785.dumps(value)


@given(OBJECTS)
def test_what_is_written_is_read(value: dict[str, Any]) -> None:
    assert jcs.parse(jcs.encode(value)) == value


@given(OBJECTS, st.integers(0), st.binary(min_size=1, max_size=2))
def test_no_other_text_is_canonical(value: dict[str, Any], at: int, change: bytes) -> None:
    text = jcs.encode(value)
    at %= len(text) + 1
    other = text[:at] + change + text[at + len(change) :]
    try:
        read = jcs.parse(other)
    except Malformed:
        return
    assert jcs.encode(read) == other


def test_atoms_are_text() -> None:
    assert jcs.encode({"a": Atom("b")}) == b'{"a":"b"}'


@pytest.mark.parametrize(
    "value",
    [1.5, float("nan"), 2**53, -(2**53), "\ud800", b"a", {"é": 1}, {1: 1}, (1,), {"a": {1}}],
)
def test_what_has_no_one_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        jcs.encode(value)
