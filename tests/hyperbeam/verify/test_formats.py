"""Key sets, statements and receipts: read strictly, refused with a reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify import challenge, jcs, receipt, signing, statement
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.keyset import KeySet

from .documents import ANSWER, DAY, NONCE, SEED, TIME, Signer, public, sign

SIGNER = Signer(gpu={"cc": True, "devtools": False, "ueids": ["123"]})
RAW = SIGNER.statement()
RECEIPT = SIGNER.make_receipt(RAW, ANSWER)
KEYSET = SIGNER.keyset()

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, the document's own left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        yield (*path, name)
        if isinstance(item, dict | list):
            yield from places(item, (*path, name))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copy = json.loads(json.dumps(value))
    place = copy
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = new
    return copy


def test_a_key_set_has_a_name_and_gives_its_keys() -> None:
    keyset = KeySet.parse(KEYSET)
    unsigned = {key: value for key, value in KEYSET.items() if key != "signature"}
    assert keyset.name == hashlib.sha256(jcs.encode(unsigned)).hexdigest() == SIGNER.keyset_name
    assert keyset.node == SIGNER.node
    id = KEYSET["receipt_keys"][0]["id"]
    assert keyset.receipt_key(id) == public(SIGNER.receipt)
    assert keyset.log_key(id) is None
    assert keyset.receipt_key("00" * 8) is None
    assert keyset.lives_at(TIME) and not keyset.lives_at(TIME + 2 * DAY)


def test_a_key_set_may_come_as_formatted_text() -> None:
    assert KeySet.parse(json.dumps(KEYSET, indent=2)).name == SIGNER.keyset_name


@pytest.mark.parametrize("path", list(places(KEYSET)), ids=str)
def test_a_key_set_that_was_changed_anywhere_is_refused(path: tuple[Any, ...]) -> None:
    for new in ("00" * 32, 1, None, "x", [], {}):
        value = changed(KEYSET, path, new)
        if value != KEYSET:
            with pytest.raises(Malformed) as caught:
                KeySet.parse(value)
            assert caught.value.reason in ("keyset-malformed", "keyset-signature")


@pytest.mark.parametrize(
    "changes",
    [
        {"not_after": TIME - DAY + 7 * DAY + 1},
        {"not_after": TIME - DAY},
        {"node": "A" * 43},
        {"v": "hyperbeam.keyset/2"},
        {"extra": 1},
        {"receipt_keys": []},
        {"e2ee_keys": ["00"]},
        {"code": "\ud800"},
    ],
    ids=str,
)
def test_a_key_set_that_is_signed_and_still_wrong_is_refused(changes: dict[str, Any]) -> None:
    value = {key: item for key, item in KEYSET.items() if key != "signature"} | changes
    try:
        data = jcs.encode(value)
    except ValueError:
        data = b""
    value["signature"] = sign(SIGNER.identity, signing.KEYSET, data)
    with pytest.raises(Malformed) as caught:
        KeySet.parse(value)
    assert caught.value.reason == "keyset-malformed"


def test_a_key_under_the_id_of_another_is_refused() -> None:
    keys = [{**KEYSET["receipt_keys"][0], "id": "00" * 8}]
    with pytest.raises(Malformed, match="another's id"):
        KeySet.parse(SIGNER.keyset(receipt_keys=keys))


def test_what_is_signed_as_one_kind_is_not_signed_as_another() -> None:
    key = public(SIGNER.receipt)
    for made in (signing.ANSWER, signing.RECEIPT, signing.KEYSET):
        signature = bytes.fromhex(sign(SIGNER.receipt, made, b"data"))
        for read in (signing.ANSWER, signing.RECEIPT, signing.KEYSET):
            assert signing.check(key, read, b"data", signature) is (read == made)
    assert not signing.check(key, signing.ANSWER, b"data", b"")
    assert not signing.check(b"short", signing.ANSWER, b"data", bytes(64))


def test_a_statement_is_read() -> None:
    said = statement.parse(RAW)
    assert said["nonce"] == NONCE
    assert said["response"]["body"] == ANSWER.decode()


@pytest.mark.parametrize(
    "raw",
    [
        RAW + " ",
        RAW.replace(",", ", ", 1),
        RAW.replace(f'"seed":{SEED}', '"seed":7.0'),
        RAW.replace(f'"seed":{SEED}', '"seed":9007199254740992'),
        RAW.replace("ü", "\\u00fc"),
        RAW[:-1] + ',"v":"hyperbeam.answer/1"}',
        "",
        "[]",
        "null",
        "\ud800",
    ],
    ids=lambda raw: ascii(raw)[-30:],
)
def test_a_statement_that_is_not_canonical_is_refused(raw: str) -> None:
    with pytest.raises(Malformed) as caught:
        statement.parse(raw)
    assert caught.value.reason == "not-canonical"


@pytest.mark.parametrize("path", list(places(json.loads(RAW))), ids=str)
def test_a_statement_without_a_part_or_with_one_more_is_refused(path: tuple[Any, ...]) -> None:
    value = json.loads(RAW)
    place = value
    for name in path[:-1]:
        place = place[name]
    if "settings" in path[:-1]:
        return
    item = place.pop(path[-1])
    with pytest.raises(Malformed, match="has no") as caught:
        statement.parse(jcs.encode(value).decode())
    assert caught.value.reason == "statement-malformed"
    place[path[-1]] = item
    place["zzz"] = 1
    with pytest.raises(Malformed, match="unknown key"):
        statement.parse(jcs.encode(value).decode())


@pytest.mark.parametrize(
    "changes",
    [
        {"v": "hyperbeam.answer/2"},
        {"nonce": NONCE.upper()},
        {"nonce": None},
        {"nonce_by": "nobody"},
        {"timestamp": -1},
        {"timestamp": True},
        {"seed": "7"},
        {"seed": "9007199254740991"},
        {"seed": False},
        {"model": {"name": "m", "sha256": None, "size": None, "by": "hashed"}},
        {"receipt": "12" * 15},
        {"node": "short"},
    ],
    ids=str,
)
def test_a_statement_with_a_value_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as caught:
        statement.parse(SIGNER.statement(**changes))
    assert caught.value.reason == "statement-malformed"


def test_a_seed_past_what_numbers_hold_is_text() -> None:
    assert statement.parse(SIGNER.statement(seed=str(2**53 + 1)))["seed"] == "9007199254740993"


def test_a_receipt_is_read_and_its_bytes_are_those_signed() -> None:
    assert receipt.parse(RECEIPT) == RECEIPT
    signature = bytes.fromhex(RECEIPT["signature"])
    key = public(SIGNER.receipt)
    assert signing.check(key, signing.RECEIPT, receipt.signed_bytes(RECEIPT), signature)
    assert jcs.parse(receipt.leaf(RECEIPT)) == RECEIPT


def test_a_receipt_of_a_request_that_failed_early_has_little_in_it() -> None:
    nothing = {"status": None, "sha256": None, "length": 0, "stream": False, "complete": False}
    changes = {"forwarded": None, "model": None, "backend": None, "nonce": None, "seed": None}
    made = SIGNER.make_receipt(
        None, b"", **changes, nonce_by="node", response={**nothing, "end": "left"}
    )
    assert receipt.parse(made) == made


@pytest.mark.parametrize("path", list(places(RECEIPT)), ids=str)
def test_a_receipt_with_a_part_of_another_kind_is_refused(path: tuple[Any, ...]) -> None:
    if "settings" in path:
        return
    for new in (1.5, [1], "\ud800", "-1" if path == ("seed",) else -1):
        with pytest.raises(Malformed) as caught:
            receipt.parse(changed(RECEIPT, path, new))
        assert caught.value.reason == "receipt-malformed"


def test_a_receipt_cannot_have_the_nonce_of_a_client_that_gave_none() -> None:
    with pytest.raises(Malformed, match="no nonce"):
        receipt.parse(SIGNER.make_receipt(RAW, ANSWER, nonce=None))


def test_a_challenge_and_a_quote_are_hashes_over_their_kind() -> None:
    raw, nonce = challenge.challenge("aa" * 32, "bb" * 32)
    assert raw == f'{{"keyset":"{"aa" * 32}","nonce":"{"bb" * 32}","v":"hyperbeam.challenge/1"}}'
    assert nonce == hashlib.sha256(raw.encode()).hexdigest()
    data = challenge.quote("aa" * 32, None, "cc" * 32)
    text = f'{{"gpu":"{"cc" * 32}","keyset":"{"aa" * 32}","nonce":null,"v":"hyperbeam.quote/1"}}'
    assert data == hashlib.sha256(text.encode()).digest() + bytes(32)


def test_the_digest_of_gpu_reports_leaves_their_signatures_out() -> None:
    first, second = b"a" * 10, b"bc"
    reports = [first + b"s" * 96, second + b"t" * 96]
    text = b"\0\0\0\x0a" + first + b"\0\0\0\x02" + second
    assert challenge.gpu_digest(reports) == hashlib.sha256(text).hexdigest()
    assert challenge.gpu_digest([r[:-96] + bytes(96) for r in reports]) == challenge.gpu_digest(
        reports
    )
    with pytest.raises(ValueError, match="shorter"):
        challenge.gpu_digest([bytes(96)])


@settings(max_examples=150)
@given(st.sampled_from(list(places(KEYSET))), anything)
def test_nothing_in_a_key_set_gives_more_than_a_refusal(path: tuple[Any, ...], new: Any) -> None:
    try:
        assert KeySet.parse(changed(KEYSET, path, new)).message == KEYSET
    except Malformed as error:
        assert error.reason


@settings(max_examples=150)
@given(st.sampled_from(list(places(RECEIPT))), anything)
def test_nothing_in_a_receipt_gives_more_than_a_refusal(path: tuple[Any, ...], new: Any) -> None:
    try:
        receipt.leaf(receipt.parse(changed(RECEIPT, path, new)))
    except Malformed as error:
        assert error.reason


@settings(max_examples=150)
@given(st.text() | st.integers(0, len(RAW) - 1).map(lambda n: RAW[:n] + RAW[n + 1 :]))
def test_no_text_gives_more_than_a_refusal(text: str) -> None:
    try:
        assert jcs.encode(statement.parse(text)).decode() == text
    except Malformed as error:
        assert error.reason
    with pytest.raises(Malformed):
        KeySet.parse(text)


@settings(max_examples=100)
@given(st.binary())
def test_no_bytes_give_more_than_a_refusal(data: bytes) -> None:
    with pytest.raises(Malformed):
        KeySet.parse(data)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 100_000, "[" + "1," * 300_000 + "1]", '"' + "\\" * 500_000]
)
def test_deep_and_long_texts_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        KeySet.parse(text)
    with pytest.raises(Malformed):
        statement.parse(text)


def test_commas_in_a_long_answer_are_no_structure() -> None:
    body = ("[{," * 100_000).encode()
    said = statement.parse(SIGNER.statement(response=body))
    assert said["response"]["length"] == 300_000


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("point", sorted(signing._SMALL_ORDER))
def test_a_key_for_which_anybody_can_sign_is_none(point: str, sign: int) -> None:
    key = bytearray.fromhex(point)
    key[31] |= sign
    identity = b"\1" + bytes(31)
    for signature in (identity + bytes(32), bytes(key) + bytes(32), bytes(64)):
        assert not signing.check(bytes(key), signing.ANSWER, b"data", signature)
    entry = {"id": signing.key_id(bytes(key)), "alg": "ed25519", "key": key.hex()}
    for name in ("receipt_keys", "log_keys"):
        with pytest.raises(Malformed):
            KeySet.parse(SIGNER.keyset(**{name: [entry]}))


def test_the_keys_that_are_made_are_strong() -> None:
    assert not signing.is_weak(public(SIGNER.identity))
