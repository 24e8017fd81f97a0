"""Results as replies: codecs, headers, statuses, and what must never be sent."""

import json
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import Atom, HyperbeamError, Link, Message, NotFound, Unavailable
from hyperbeam.codecs import httpsig
from hyperbeam.http import reply as replies
from hyperbeam.http.exchange import head
from hyperbeam.http.headers import DEVICE_ONLY, cors
from hyperbeam.http.reply import Reply

JSON = {"accept": "application/json"}
NOSNIFF = b"x-content-type-options"
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def request(headers: dict[str, str] | None = None, **keys: Any) -> Message:
    headers = headers or {}
    return {
        **headers,
        "method": "GET",
        "path": "/~message@1.0",
        "body": b"",
        "priv": {"request-headers": frozenset(headers), "headers": {"authorization": "secret"}},
        **keys,
    }


def render(result: Any, headers: dict[str, str] | None = None, **keys: Any) -> Reply:
    return replies.render(result, request(headers, **keys))


def fields(reply: Reply) -> dict[str, str]:
    names = [name for name, _ in reply.headers]
    assert len(names) == len(set(names))
    return {name.decode(): value.decode() for name, value in reply.headers}


@pytest.mark.parametrize("body", [b'{"a": 1}', '{"a": 1}'])
@pytest.mark.parametrize("headers", [{}, JSON, HTML, {"accept-codec": "json@1.0"}])
def test_a_body_with_a_type_is_sent_as_it_is(body: str | bytes, headers: dict[str, str]) -> None:
    result = {
        "status": 404,
        "content-type": "application/json",
        "body": body,
        "x-text": "one",
        "x-number": 7,
        "x-float": 1.5,
        "x-true": True,
        "x-none": None,
        "x-list": [1],
        "x-message": {"a": 1},
        "priv": {"key": "secret"},
        "priv.key": "secret",
    }
    reply = render(result, headers)
    assert (reply.status, reply.body) == (404, b'{"a": 1}')
    sent = fields(reply)
    assert sent.pop("access-control-allow-origin") == "*"
    assert {name: value for name, value in sent.items() if not name.startswith("access-")} == {
        "content-type": "application/json",
        "content-length": "8",
        "ao-types": 'status="integer"',
        "content-digest": "sha-256=:+dhgKMbg1k4iUYb5astpM4ssWXZN95FiEH9cS7NNExA=:",
        "status": "404",
        "x-text": "one",
        "x-number": "7",
        "x-float": "1.5",
        "x-true": "true",
        "x-content-type-options": "nosniff",
    }


def test_json_shows_data_only() -> None:
    headers = {**JSON, "host": "x", "user-agent": "curl", "x-own": "1", "a": "2"}
    result = {
        **headers,
        "method": "GET",
        "path": "/~message@1.0",
        "body": b"",
        "a": "changed",
        "status": 201,
        "n": {"priv": "secret", "b": [{"priv": "secret"}]},
        "priv": "secret",
    }
    reply = render(result, headers)
    assert reply.status == 201
    assert json.loads(reply.body) == {"a": "changed", "status": 201, "n": {"b": [{}]}}
    assert fields(reply)["content-type"] == "application/json"


def test_json_keeps_what_only_looks_like_the_request() -> None:
    result = {"path": "/other", "body": "other", "method": "POST", "x-inline": "1"}
    assert json.loads(render(result, JSON, **{"x-inline": "1"}).body) == result
    assert json.loads(render({"body": "hi"}, JSON, body=b"hi").body) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, b"7"),
        (True, b"true"),
        (None, b"null"),
        ("a", b'"a"'),
        (b"a", b'"a"'),
        ([1, "b"], b'[1,"b"]'),
        ({}, b"{}"),
    ],
)
def test_plain_values_are_bare_json(value: Any, text: bytes) -> None:
    assert render(value, JSON).body == text
    assert render(value, {"accept-codec": "json@1.0", "accept": "text/html"}).body == text


