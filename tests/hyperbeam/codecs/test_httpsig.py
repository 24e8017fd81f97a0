from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest
from hyperbeam.codecs import httpsig

from .strategies import deep, messages, same
from .wire import TRANSPORT, request

BODY = b"--b\r\n%b\r\n--b--"
TYPE = {"content-type": 'multipart/form-data; boundary="b"'}


@settings(deadline=None, max_examples=300)
@given(messages)
def test_a_message_survives_the_wire(message: dict[str, Any]) -> None:
    headers, body = httpsig.encode(message)
    for name, value in headers.items():
        assert name == name.lower()
        assert name.isascii()
        assert value.isascii()
        assert value == value.strip()
        assert not set(value) & set("\r\n\0")
        assert name not in ("connection", "signature", "content-length", "transfer-encoding")
    if body:
        assert headers["content-digest"] == httpsig.content_digest(body)
    elif message.get("body") == "":
        # HTTP does not tell an empty body from none.
        del message["body"]
    assert same(message, httpsig.decode(headers, body))


@pytest.mark.parametrize(
    ("value", "types", "body"),
    [
        (8734, 'body="integer", status="integer"', b"8734"),
        ("world", 'status="integer"', b"world"),
        (Atom("not_found"), 'body="atom", status="integer"', b"not_found"),
        (1.5, 'body="float", status="integer"', b"1.50000000000000000000e+00"),
    ],
)
def test_plain_values(value: object, types: str, body: bytes) -> None:
    """Rows 3, 6, 18 and 33 of the wire table."""
    assert httpsig.encode(value, status=200) == (
        {
            "ao-result": "body",
            "ao-types": types,
            "status": "200",
            "content-digest": httpsig.content_digest(body),
        },
        body,
    )


def test_content_digest() -> None:
    digest = "sha-256=:SG6kYiTRu0+2gPNPfJrZao8k7Ii+c+qOWmxlJg6cuKc=:"
    assert httpsig.content_digest(b"world") == digest


def test_lists_and_typed_keys() -> None:
    """Rows 5, 9 and 29 of the wire table."""
    assert httpsig.encode(["a", "b"], status=200) == (
        {"ao-types": 'status="integer"', "1": "a", "2": "b", "status": "200"},
        b"",
    )
    assert httpsig.encode([1, 2, 3], status=200)[0] == {
        "ao-types": '1="integer", 2="integer", 3="integer", status="integer"',
        "1": "1",
        "2": "2",
        "3": "3",
        "status": "200",
    }
    assert httpsig.encode({"version": 0.9})[0] == {
        "ao-types": 'version="float"',
        "version": "9.00000000000000022204e-01",
    }


@pytest.mark.parametrize(
    ("message", "digest", "boundary"),
    [
        (
            {"1": {"template": "/v1/.*", "node": {"prefix": "http://127.0.0.1:9801"}}},
            "tfwLZmTNUFpvErboeHJ53dIDht+OHoXYAw3U9xOw8cc=",
            "SOxAQoJ2IUGAwbP46pmwxnr6r3RzY4WBpbOUfC7Ci58",
        ),
        (
            {"1": {"accept_bundle": "true", "hbpeer_note": "hi", "method": "POST", "path": "info"}},
            "swVMcfqcUGLN4V9CWSVWPN8dHU5UxgPYBJBGOZwXrDQ=",
            "a0LyyHGw0S0J0xGK8FAm_SkvcX9-XWflyEOIkRzM-mA",
        ),
    ],
)
def test_nested_messages_are_upstreams_parts(
    message: dict[str, object], digest: str, boundary: str
) -> None:
    """Rows 48 and 131 of the wire table, byte for byte."""
    headers, body = httpsig.encode(message, bundle=True, status=200)
    assert headers == {
        "ao-types": 'status="integer"',
        "status": "200",
        "content-type": f'multipart/form-data; boundary="{boundary}"',
        "content-digest": f"sha-256=:{digest}:",
    }
    assert httpsig.decode(headers, body) == {**message, "status": 200}


def test_a_captured_request_is_written_alike() -> None:
    headers, body = request("04")
    message = httpsig.decode(headers, body)
    assert message == {
        **{name: headers[name] for name in TRANSPORT if name != "accept-bundle"},
        "accept-bundle": True,
        "n": 42,
        "f": 1.5,
        "t": True,
        "empty": {},
        "l": [1, "two", 3],
        "path": "/~message@1.0/n",
    }
    for name in ("te", "host", "connection", "content-length"):
        del message[name], headers[name]
    assert httpsig.encode(message) == (headers, body)


