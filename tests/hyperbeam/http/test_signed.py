"""Requests with signatures, those of an upstream client among them."""

import base64
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.httpsig import HttpsigDevice
from hyperbeam import HyperbeamError, Message
from hyperbeam.codecs import json, siginfo
from hyperbeam.codecs import msgpack as packed
from hyperbeam.codecs.httpsig import content_digest
from hyperbeam.codecs.siginfo import Fields, Signed
from hyperbeam.commitments import commit, message_id, named_id, verify
from hyperbeam.errors import Unauthorized
from hyperbeam.http import request as requests
from hyperbeam.http import signed
from hyperbeam.node import Node
from hyperbeam.signers import Ed25519Signer

from ..codecs.strategies import same, values
from ..codecs.wire import FOLDER

UPSTREAM = "WXH5wqtpyz9cthIJwJRgieMt8_l-pJGo8CFKGUax0D0"
OVER_ALL = {
    "01": "xcrVMImaiLAI11QjDvodhB4L8mwVCrxhkv9OSao8NvU",
    "03": "nolMLHQVjOr40iRCzY7jAazHMgHZiARu37X6VEMDYEo",
    "07": "XQAy-m6-p5ABQA7JPTVHgAJMrwsFGpdWUZdfDggXG2k",
}
UNSIGNED = {
    "01": "1sCX3bUsWnd6QkOWMrBTervlsS5kXY-rNtRwlzuxB7E",
    "03": "NKRxtJ9itYAW8sV1_2BKSqMjEUGa5CU-lX7__3NPq1Y",
    "07": "Zpxr3c4EtEEhBQ9S6zbxGmyMCeJk6YQvBGSYHEXNpCI",
}
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NO_NODE: Any = None
DEVICE = HttpsigDevice(NO_NODE)
OTHER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))


def raw(number: str) -> bytes:
    return (FOLDER / f"req-{number}.raw").read_bytes()


