"""Commitments: those of an upstream client, and our own."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import Message
from hyperbeam.codecs import httpsig, siginfo
from hyperbeam.codecs.siginfo import BadSignature, Signed
from hyperbeam.commitments import (
    as_commitments,
    commit,
    commitments,
    committed,
    committers,
    message_id,
    unsigned_id,
    verify,
)
from hyperbeam.signers import Ed25519Signer

from .codecs.strategies import messages
from .codecs.wire import request

UPSTREAM = "WXH5wqtpyz9cthIJwJRgieMt8_l-pJGo8CFKGUax0D0"
IDS = {
    "01": ("xcrVMImaiLAI11QjDvodhB4L8mwVCrxhkv9OSao8NvU", "1sCX3bUsWnd6QkOWMrBTervlsS5kXY-rNtRwlzuxB7E"),  # noqa: E501
    "03": ("nolMLHQVjOr40iRCzY7jAazHMgHZiARu37X6VEMDYEo", "NKRxtJ9itYAW8sV1_2BKSqMjEUGa5CU-lX7__3NPq1Y"),  # noqa: E501
    "07": ("XQAy-m6-p5ABQA7JPTVHgAJMrwsFGpdWUZdfDggXG2k", "Zpxr3c4EtEEhBQ9S6zbxGmyMCeJk6YQvBGSYHEXNpCI"),  # noqa: E501
}  # fmt: skip
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))


def read(number: str) -> Message:
    """A captured request as a committed message."""
    headers, body = request(number)
    signed = siginfo.parse(headers["signature"], headers["signature-input"])
    apart = httpsig.decode_apart(headers, body)
    return {**apart.message, "commitments": as_commitments(signed, apart)}


@pytest.mark.parametrize("number", IDS)
def test_what_an_upstream_client_signed(number: str) -> None:
    message = read(number)
    verify(message)
    assert committers(message) == [UPSTREAM]
    assert message_id(message, "all") == message_id(message, [UPSTREAM]) == IDS[number][0]
    keys = committed(message)
    assert unsigned_id({key: message[key] for key in keys}) == IDS[number][1]
    assert set(IDS[number]) == set(commitments(message))


@pytest.mark.parametrize("number", IDS)
def test_one_thing_changed_is_refused(number: str) -> None:
    message = read(number)
    for key in committed(message):
        for value in ("other", {"a": "b"}, 43):
            with pytest.raises(BadSignature):
                verify({**message, key: value})
        with pytest.raises(BadSignature):
            verify({name: value for name, value in message.items() if name != key})
    for id, one in commitments(message).items():
        changed: list[Any] = [
            {
                **one,
                "signature": ("B" if one["signature"][0] == "A" else "A") + one["signature"][1:],
            },
            {**one, "committer": "x" * 43},
            {**one, "committed": [*one["committed"], "host"]},
            {**one, "committed": one["committed"][1:]},
            {**one, "tag": "x"},
        ]
        for bad in changed:
            with pytest.raises(BadSignature):
                verify({**message, "commitments": {id: bad}})


@settings(max_examples=40)
@given(messages)
def test_our_own_hold_in_any_order(message: Message) -> None:
    once = commit(message, SIGNER)
    if not committed(once):
        return
    twice = commit(once, OTHER)
    verify(twice)
    assert set(committers(twice)) == {SIGNER.address, OTHER.address}
    both = message_id(commit(commit(message, OTHER), SIGNER), "all")
    assert message_id(twice, "all") == both != message_id(once, "all")
    assert message_id(twice) == unsigned_id(message)


def test_a_tag_and_times_are_signed() -> None:
    signed = commit({"a": 1}, SIGNER, created=5, tag="x")
    (id,) = [id for id, one in commitments(signed).items() if "committer" in one]
    verify(signed)
    for name, value in (("created", 6), ("tag", "y")):
        one = {**commitments(signed)[id], name: value}
        with pytest.raises(BadSignature):
            verify({**signed, "commitments": {id: one}})


def test_a_signature_of_rfc_9421_has_the_parameters_order_and_names_of_its_own() -> None:
    signed = Signed("a", ("@method", "x"), {"keyid": "k", "alg": "ed25519", "created": 1}, b"")
    values = {"@method": "GET", "method": "GET", "x": "1"}
    assert siginfo.base(signed, values.get) == (
        '"@method": GET\n"x": 1\n"@signature-params": ("@method" "x");keyid="k";alg="ed25519";created=1'  # noqa: E501
    )
    assert siginfo.base_of_upstream(signed, values.get) == (
        '"method": GET\n"x": 1\n"@signature-params": ("@method" "x");alg="ed25519";created=1;keyid="k"'  # noqa: E501
    )


names = st.text("abc-@", min_size=1, max_size=8)


@given(
    st.lists(names, unique=True, max_size=5), st.binary(max_size=40), st.text('abc "\\', max_size=9)
)
def test_headers_come_back(components: list[str], signature: bytes, tag: str) -> None:
    fields = siginfo.Fields()
    signed = Signed("sig-a", tuple(components), {"alg": "x", "tag": tag, "created": 7}, signature)
    fields.add(signed)
    written = fields.headers()
    assert siginfo.parse(written["signature"], written["signature-input"]) == [signed]


@given(st.text('a=(;):"?1, ', max_size=30), st.text('a=(;):"?1, ', max_size=30))
def test_headers_are_read_or_refused(signature: str, signature_input: str) -> None:
    try:
        siginfo.parse(signature, signature_input)
    except BadSignature:
        return


def test_many_commitments_are_not_checked() -> None:
    one = {"type": "hmac-sha256", "keyid": "ao", "committed": ["a"], "signature": "A" * 43}
    message = {"a": 1, "commitments": {f"{number:043}": one for number in range(40)}}
    with pytest.raises(BadSignature, match="at most"):
        verify(message)
