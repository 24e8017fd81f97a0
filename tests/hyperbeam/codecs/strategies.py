"""Messages as hypothesis makes them."""

from typing import Any

from hypothesis import strategies as st

from hyperbeam import Atom, Link
from hyperbeam.codecs.structured import LINK_SUFFIX, RESERVED, normalize_key
from hyperbeam.message import is_private

ids = st.text("abcXYZ019-_", min_size=43, max_size=43)


def _is_data(key: str) -> bool:
    return not (
        is_private(key) or key in RESERVED or key.endswith(LINK_SUFFIX) or normalize_key(key) != key
    )


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.one_of(
    st.sampled_from(["body", "data", "content-type", "status", "signature", "connection", "1"]),
    st.text("abcdefgh-_.", min_size=1, max_size=8),
    text,
    ids,
).filter(_is_data)
texts = st.one_of(text, st.sampled_from(["x\r\nset-cookie: a=b", " x ", "", "\0", "é", "a" * 5000]))
data = st.binary(max_size=20).filter(lambda value: not _is_utf8(value))
numbers = st.one_of(
    st.integers(), st.integers(-(10**60), 10**60), st.floats(allow_nan=False, allow_infinity=False)
)
atoms = text.filter(lambda word: word not in ("true", "false", "null")).map(Atom)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


scalars = st.one_of(texts, data, numbers, st.booleans(), st.none(), atoms, ids.map(Link))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
messages = st.dictionaries(keys, values, max_size=6)


def same(left: Any, right: Any) -> bool:
    """Equal in value and type at every depth: 1, True and 1.0 differ, so do an Atom and a str."""
    return canonical(left) == canonical(right)


def canonical(value: Any) -> str:
    """One text for equal messages, whatever the order of their keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return repr(value)


def deep(levels: int) -> dict[str, object]:
    """A message of `levels` messages in one another."""
    message: dict[str, object] = {}
    for _ in range(levels):
        message = {"a": message}
    return message
