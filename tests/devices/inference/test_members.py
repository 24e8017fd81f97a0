import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from devices.inference.members import with_member, without

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
names = st.sampled_from(["tee", "nonce", "seed", "a", 'b"{', "c\\", ""])


@given(
    st.dictionaries(names, values),
    st.sets(names),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([b"", b"\n "]),
)
def test_what_is_left_reads_as_the_rest(
    fields: dict[str, Any], taken: set[str], ascii_only: bool, indent: int | None, space: bytes
) -> None:
    text = space + json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode() + space
    rest = without(text, taken)
    assert json.loads(rest) == {name: fields[name] for name in fields if name not in taken}
    added = with_member(rest, "new", 2**40)
    assert list(json.loads(added).items()) == [*json.loads(rest).items(), ("new", 2**40)]


def test_all_other_bytes_stay() -> None:
    text = b'{ "x" : 1.50,"t\\u0065e":true , "y":[ 1, {"tee":2} ],"nonce":"n"}\n'
    assert without(text, {"tee", "nonce"}) == b'{ "x" : 1.50, "y":[ 1, {"tee":2} ]}\n'
    assert without(text, {"z"}) is text
    assert without(b'{"tee":1}', {"tee"}) == b"{}"
    assert with_member(b"{ }", "seed", 1) == b'{ "seed":1}'