def message_of(data: bytes) -> Message:
    """What the server makes of a request's bytes."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.split(b" ", 2)
    path, _, query = target.partition(b"?")
    pairs = [line.partition(b":") for line in lines]
    scope: dict[str, Any] = {
        "method": method.decode(),
        "raw_path": path,
        "query_string": query,
        "client": ("127.0.0.1", 1),
        "headers": [(name.lower(), value.strip()) for name, _, value in pairs],
    }
    return requests.build(scope, body)


def read(data: bytes, *, raw: bool = False) -> Message:
    return signed.read(message_of(data), raw=raw)


def sign(
    signer: Ed25519Signer,
    components: Iterable[str],
    value: Callable[[str], str | None],
    *,
    base: Any = siginfo.base,
    **parameters: str | int,
) -> Signed:
    named = {"alg": signer.alg, "keyid": signer.keyid, **parameters}
    unsigned = Signed("sig-a", tuple(components), named, b"")
    text = base(unsigned, value)
    return Signed("sig-a", unsigned.components, named, signer.sign(text.encode()))


def request(
    signatures: Iterable[Signed],
    *,
    method: str = "POST",
    target: str = "/~message@1.0/a",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    fields = Fields()
    for number, one in enumerate(signatures):
        fields.add(Signed(f"s{number}", one.components, one.parameters, one.signature))
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in {**(headers or {}), **fields.headers()}.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("number", OVER_ALL)
def test_what_an_upstream_client_signed_holds(number: str) -> None:
    message = read(raw(number))
    assert message["priv"]["signers"] == (UPSTREAM,)
    assert message_id(message, "all") == OVER_ALL[number]
    assert "path" in message["priv"]["committed"]
    assert not {"host", "te", "connection", "accept-bundle", "signature"} & message.keys()


def places(data: bytes, free: tuple[bytes, ...]) -> list[int]:
    """Where a committed request must not change: its target, its committed keys, its body."""
    head, _, _ = data.partition(b"\r\n\r\n")
    found = list(range(data.index(b" ") + 1, data.index(b" HTTP")))
    start = 0
    for line in head.split(b"\r\n"):
        name = line.partition(b":")[0]
        if b": " in line and name not in free:
            found += range(start + len(name) + 2, start + len(line))
        start += len(line) + 2
    return [*found, *range(len(head) + 4, len(data))]


FREE = (b"te", b"host", b"connection", b"content-length", b"accept-bundle", b"ao-types")


@pytest.mark.parametrize("number", OVER_ALL)
@pytest.mark.parametrize("change", [1, 32])
def test_one_byte_changed_is_refused(number: str, change: int) -> None:
    data = raw(number)
    for place in places(data, FREE if number == "07" else (*FREE, b"content-type")):
        changed = bytearray(data)
        changed[place] ^= change
        if data[place] in b"\r\n" or changed[place] in b"\r\n\x00 ":
            continue
        with pytest.raises(HyperbeamError) as caught:
            read(bytes(changed))
            pytest.fail(f"{bytes(changed[max(0, place - 40) : place + 10])!r} is taken")
        assert caught.value.status in (400, 401)


def test_types_of_signed_keys_are_signed() -> None:
    data = raw("03")
    for wrong in (
        data.replace(b'n="integer", t', b'n="float", t'),
        data.replace(b', t="atom"', b""),
        data.replace(b'ao-types: accept-bundle="atom"', b'ao-types: other="atom"'),
        data.replace(b'ao-types: accept-bundle="atom"', b'ao-types: accept-bundle="binary"'),
    ):
        assert wrong != data
        with pytest.raises(Unauthorized):
            read(wrong)
    fewer = data.replace(b'ao-types: accept-bundle="atom", ', b"ao-types: ")
    assert fewer != data
    assert read(fewer)["n"] == 42


def test_one_byte_of_types_that_is_changed_is_refused() -> None:
    data = raw("03")
    start = data.index(b"ao-types: ") + 10
    for place in range(start, data.index(b"\r\n", start)):
        for flip in (1, 32):
            changed = bytearray(data)
            changed[place] ^= flip
            if changed[place] in b"\r\n":
                continue
            with pytest.raises(HyperbeamError):
                read(bytes(changed))


def test_another_path_query_or_key_is_not_what_was_signed() -> None:
    data = raw("01")
    with pytest.raises(Unauthorized, match="header path"):
        read(data.replace(b"POST /~message@1.0/hello", b"POST /~message@1.0/keys"))
    assert read(data.replace(b"@1.0/hello HTTP", b"@1.0/hello?x=1 HTTP"))["path"] == (
        "/~message@1.0/hello"
    )
    assert "more" not in read(data.replace(b"te: \r\n", b"more: 1\r\n"))


def test_a_body_that_is_not_signed_is_refused() -> None:
    with pytest.raises(Unauthorized, match="body"):
        read(raw("01") + b"more")


def test_bodies_are_read_as_signed() -> None:
    """A header that says how to read the body has to be signed as the body is."""
    body = b'{"a": 1}'
    headers = {"content-digest": content_digest(body)}
    one = sign(SIGNER, ["content-digest"], headers.get)
    assert read(request([one], headers=headers, body=body))["body"] == body
    for more in ({"codec-device": "json@1.0"}, {"ao-body-key": "other"}):
        with pytest.raises(Unauthorized, match="body"):
            read(request([one], headers={**headers, **more}, body=body))
    both = {**headers, "codec-device": "json@1.0"}
    signed = sign(SIGNER, ["content-digest", "codec-device"], both.get)
    assert read(request([signed], headers=both, body=body))["a"] == 1


def test_a_form_is_signed_with_its_type() -> None:
    body = b'--b\r\ncontent-disposition: form-data;name="a"\r\n\r\nx\r\n--b--'
    headers = {
        "content-type": 'multipart/form-data; boundary="b"',
        "content-digest": content_digest(body),
    }
    one = sign(SIGNER, ["content-digest", "content-type"], headers.get)
    message = read(request([one], headers={**headers, "other": "1", "l+link": "A" * 43}, body=body))
    assert message["a"] == "x"
    assert not {"other", "l"} & message.keys()
    half = sign(SIGNER, ["content-digest"], headers.get)
    with pytest.raises(Unauthorized):
        read(request([half], headers=headers, body=body))


def test_components_of_rfc_9421() -> None:
    values = {
        "@method": "POST",
        "@path": "/~message@1.0/a",
        "@query": "?a=1",
        "@authority": "localhost",
        "@target-uri": "http://localhost/~message@1.0/a?a=1",
        "@request-target": "/~message@1.0/a?a=1",
        "x": "1",
    }
    headers = {"host": "localhost", "x": "1", "y": "2"}
    one = sign(SIGNER, values, values.get, created=5, nonce="n")
    message = read(request([one], headers=headers, target="/~message@1.0/a?a=1"))
    assert message["path"] == "/~message@1.0/a?a=1"
    assert message["host"] == "localhost"
    assert message["priv"]["signers"] == (SIGNER.address,)
    assert "y" not in message
    for name in values:
        wrong = {**values, name: values[name].replace("1", "2").replace("O", "A") + "/"}
        with pytest.raises(Unauthorized, match="does not hold"):
            changed = sign(SIGNER, values, wrong.get)
            read(request([changed], headers=headers, target="/~message@1.0/a?a=1"))


def test_what_all_signers_have_signed_counts() -> None:
    values = {"a": "1", "b": "2", "@path": "/~message@1.0/a"}
    one = sign(SIGNER, ["a", "b"], values.get)
    two = sign(OTHER, ["b", "@path"], values.get)
    message = read(request([one, two], headers={"a": "1", "b": "2"}))
    assert set(message["priv"]["signers"]) == {SIGNER.address, OTHER.address}
    assert message["priv"]["committed"] == {"b"}
    assert "a" not in message


def own(message: Message) -> bytes:
    """A request with `message`, signed by two as upstream signs, and to /~message@1.0/verify."""
    whole = {**message, "path": "/~message@1.0/verify"}
    text = DEVICE.encode(commit(commit(whole, SIGNER), OTHER))
    return b"POST /~message@1.0/verify HTTP/1.1\r\n" + text


plain_keys = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(
    lambda key: (
        key not in ("method", "path", "host", "cookie", "te", "expect", "upgrade")
        and not key.startswith(("priv", "proxy-", "access-", "x-"))
    )
)
named = st.one_of(plain_keys, st.sampled_from(["body", "data", "content-type", "status"]))


@settings(max_examples=200)
@given(st.dictionaries(named, values, max_size=5))
def test_what_two_have_signed_is_read_as_it_was(message: Message) -> None:
    if "body" in message:
        message.pop("data", None)  # of the two one is the body itself
    back = read(own(message))
    assert set(back["priv"]["signers"]) == {SIGNER.address, OTHER.address}
    for name, value in message.items():
        there = back.get(name, "")  # an empty body is none
        if name == "body" and isinstance(there, bytes) and isinstance(value, str):
            there = there.decode()
        assert same({"": there}, {"": value})
    verify(back)


def test_nothing_comes_into_a_signed_body() -> None:
    """Nested messages are signed by their ids, so the digest that is signed is without them."""
    data = own({"a": "x" * 5000, "b": [1]})
    assert {"a", "b"} <= read(data).keys()
    mark = data[data.index(b'boundary="') + 10 :].partition(b'"')[0]
    name = b'content-disposition: form-data;name="evil"\r\n'
    for evil in (
        b"evil: 1\r\n" + name,
        b"ao-types: empty-message\r\n" + name,
        name + b"\r\nx\r\n",
        name + b"\r\n" + b"x" * 5000 + b"\r\n",
        name.replace(b"evil", b"evil/a") + b"\r\nx\r\n",
        name.replace(b"evil", b"b/2") + b"\r\nx\r\n",
    ):
        part = b"--" + mark + b"\r\n" + evil
        at = data.index(b"\r\n\r\n") + 4
        changed = data[:at] + part + data[at:]
        digest = content_digest(changed[at:]).encode()
        own_digest = data[data.index(b"content-digest: ") + 16 :].partition(b"\r\n")[0]
        changed = changed.replace(own_digest, digest)
        with contextlib.suppress(Unauthorized):
            found = read(changed)
            assert "evil" not in found
            assert found["b"] == [1]
    for old, new in ((b"x" * 5000, b"y" + b"x" * 4999), (b"1: 1", b"1: 2")):
        with pytest.raises(Unauthorized):
            read(data.replace(old, new))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"keyid": base64.b64encode(b"\x00" * 32).decode()}, "does not hold"),
        ({"keyid": "x" * 200}, "no key"),
        ({"alg": "rsa-pss-sha512"}, "is for ed25519"),
        ({"keyid": "ao"}, "hmac-sha256"),
        ({"keyid": "ao", "alg": "hmac-sha256"}, "does not hold"),
        ({"expires": 1}, "expired"),
        ({"signature": b""}, "does not hold"),
        ({"components": ("missing",)}, "not there"),
        ({"components": ("@status",)}, "not there"),
    ],
)
def test_what_fails_is_named(change: dict[str, Any], said: str) -> None:
    one = sign(SIGNER, ["a"], {"a": "1"}.get)
    components = change.pop("components", one.components)
    signature = change.pop("signature", one.signature)
    bad = Signed("s", components, {**one.parameters, **change}, signature)
    with pytest.raises(Unauthorized, match=said):
        read(request([bad], headers={"a": "1"}))


def test_a_key_of_another_scheme_is_no_signature() -> None:
    one = sign(SIGNER, ["a"], {"a": "1"}.get)
    bot = Signed("s", ("@authority",), {"alg": "ed25519", "keyid": "poqkLGiymh_W0uP6PZFw"}, b"x")
    message = read(request([bot], headers={"a": "1", "b": "2"}, body=b"text"))
    assert "signers" not in message["priv"]
    assert message["b"] == "2"
    assert read(request([bot, one], headers={"a": "1"}))["priv"]["signers"] == (SIGNER.address,)


def test_a_route_gets_its_request_as_it_came() -> None:
    body = b'{"model": "x"}'
    headers = {"content-digest": content_digest(body), "content-type": "multipart/form-data"}
    one = sign(SIGNER, ["content-digest"], headers.get)
    data = request([one], headers={**headers, "ao-types": "???"}, body=body)
    message = read(data, raw=True)
    assert message["body"] == body
    assert message["content-type"] == "multipart/form-data"
    assert message["priv"]["signers"] == (SIGNER.address,)
    with pytest.raises(Unauthorized, match="content-digest"):
        read(data + b" ", raw=True)


names = st.text('ab@-;="() ', max_size=6)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["signature", "signature-input", "ao-types", "a"]),
        st.text('sig-a=("x");keyid:?1, ', max_size=40),
    ),
    st.binary(max_size=20),
)
def test_any_headers_are_read_or_refused(headers: dict[str, str], body: bytes) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    data = "\r\n".join(["POST /~message@1.0/a HTTP/1.1", *lines]).encode() + b"\r\n\r\n" + body
    try:
        read(data)
    except HyperbeamError as error:
        assert error.status in (400, 401)


def test_upstreams_method_is_a_key() -> None:
    values = {"method": "POST", "a": "1", "path": "/~message@1.0/a"}
    one = sign(SIGNER, ["a", "@method", "@path"], values.get, base=siginfo.base_of_upstream)
    message = read(request([one], headers={"a": "1"}))
    (commitment,) = message["commitments"].values()
    assert commitment["committed"] == ["a", "method", "path"]
    verify(message)


async def test_on_a_node(node: Node) -> None:
    def ask(data: bytes) -> Any:
        return node.handle(message_of(data))

    for number, wanted in (("01", "world"), ("03", 42), ("07", {"x": 1})):
        assert await ask(raw(number)) == wanted
    assert await ask(raw("04")) == 42
    with pytest.raises(Unauthorized):
        await ask(raw("01").replace(b"world", b"worle"))
    values = {"path": "/~message@1.0/verify", "a": "1"}
    one = sign(SIGNER, ["a", "path"], values.get, base=siginfo.base_of_upstream)
    told = {"a": "1", "path": "/~message@1.0/verify"}
    assert await ask(request([one], target="/~message@1.0/verify", headers=told)) is True
    values["path"] = told["path"] = "/~message@1.0/committers"
    one = sign(SIGNER, ["a", "path"], values.get, base=siginfo.base_of_upstream)
    found = await ask(request([one], target="/~message@1.0/committers", headers=told))
    assert found == [SIGNER.address]


BODIES = {
    "json@1.0": lambda key: b'{"%b": "evil"}' % key,
    "flat@1.0": lambda key: key + b": evil\n",
    "msgpack@1.0": lambda key: msgpack.packb({key.decode(): "evil"}),
    "a part": lambda key: (
        b'--B\r\ncontent-disposition: form-data;name="%b"\r\n\r\nevil\r\n--B--' % key
    ),
    "the body": lambda key: b"evil",
}


@pytest.mark.parametrize("how", BODIES)
@pytest.mark.parametrize("key", ["amount", "x" * 43, "body"])
@pytest.mark.parametrize("typed", [False, True])
def test_a_body_that_is_not_signed_takes_no_key_from_a_signer(
    how: str, key: str, typed: bool
) -> None:
    headers = {key: "10", "path": "/~message@1.0/a"}
    if typed:
        headers |= {"ao-types": f'{key}="integer"', f"{key}+link": "a" * 43}
    if len(key) == 43:
        headers["ao-ids"] = f'{key}="10"'
    signed_names = tuple(name for name in headers if len(name) < 43 or "+" in name)
    one = sign(SIGNER, signed_names, headers.get, base=siginfo.base_of_upstream)
    said = {
        "a part": {"content-type": 'multipart/form-data; boundary="B"'},
        "the body": {"ao-body-key": key},
    }.get(how, {"codec-device": how})
    data = request([one], headers={**headers, **said}, body=BODIES[how](key.encode()))
    with pytest.raises(HyperbeamError) as caught:
        read(data)
    assert caught.value.status in (400, 401)


def test_captured_requests_take_no_body_beside_what_is_signed() -> None:
    head, _, _ = raw("01").partition(b"\r\n\r\n")
    for codec, body in (("json@1.0", b'{"hello":"evil"}'), ("flat@1.0", b"hello: evil\n")):
        said = head + f"\r\ncodec-device: {codec}\r\n\r\n".encode()
        with pytest.raises(Unauthorized, match="the body is not signed"):
            read(said + body)


@pytest.mark.parametrize("codec", ["json@1.0", "msgpack@1.0"])
def test_commitments_of_a_message_in_the_body_hold_or_it_is_401(codec: str) -> None:
    signed = commit({"hello": "world", "n": 1}, SIGNER)
    encode = json.encode if codec == "json@1.0" else packed.encode
    head = f"POST /~message@1.0/a HTTP/1.1\r\ncodec-device: {codec}\r\n\r\n".encode()
    verify({key: value for key, value in read(head + encode(signed)).items() if key != "path"})
    for changed in ({"hello": "evil"}, {"commitments": {"x": {}}}, {"commitments": "x"}):
        with pytest.raises(Unauthorized):
            read(head + encode({**signed, **changed}))


def test_a_captured_request_has_the_listed_ids_as_a_message() -> None:
    for number, unsigned in UNSIGNED.items():
        message = DEVICE.decode(raw(number))
        assert named_id(message) == unsigned
        assert named_id({**message, "extra": "x"}) == unsigned
        assert named_id({**message, "path": "x"}) is None
        assert named_id({"hello": "world"}) is None