def test_what_cannot_stand_in_a_header_is_a_part() -> None:
    message = {
        "a": "x\r\nset-cookie: a=b",
        "connection": "close",
        "long": "x" * 4097,
        "content-type": "text/plain",
        "body": "text",
        'we"ird\n': "1",
    }
    headers, body = httpsig.encode(message)
    assert set(headers) == {"content-type", "content-digest"}
    assert b'name="we%22ird%0a"' in body
    assert httpsig.decode(headers, body) == message
    assert set(httpsig.encode({"a": "x" * 4096})[0]) == {"a"}


def test_a_long_head_goes_on_in_the_body() -> None:
    message = {str(number): number for number in range(1000)}
    headers, body = httpsig.encode(message)
    assert len(headers) <= 100
    assert sum(map(len, headers.values())) < 32768
    assert httpsig.decode(headers, body) == message


def test_a_body_that_looks_like_parts_stays_a_body() -> None:
    headers, body = httpsig.encode({"a": {"b": "1"}})
    opaque = {"content-type": headers["content-type"], "body": body.decode()}
    assert httpsig.decode(*httpsig.encode(opaque)) == opaque


def test_ids_as_keys_keep_their_case() -> None:
    id = "NKRxtJ9itYAW8sV1_2BKSqMjEUGa5CU-lX7__3NPq1Y"
    assert httpsig.encode({id: 'a "b"'})[0] == {"ao-ids": f'{id}="a \\"b\\""'}
    assert httpsig.encode({"access-control-allow-credentials": "true"})[0] == {
        "access-control-allow-credentials": "true"
    }


def test_headers_are_read_as_servers_give_them() -> None:
    assert httpsig.decode({"A": "é".encode().decode("latin-1"), "b": "日", "c": "\xe9"}, b"") == {
        "a": "é",
        "b": "日",
        "c": b"\xe9",
    }
    signed = {"signature": "s", "signature-input": "s", "content-digest": "x", "a": "1"}
    assert httpsig.decode(signed, b"") == {"a": "1"}
    assert httpsig.decode({"ao-body-key": "data"}, b"x") == {"data": "x"}


def test_forms_of_browsers_are_read() -> None:
    body = (
        b'preamble\r\n--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\none\r\n\r\ntwo\r\n--b--\r\nepilogue"
    )
    assert httpsig.decode({"content-type": "multipart/form-data; boundary=b"}, body) == {
        "a": "",
        "f": {"content-type": "text/plain", "body": "one\r\n\r\ntwo"},
    }
    assert httpsig.decode(TYPE, b"--b\r\n--b--") == {}


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (b"a: 1", "part 1 .* content-disposition"),
        (b"content-disposition: form-data\r\na: 1", "part 1 .* no name"),
        (b"nothing", "part 1 .* colon"),
        (b'content-disposition: form-data;name="a"\r\na: 1\r\nA: 2', "part 1 .* 'a' twice"),
        (b'content-disposition: form-data;name="h"\r\na: 1', "'h' is there twice"),
        (b'content-disposition: form-data;name="h/x"\r\na: 1', "no message"),
        (b'content-disposition: form-data;name="%ff"\r\na: 1', "part 1"),
        (b'content-disposition: form-data;name="' + b"a/" * 200 + b'"', "128 levels"),
        (b'content-disposition: form-data;name="a"\r\nao-types: b="x"\r\nb: 1', "'x'"),
    ],
)
def test_bad_parts(part: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        httpsig.decode({**TYPE, "h": "1"}, BODY % part)


@pytest.mark.parametrize("body", [b"", b"--b\r\n", b"--c\r\n\r\n--c--", b"\r\n--b--"])
def test_a_multipart_body_has_to_be_whole(body: bytes) -> None:
    with pytest.raises(BadRequest, match="boundary"):
        httpsig.decode(TYPE, body)


def test_too_deep() -> None:
    with pytest.raises(BadRequest, match="128"):
        httpsig.encode(deep(2000))


HOSTILE = st.text('abx/.=;:", \r\n-+1%\\', max_size=30)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["ao-types", "ao-ids", "ao-body-key", "content-type", "a"]), HOSTILE
    ),
    st.binary(max_size=60),
)
def test_any_headers_are_decoded_or_refused(headers: dict[str, str], body: bytes) -> None:
    try:
        httpsig.decode(headers, body)
    except BadRequest as error:
        assert error.detail


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(HOSTILE, st.text(max_size=20), st.booleans()), max_size=4))
def test_any_parts_are_decoded_or_refused(parts: list[tuple[str, str, bool]]) -> None:
    written = b"\r\n--b\r\n".join(
        f'content-disposition: form-data;name="{name}"\r\n{"a: " if inner else ""}{rest}'.encode(
            "utf-8", "replace"
        )
        for name, rest, inner in parts
    )
    try:
        httpsig.decode(TYPE, BODY % written)
    except BadRequest as error:
        assert error.detail
