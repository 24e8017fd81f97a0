"""Upstream's vectors of messages, signed and sent as HTTP requests: what the node makes of them.

A message is sent as a whole; it may have been signed as such (`bundle`) or, as upstream's clients
do, with links to what is nested in it.
Source: upstream hb_message_test_vectors (signed non-bundle is bundlable, and others).
"""

import re
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from hypothesis import given, settings

from hyperbeam import HyperbeamError, Message
from hyperbeam.codecs import flat, httpsig, json, siginfo
from hyperbeam.codecs.siginfo import BadSignature, Fields
from hyperbeam.commitments import (
    as_commitments,
    as_signed,
    commit,
    commitments,
    committed,
    committers,
    message_id,
    unsigned_id,
    verify,
)
from hyperbeam.errors import Unauthorized
from hyperbeam.http import signed
from hyperbeam.http.request import build
from hyperbeam.node import Node

from ..codecs.strategies import messages, same
from ..conftest import StartNode
from ..vectors import MESSAGES, arweave, ed25519, signed_by, there_and_back

# Names that say of a request where it goes are not a message's to choose there (`derived`). What is
# not ASCII is signed in a form that is not the one it is sent in, and refused.
NOT_SENT = ("empty", "derived", "not ascii")
SENT = {name: message for name, message in MESSAGES.items() if name not in NOT_SENT}
_PLAIN = re.compile(r"[a-z0-9_ .-]+\Z", re.ASCII)
MESSAGE: Message = {"body": "text", "in": {"a": 1, "b": "x\ny"}, "list": [1, {"c": "2"}], "n": 3}