@pytest.mark.parametrize("result", [7, "world", {"a": "b", "n": 1}, {"status": 404, "body": "no"}])
@pytest.mark.parametrize("headers", [{}, {"accept": "*/*"}, {"accept-codec": "httpsig@1.0"}])
def test_the_default_is_what_upstream_writes(result: Any, headers: dict[str, str]) -> None:
    reply = render(result, headers)
    status = result.get("status", 200) if isinstance(result, dict) else 200
    expected, body = httpsig.encode(result, bundle=False, status=status)
    assert (reply.status, reply.body) == (status, body)
    sent = fields(reply)
    assert expected.items() <= sent.items()
    assert sent["status"] == str(status)
    assert sent["content-length"] == str(len(body))


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("application/*", "application/json"),
        ("APPLICATION/JSON; charset=utf-8", "application/json"),
        ("text/html;q=0.1, application/json", "application/json"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/html, application/json;q=0.9, */*;q=0.8", "text/html; charset=utf-8"),
        ("application/json;q=0, text/html;q=0.2", "text/html; charset=utf-8"),
        ("application/json;q=x", None),
        ("image/png", None),
        ("*/*", None),
        ("", None),
        ("text/event-stream", None),
    ],
)
def test_accept_is_weighed(accept: str, kind: str | None) -> None:
    sent = fields(render({"a": 1}, {"accept": accept}))
    assert sent.get("content-type") == kind
    assert "accept" in sent["vary"]


def test_an_unknown_codec_is_406_with_the_known_ones() -> None:
    with pytest.raises(HyperbeamError, match=r"json@1\.0") as caught:
        render({"a": 1}, {"accept-codec": "no@1.0"})
    assert caught.value.status == 406


@pytest.mark.parametrize("status", [404, "404", Atom("404"), HTTPStatus.NOT_FOUND])
def test_a_status_is_a_number_or_its_digits(status: Any) -> None:
    assert render({"status": status, "content-type": "text/plain", "body": ""}).status == 404


@pytest.mark.parametrize(
    "status",
    [
        "7",
        "0404",
        "+404",
        "\u0664\u0660\u0664",
        "999",
        "",
        b"404",
        7,
        1000,
        100,
        -1,
        True,
        404.0,
        None,
        2**70,
    ],
)
def test_a_status_that_is_none_is_200(status: Any) -> None:
    assert render({"status": status, "content-type": "text/plain", "body": ""}).status == 200


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    reply = render({"status": status, "content-type": "text/plain", "body": "x"})
    assert reply.body == b""
    assert "content-length" not in fields(reply)


def test_results_cannot_set_the_headers_of_the_connection() -> None:
    own = {
        "content-length": 3,
        "transfer-encoding": "chunked",
        "connection": "close",
        "access-control-allow-origin": "http://a.example",
        "upgrade": "h2c",
    }
    sent = fields(render({"content-type": "text/plain", "body": "hello", **own}))
    assert sent["content-length"] == "5"
    assert sent["access-control-allow-origin"] == "*"
    assert not {"transfer-encoding", "connection", "upgrade"} & set(sent)


@pytest.mark.parametrize(
    ("path", "readable"),
    [
        ("/~meta@1.0/claim", False),
        ("/~Meta@1.0/Claim", False),
        ("//%7emeta%401.0//cl%61im", False),
        ("/info~meta@1.0", False),
        ("/~router@1.0&a=1/routes?x=1", False),
        ("/~message@1.0&a=(~meta@1.0/info)/a", False),
        ("/~message@1.0/a?b=/~meta@1.0/info", True),
        ("/~meta@1.0/live", True),
        ("/v1/chat/completions", True),
    ],
)
def test_no_page_reads_what_an_order_gives_however_it_is_written(path: str, readable: bool) -> None:
    assert bool(cors(request(path=path, method="POST"))) == readable
    asked = {"access-control-request-method": "POST"}
    assert bool(cors(request(asked, path=path, method="OPTIONS"))) == readable
    assert cors(request(path=path))


def test_cors_echoes_the_list_that_was_asked_for() -> None:
    headers = {"access-control-request-headers": "authorization, x-a"}
    assert fields(render(1, headers))["access-control-allow-headers"] == "authorization, x-a"
    assert "access-control-allow-headers" not in fields(render(1))
    assert fields(replies.preflight(request()))["access-control-allow-headers"] == "*"


