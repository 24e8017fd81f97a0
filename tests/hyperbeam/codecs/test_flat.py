import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest, Message
from hyperbeam.codecs import flat

from .strategies import deep, messages, same


@given(messages)
def test_a_message_comes_back_from_paths_and_from_text(message: Message) -> None:
    assert same(flat.decode(flat.encode(message)), message)
    assert same(flat.from_text(flat.to_text(message)), message)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({}, b""),
        ({"a": "value"}, b"a: value\n"),
        ({"a": {"b": "value"}}, b"a/b: value\n"),
        ({"x": {"y": {"z": "1"}}, "b": {}}, b"b/ao-types: empty-message\nx/y/z: 1\n"),
        ({"n": 1, "l": [Atom("ok")]}, b'ao-types: n="integer"\nl/1: ok\n'
         b'l/ao-types: .="list", 1="atom"\nn: 1\n'),
        ({"a/b": "1", "c d": "x\ny"}, b"a%2Fb: 1\nc%20d+base64: eAp5\n"),
    ],
)  # fmt: skip
def test_text(message: Message, text: bytes) -> None:
    assert flat.to_text(message) == text
    assert flat.from_text(text) == message


@given(st.binary(max_size=60) | st.text("a/:+ %\nbse64link=", max_size=30).map(str.encode))
def test_a_text_is_read_or_refused(data: bytes) -> None:
    try:
        flat.from_text(data)
    except BadRequest:
        return


@pytest.mark.parametrize(
    "text",
    [b"a", b"a: 1\na: 2", b"a: 1\na/b: 2", b"a//b: 1", b"a+base64: !", b"%ff: 1"],
)
def test_refusals(text: bytes) -> None:
    with pytest.raises(BadRequest):
        flat.from_text(text)


def test_depth() -> None:
    with pytest.raises(BadRequest):
        flat.encode(deep(200))
    with pytest.raises(BadRequest):
        flat.from_text(b"/".join([b"a"] * 200) + b": 1")