def sent(message: Message) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request that a committed message makes."""
    fields = Fields()
    for one in commitments(message).values():
        fields.add(as_signed(message, one))
    headers, body = httpsig.encode(message)
    return {**headers, **fields.headers()}, body


def received(headers: Mapping[str, str], body: bytes, target: str = "/~message@1.0/a") -> Message:
    scope: dict[str, Any] = {
        "method": "POST",
        "raw_path": headers.get("path", target).encode(),
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    return signed.read(build(scope, body), raw=False)


@pytest.mark.parametrize("bundle", [False, True])
@pytest.mark.parametrize("signers", ["ed25519", "rsa", "both"])
@pytest.mark.parametrize("name", SENT)
def test_a_signed_message_is_received_as_it_was(name: str, signers: str, bundle: bool) -> None:
    message = SENT[name]
    parameters = {"bundle": "true"} if bundle else {}
    made = message
    for signer in {"ed25519": [ed25519(1)], "rsa": [arweave()]}.get(
        signers, [ed25519(1), arweave()]
    ):
        made = commit(made, signer, **parameters)
    got = received(*sent(made))
    private = got.pop("priv")
    assert private["signers"] == tuple(
        one["committer"] for one in made["commitments"].values() if "committer" in one
    )
    assert set(message) <= private["committed"]
    assert message_id(got, "all") == message_id(made, "all")
    data = {key: got[key] for key in message}
    assert same(
        data,
        {
            **message,
            **{
                key: message[key].encode()
                for key in ("body", "data")
                if isinstance(data.get(key), bytes)
            },
        },
    )
    assert unsigned_id(data) == unsigned_id(message)
    verify(got)


@settings(deadline=None, max_examples=100)
@given(messages.filter(bool))
def test_any_signed_message_is_received(message: Message) -> None:
    # Ids are signed in `ao-ids`; here those of no capitals, or not of ASCII, would not be sent so.
    names = {name for name in message if len(name) < 32}
    names -= {"status", "path", "method", "connection", "signature"}
    plain = {name: message[name] for name in names if _PLAIN.match(name)}
    plain.pop("content-type", None)
    message = {**plain, "in": message, "text": "t"}
    made = signed_by("ed25519", message)
    got = received(*sent(made))
    assert got["priv"]["committed"] >= message.keys()
    assert unsigned_id({key: got[key] for key in message}) == unsigned_id(message)
    verify({key: value for key, value in got.items() if key != "priv"})


@pytest.mark.parametrize("bundle", [{}, {"bundle": "true"}])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"text", b"test"),
        (b"a: 1", b"a: 2"),
        (b"x\ny", b"x\nz"),
        (b'a="integer"', b'a="atom"'),
        (b'name="in"', b'name="im"'),
        (b'.="list"', b'.="lisT"'),
        (b"inline", b'form-data;name="other"'),
        (b"inline", b'form-data;name="in/c"'),
        (b"c: 2", b"c: 3"),
    ],
)
def test_a_changed_part_is_refused(old: bytes, new: bytes, bundle: dict[str, str]) -> None:
    headers, body = sent(commit(MESSAGE, ed25519(1), **bundle))
    assert old in body
    if (old, new) == (b'.="list"', b'.="lisT"'):
        new = b'.="binary"'
    changed = body.replace(old, new)
    for digest in (None, httpsig.content_digest(changed), headers["content-digest"]):
        said = (
            {**headers, "content-digest": digest} if digest else without(headers, "content-digest")
        )
        refuse(said, changed)


@pytest.mark.parametrize("bundle", [{}, {"bundle": "true"}])
def test_what_is_added_is_refused_or_dropped(bundle: dict[str, str]) -> None:
    headers, body = sent(commit(MESSAGE, ed25519(1), **bundle))
    boundary = headers["content-type"].split('"')[1].encode()
    more = b"--" + boundary + b'\r\ncontent-disposition: form-data;name="%s"\r\n\r\nx\r\n'
    for name in (b"other", b"in/more", b"list/3", b"data", b"body"):
        changed = more % name + body
        said = {**headers, "content-digest": httpsig.content_digest(changed)}
        if not bundle and name in (b"other", b"data"):
            got = received(said, changed)
            assert set(MESSAGE) == got["priv"]["committed"]
            assert name.decode() not in got
        else:
            refuse(said, changed)
    for key in ("data", "other", "in", "n"):
        refuse({**headers, "ao-body-key": key}, body)
    assert "more" not in received({**headers, "more": "x"}, body)


@pytest.mark.parametrize("signer", ["ed25519", "rsa"])
def test_the_key_of_a_body_is_signed(signer: str) -> None:
    messages: list[Message] = [{"data": "text", "in": {"a": "1"}}, {"data": "text"}]
    for message in messages:
        headers, body = sent(signed_by(signer, message))
        assert received(headers, body)["data"] in ("text", b"text")
        refuse(without(headers, "ao-body-key"), body)
        refuse({**headers, "ao-body-key": "body"}, body)
    headers, body = sent(signed_by(signer, {"body": "text", "in": {"a": "1"}}))
    refuse({**headers, "ao-body-key": "data"}, body)


@pytest.mark.parametrize("kind", ["integer", "list", "map", "atom", "float", "binary"])
def test_a_type_that_was_not_signed_is_refused(kind: str) -> None:
    """It would make another value of what is signed."""
    for message in ({"a": "5"}, {"a": "5", "b": 6}, {"a": "5\n", "b": {"c": "6"}}):
        headers, body = sent(signed_by("both", message))
        types = ", ".join(filter(None, [headers.get("ao-types"), f'a="{kind}"']))
        refuse({**headers, "ao-types": types}, body)
        other = ", ".join(filter(None, [headers.get("ao-types"), f'other="{kind}"']))
        if "ao-types" in headers:
            refuse({**headers, "ao-types": other}, body)
        else:
            assert received({**headers, "ao-types": other}, body)["a"] == message["a"]


def refuse(headers: Mapping[str, str], body: bytes) -> None:
    with pytest.raises(HyperbeamError) as caught:
        received(headers, body)
    assert isinstance(caught.value, Unauthorized) or caught.value.status == 400


def without(headers: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key != name}


@pytest.mark.parametrize("bundle", [{}, {"accept-bundle": "true"}])
@pytest.mark.parametrize(
    "message",
    [
        {"extra": [[[{"n": n, "m": m, "o": o} for o in (1, 2)] for m in (1, 2)] for n in (1, 2)]},
        {"empty": {}, "none": [], "text": "", "null": None},
        {"body": "lines\nof text", "in": {"é": "ü"}, "f": 1.5},
        {"data": "x" * 5000, "in": {"data": "y" * 5000}},
        {f"key-{number}": number for number in range(60)},
    ],
)
async def test_a_reply_that_a_node_has_signed(
    start_node: StartNode, message: Message, bundle: dict[str, str]
) -> None:
    node = await start_node(sign_replies=True)
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{node.server.port}/~json@1.0/deserialize"
        reply = await client.post(url, json=message, headers=bundle)
    headers = dict(reply.headers)
    apart = httpsig.decode_apart(headers, reply.content)
    found = apart.message
    signatures = siginfo.parse(headers["signature"], headers["signature-input"])
    made = {**found, "commitments": as_commitments(signatures, apart)}
    verify(made)
    assert committers(made) == [node.identity.address]
    assert set(committed(made)) == message.keys() | {"status"}
    only = {key: found[key] for key in committed(made)}
    verify({**only, "commitments": made["commitments"]})
    assert unsigned_id(without(only, "status")) == unsigned_id(message)
    for key, value in message.items():
        with pytest.raises(BadSignature):
            verify({**made, key: "other" if value != "other" else ""})


def test_what_several_have_signed_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long to write is not written anew for each of them."""
    made = MESSAGE
    for number in range(7):
        made = commit(made, ed25519(number))
    headers, body = sent(made)
    writers = {
        name: Mock(side_effect=getattr(signed, name))
        for name in ("content_digest", "unsigned_id", "list_id", "head_of")
    }
    for name, writer in writers.items():
        monkeypatch.setattr(signed, name, writer)
    assert len(received(headers, body)["priv"]["signers"]) == 7
    assert {name: writer.call_count for name, writer in writers.items()} == dict.fromkeys(
        writers, 1
    )