def test_errors_carry_their_headers_as_headers_only() -> None:
    error = Unavailable("loading", retry_after=3)
    message = {"status": 503, "error": "unavailable", "body": "loading", **error.headers}
    reply = replies.render_error(message, error, request(JSON))
    assert reply.status == 503
    assert json.loads(reply.body) == {"status": 503, "error": "unavailable", "body": "loading"}
    sent = fields(reply)
    assert (sent["retry-after"], sent["cache-control"]) == ("3", "no-store")


def test_the_page_is_escaped_and_stands_alone() -> None:
    evil = "<script>alert(1)</script>"
    result = {
        evil: evil,
        "link": Link("a" * 43),
        "list": [1, True, None, {"priv": "secret", "deep": b"\xff"}],
        "priv": "secret",
    }
    reply = render(result, HTML, path=f"/{evil}")
    text = reply.body.decode()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "secret" not in text
    assert f'href="/{"a" * 43}"' in text
    assert "src=" not in text
    assert "http://" not in text
    assert "default-src 'none'" in fields(reply)["content-security-policy"]
    assert fields(reply)["x-content-type-options"] == "nosniff"


def test_the_page_of_something_huge_is_short() -> None:
    deep: Any = {"a": 1}
    for _ in range(200):
        deep = {"a": deep}
    for value in (deep, "x" * 1_000_000, list(range(100_000))):
        assert len(render(value, HTML).body) < 200_000


def every(reply: Reply, name: str) -> list[str]:
    return [value.decode("latin-1") for own, value in reply.headers if own == name.encode()]


@pytest.mark.parametrize(
    ("content_type", "sandboxed"),
    [
        ("application/json", False),
        ("Text/Plain; charset=utf-8", False),
        ("text/event-stream", False),
        ("text/html", True),
        ("image/svg+xml", True),
        ("application/xhtml+xml", True),
        ("text/plain, text/html", True),
        ("text/plain;a=b,text/html", True),
        ("text/plain\r\nx: y", True),
        ("", True),
    ],
)
@pytest.mark.parametrize("key", ["body", "data"])
def test_no_message_is_a_page_of_this_node(content_type: str, sandboxed: bool, key: str) -> None:
    reply = render({"content-type": content_type, key: "<script>alert(1)</script>"})
    assert b"<script>alert(1)</script>" in reply.body
    assert every(reply, "x-content-type-options") == ["nosniff"]
    assert every(reply, "content-security-policy") == ["sandbox"] * sandboxed


