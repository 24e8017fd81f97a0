"""Every reader, fed with anything: a value that can be written and named, or a 4xx."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import HyperbeamError, Message
from hyperbeam.codecs import flat, httpsig, json, msgpack, structured
from hyperbeam.codecs.fields import (
    escape_name,
    parse_dictionary,
    parse_list,
    parse_parameters,
    unescape_name,
)
from hyperbeam.commitments import list_id, unsigned_id
from hyperbeam.http import signed
from hyperbeam.http.request import build
from hyperbeam.message import public

from .strategies import messages, same

READERS: dict[str, Callable[[bytes], Any]] = {
    "flat@1.0": flat.from_text,
    "json@1.0": json.decode,
    "msgpack@1.0": msgpack.decode,
}
WRITERS: dict[str, Callable[[Message], bytes]] = {
    "flat@1.0": flat.to_text,
    "json@1.0": json.encode,
    "msgpack@1.0": msgpack.encode,
}
BITS = [b"", b"\0", b"\xff", b"\r\n", b"\r\n\r\n", b"--", b"/", b"%", b"%ff", b'"', b"'", b": ",
        b"+link", b"+base64", b"ao-types", b"list", b"=", b";", b",", b"\\", b"\x81", b"\xc7",
        b"{", b"[", b"priv", b"1"]  # fmt: skip
damage = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(BITS)), min_size=1, max_size=4
)


def damaged(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """`data` with bytes taken out and others put in."""
    for place, count, more in changes:
        place %= len(data) + 1
        data = data[:place] + more + data[place + count :]
    return data


def refused(call: Callable[[], Any]) -> Any:
    """What `call` gives, None where it refuses to."""
    try:
        return call()
    except HyperbeamError as error:
        assert 400 <= error.status < 500
        assert error.detail
        error.detail.encode()
        return None


def usable(value: Any) -> None:
    """What was read can be written again, and has an id: or this is refused."""
    if isinstance(value, dict):
        refused(lambda: unsigned_id(value))
        refused(lambda: httpsig.encode(value))
    elif isinstance(value, list):
        refused(lambda: list_id(value))
    assert same(msgpack.decode(msgpack.encode({"a": value})), public({"a": value}))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(READERS)), messages, damage)
def test_damaged_texts(codec: str, message: Message, changes: list[tuple[int, int, bytes]]) -> None:
    data = damaged(WRITERS[codec](message), changes)
    usable(refused(lambda: READERS[codec](data)))


@settings(deadline=None, max_examples=200)
@given(messages, damage, st.booleans())
def test_damaged_requests(
    message: Message, changes: list[tuple[int, int, bytes]], in_head: bool
) -> None:
    headers, body = httpsig.encode({**message, "more": {"x": message, "text": "a\nb"}})
    if in_head:
        name = max(headers, key=lambda key: len(headers[key]))
        headers[name] = damaged(headers[name].encode(), changes).decode("latin-1")
    else:
        body = damaged(body, changes)
    headers.pop("content-digest", None)
    usable(refused(lambda: httpsig.decode(headers, body)))
    usable(refused(lambda: read(headers, body)))


def read(headers: dict[str, str], body: bytes) -> Message:
    """As the server reads a request, without what is only of its own."""
    scope: dict[str, Any] = {
        "method": "POST",
        "raw_path": b"/~message@1.0/keys",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(key.encode(), value.encode("latin-1")) for key, value in headers.items()],
    }
    message = signed.read(build(scope, body), raw=False)
    return {key: value for key, value in message.items() if key != "priv"}


tabms = st.recursive(
    st.one_of(st.text(max_size=9), st.binary(max_size=9)),
    lambda inner: st.dictionaries(
        st.one_of(
            st.sampled_from(["ao-types", "a", "1", "2", "a+link", "priv", "commitments"]),
            st.text(max_size=5),
        ),
        st.one_of(
            inner,
            st.sampled_from(['.="list"', '.="list", 1="integer"', 'a="list"', "empty-message"]),
        ),
        max_size=4,
    ),
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text(max_size=5), tabms, max_size=4), st.text('/%a.="+1', max_size=9))
def test_any_tabm_and_any_paths(tabm: dict[str, Any], path: str) -> None:
    usable(refused(lambda: structured.decode(tabm)))
    usable(refused(lambda: flat.decode({**tabm, path: "1"})))


@given(st.one_of(st.text(), st.text('a=(;):"?1, \\%*{', max_size=30)))
def test_any_fields(text: str) -> None:
    refused(lambda: parse_dictionary(text, "field"))
    refused(lambda: parse_list(text, "field"))
    refused(lambda: unescape_name(text, "field"))
    kind, parameters = parse_parameters(text)
    assert isinstance(kind, str)
    assert all(name == name.lower() for name in parameters)


@given(st.text())
def test_escaped_names_come_back(name: str) -> None:
    written = escape_name(name)
    assert written.isascii()
    assert unescape_name(written, "field") == name


@pytest.mark.parametrize("name", ["\ud800", "%ff", "%f", "%", "a%zz", "%C3%A9%20"])
def test_names_that_nobody_has_escaped(name: str) -> None:
    refused(lambda: unescape_name(name, "field"))