async def test_the_settings_of_a_node_are_signed(node: Node) -> None:
    told = await node.resolve(None, "/~meta@1.0/info")
    made = commit(told, ed25519(1))
    assert same(unsigned_id(told), unsigned_id(json.decode(json.encode(told))))
    for codec in ("json@1.0", "msgpack@1.0", "flat@1.0", "structured@1.0", "httpsig@1.0"):
        verify(there_and_back(codec, made))


def test_an_empty_body_is_signed_as_one() -> None:
    headers, body = sent(commit({"body": "", "a": "1"}, ed25519(1)))
    got = received(headers, body)
    assert got["priv"]["committed"] == {"a", "body"}
    assert got["body"] == b""
    refuse(headers, b"x")


def _only(message: Message, key: str) -> Any:
    """What lies under the one key of each level, down to `key`."""
    found: Any = message
    while not isinstance(found, dict) or key not in found:
        found = found[-1] if isinstance(found, list) else found["in"]
    return found[key]


@pytest.mark.parametrize("codec", [httpsig, flat])
@pytest.mark.parametrize("levels", ["", "in", "in in", "list", "body"])
def test_what_is_signed_inside_stays_signed(codec: Any, levels: str) -> None:
    """Upstream hb_message_test_vectors: signed with inner signed message."""
    signed_inside: Any = commit(commit({"c": "abc", "e": 5}, ed25519(2)), arweave())
    inner: Any = {"body" if levels == "body" else "it": signed_inside}
    for level in levels.split():
        if level != "body":
            inner = {"in": [1, inner] if level == "list" else inner}
    outer = commit({**inner, "n": 2}, ed25519(1))
    verify(outer)
    written = codec.encode(outer)
    read = codec.decode(*written) if codec is httpsig else codec.decode(written)
    verify({**read, "commitments": outer["commitments"]})
    nested = _only(read, "body" if levels == "body" else "it")
    verify(nested)
    assert set(committers(nested)) == set(committers(signed_inside))
    got = received(*sent(outer))
    assert got["priv"]["signers"] == (ed25519(1).address,)
    verify({key: value for key, value in got.items() if key != "priv"})