def test_a_message_can_only_tighten_its_policy() -> None:
    own = {"content-security-policy": "sandbox allow-scripts", "x-content-type-options": "no"}
    reply = render({"content-type": "text/html", "body": "", **own})
    assert every(reply, "content-security-policy") == ["sandbox allow-scripts", "sandbox"]
    assert every(reply, "x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize("body", [{"content-type": "text/plain", "body": "x"}, {"a": "b"}])
@pytest.mark.parametrize(
    "name", [*sorted(DEVICE_ONLY), "x-accel-redirect", "cross-origin-opener-policy"]
)
def test_only_a_device_gives_headers_that_act_beyond_the_reply(body: Message, name: str) -> None:
    assert every(render({**body, name: "/evil"}), name) == []
    given = {"reply-headers": [(name, "one"), ("x-a", "b"), (name.title(), "two")]}
    for headers in ({}, JSON, HTML):
        reply = render({**body, name: "/evil", "priv": given}, headers)
        assert every(reply, name) == ["one", "two"]
        assert every(reply, "x-a") == ["b"]


def test_device_headers_keep_their_bytes_and_leave_the_connection_alone() -> None:
    given = [("content-length", "33"), ("Connection", "close"), ("x y", "z"), ("priv-a", "b")]
    given += [("x-a", "\u00fc"), ("x-b", "\u20ac")]
    message = {"content-type": "text/plain", "body": "abc", "priv": {"reply-headers": given}}
    reply = render(message)
    assert every(reply, "content-length") == ["3"]
    sent = {name: value for name, value in reply.headers if not name.startswith(b"access-")}
    own = {b"ao-types", b"status", b"content-digest", b"content-type", NOSNIFF, b"content-length"}
    assert sent.keys() == own | {b"x-a", b"x-b"}
    assert (sent[b"x-a"], sent[b"x-b"]) == (b"\xfc", "\u20ac".encode())


@pytest.mark.parametrize(
    "given", [[("x-a", "b\r\nx-evil: 1")], [("x-a", "\0")], [("x-a", 1)], [(1, "a")], {"a": "b"}, 1]
)
def test_device_headers_that_are_none_are_the_devices_fault(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        render({"content-type": "text/plain", "body": "", "priv": {"reply-headers": given}})


@pytest.mark.parametrize(
    ("method", "body", "length", "sent"),
    [
        ("HEAD", b"", "33", "33"),
        ("GET", b"", "33", "0"),
        ("HEAD", b"abc", "33", "3"),
        ("HEAD", b"", "-1", "0"),
        ("HEAD", b"", "\u0663", "0"),
    ],
)
def test_a_head_reply_tells_the_length_its_device_knows(
    method: str, body: bytes, length: str, sent: str
) -> None:
    given = {"reply-headers": [("content-length", length)]}
    message = {"content-type": "text/plain", "body": body, "priv": given}
    assert every(render(message, method=method), "content-length") == [sent]


def test_the_headers_of_an_error_are_the_nodes_own() -> None:
    error = HyperbeamError("no", status=401, headers={"www-authenticate": "Bearer"})
    message = {"status": 401, "body": "no", **error.headers}
    reply = replies.render_error(message, error, request(JSON))
    assert every(reply, "www-authenticate") == ["Bearer"]


texts = st.text(max_size=12) | st.sampled_from(["a\r\nx-evil: 1", "a\n\nb", "\0", " a ", "\u00fc"])
values = texts | st.integers() | st.floats() | st.booleans() | st.binary(max_size=8) | st.none()


@given(st.dictionaries(texts | st.sampled_from(["x-a", "status", "date"]), values, max_size=6))
def test_no_message_ever_splits_a_reply(message: Message) -> None:
    reply = render({**message, "content-type": "text/plain", "body": "x"})
    raw = head(reply.status, reply.headers)
    lines = raw.removesuffix(b"\r\n").split(b"\r\n")
    assert len(lines) == 1 + len(reply.headers)
    assert not any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0"))
    assert not any(line.lower().startswith(b"x-evil") for line in lines)


@given(st.text(max_size=40))
def test_any_accept_header_is_read(accept: str) -> None:
    assert render({"a": 1}, {"accept": accept}).status == 200


@pytest.mark.parametrize(
    ("headers", "kind", "body"),
    [
        ({"accept": "application/msgpack"}, b"application/msgpack", b"\x81\xa1a\x01"),
        ({"accept-codec": "msgpack@1.0"}, b"application/msgpack", b"\x81\xa1a\x01"),
        ({"accept": "device/json@1.0"}, b"application/json", b'{"a":1}'),
        ({"accept-codec": "flat@1.0"}, b"text/plain", b'a: 1\nao-types: a="integer"\n'),
    ],
)
def test_other_codecs(headers: dict[str, str], kind: bytes, body: bytes) -> None:
    reply = render({"a": 1}, {"path": "/", "method": "GET", **headers})
    assert (reply.body, dict(reply.headers)[b"content-type"]) == (body, kind)


@pytest.mark.parametrize("name", ["nokey", "\u00e9\u20ac", "x" * 300, 'a"b'])
def test_what_is_not_found_is_one_word_for_upstreams_clients(name: str) -> None:
    error = NotFound(name)
    message = {"status": 404, "error": error.error, "body": error.detail}
    reply = replies.render_error(message, error, request({"accept-bundle": "true"}))
    sent = fields(reply)
    assert (reply.status, reply.body) == (404, b"not_found")
    assert sent["ao-result"] == "body"
    assert sent["detail"].isascii()
    assert "was not found" in sent["detail"]
    assert replies.render_error(message, error, request()).body == error.detail.encode()
