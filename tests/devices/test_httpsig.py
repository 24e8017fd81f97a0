"""httpsig@1.0: HTTP messages as text, the captured requests among them."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from devices.httpsig import HttpsigDevice
from hyperbeam import BadRequest, HyperbeamError, Message
from hyperbeam.codecs.structured import RESERVED
from hyperbeam.commitments import commit, committed, committers, message_id, verify
from hyperbeam.node import Node
from hyperbeam.signers import Ed25519Signer

from ..hyperbeam.codecs.strategies import messages
from ..hyperbeam.vectors import MESSAGES

WIRE = Path(__file__).parents[1] / "fixtures" / "wire"
UPSTREAM = "WXH5wqtpyz9cthIJwJRgieMt8_l-pJGo8CFKGUax0D0"
SIGNERS = [Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))) for n in (1, 2)]
NO_NODE: Any = None
DEVICE = HttpsigDevice(NO_NODE)


@pytest.mark.parametrize(
    ("number", "id"),
    [
        ("01", "xcrVMImaiLAI11QjDvodhB4L8mwVCrxhkv9OSao8NvU"),
        ("03", "nolMLHQVjOr40iRCzY7jAazHMgHZiARu37X6VEMDYEo"),
        ("07", "XQAy-m6-p5ABQA7JPTVHgAJMrwsFGpdWUZdfDggXG2k"),
    ],
)
async def test_a_captured_request(node: Node, number: str, id: str) -> None:
    async def ask(key: str, body: bytes) -> object:
        return await node.resolve(None, {"path": f"/~httpsig@1.0/deserialize/{key}", "body": body})

    body = (WIRE / f"req-{number}.raw").read_bytes()
    assert await ask("verify", body) is True
    assert await ask("committers", body) == [UPSTREAM]
    assert await ask("id&committers=all", body) == id
    assert await ask("verify", body.replace(b"\r\npath: /~", b"\r\npath: /x", 1)) is False
    plain = (WIRE / f"req-{int(number) + 1:02}.raw").read_bytes()
    assert await ask("committers", plain) == []


@given(messages)
def test_there_and_back(message: Message) -> None:
    try:
        text = DEVICE.encode(message)
    except HyperbeamError as error:
        assert error.status in (400, 413)
        return
    assert DEVICE.encode(DEVICE.decode(text)) == text


@given(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.text("xyz", min_size=1), st.integers()))
)
def test_signatures_go_with_it(message: Message) -> None:
    signed = message
    for signer in SIGNERS:
        signed = commit(signed, signer)
    back = DEVICE.decode(DEVICE.encode(signed))
    if message:
        verify(back)
        assert committers(back) == [signer.address for signer in SIGNERS]
    assert {name: back[name] for name in back.keys() - RESERVED} == message


@pytest.mark.parametrize("bundle", [{}, {"bundle": "true"}])
@pytest.mark.parametrize("name", [name for name, message in MESSAGES.items() if message])
def test_upstreams_vectors_are_verified_once_read(name: str, bundle: dict[str, str]) -> None:
    signed = MESSAGES[name]
    for signer in SIGNERS:
        signed = commit(signed, signer, **bundle)
    back = DEVICE.decode(DEVICE.encode(signed))
    verify(back)
    assert set(committed(back)) == MESSAGES[name].keys()
    assert message_id(back, "all") == message_id(signed, "all")


@given(messages.filter(bool))
def test_any_message_is_verified_once_read(message: Message) -> None:
    message = {**message, "text": "t", "in": message}
    try:
        signed = commit(message, SIGNERS[0])
    except BadRequest:
        assert any(name.startswith("@") for name in message)  # such as @path: signed it is `path`
        return
    try:
        back = DEVICE.decode(DEVICE.encode(signed))
    except BadRequest:
        assert not all(name.isascii() for name in message)  # which `signature-input` has to be
        return
    if message.get("body") != "":  # which HTTP does not tell from none
        verify(back)
        assert set(committed(back)) == message.keys()


@given(st.one_of(st.binary(max_size=80), st.text('ab:-\r\n =();"', max_size=60).map(str.encode)))
def test_any_text_is_read_or_refused(text: bytes) -> None:
    try:
        DEVICE.decode(text)
    except HyperbeamError as error:
        assert error.status == 400
