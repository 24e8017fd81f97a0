"""`verify` of receipts, log proofs and heads, and what is remembered of logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import verify as verifying
from hyperbeam.verify import KeySet, log_proofs, merkle, receipt, signing
from hyperbeam.verify.checkpoint import (
    COSIGNATURE,
    Checkpoint,
    Signature,
    VerifierKey,
    cosigned_message,
    signature_line,
)
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.heads import MemoryHeads
from hyperbeam.verify.verdict import Verdict

from .cases import DONE, Case, problems
from .documents import ANSWER, NONCE, REQUEST, STREAM, TIME, Signer, public, sha256, sign
from .test_formats import changed, places

CASE = Case()
SIGNER = CASE.signer
RECEIPT = SIGNER.make_receipt(None, ANSWER)
LEAVES = [receipt.leaf(SIGNER.make_receipt(None, ANSWER, id=f"{n:032x}")) for n in range(6)]
LEAVES[3] = receipt.leaf(RECEIPT)
HASHES = [merkle.leaf_hash(leaf) for leaf in LEAVES]
ORIGIN = f"hyperbeam/receipts/{SIGNER.node}"


def verify(document: Any, **brought: Any) -> Verdict:
    return verifying.verify(document, **{"keyset": SIGNER.keyset(), **brought})


def reasons(document: Any, **brought: Any) -> list[str]:
    verdict = verify(document, **brought)
    assert not verdict.verified and verdict.reason
    return problems(verdict) or [verdict.reason]


def head(hashes: list[bytes], signer: Signer = SIGNER, origin: str = ORIGIN) -> str:
    made = Checkpoint(origin, len(hashes), merkle.root(hashes))
    signature = signer.log.sign(made.body())
    return f"{made.body().decode()}\n{signature_line(origin, public(signer.log), signature)}"


def inclusion(at: int, hashes: list[bytes] = HASHES, **changes: Any) -> dict[str, Any]:
    return {
        "v": "hyperbeam.inclusion/1",
        "index": at,
        "size": len(hashes),
        "path": [item.hex() for item in merkle.inclusion(hashes, at)],
        "checkpoint": head(hashes),
        **changes,
    }


def consistency(old: int, new: int, hashes: list[bytes] = HASHES) -> dict[str, Any]:
    return {
        "v": "hyperbeam.consistency/1",
        "old": old,
        "new": new,
        "path": [item.hex() for item in merkle.consistency(hashes[:new], old)],
        "checkpoint": head(hashes[:new]),
    }


def test_a_receipt_passes_as_signed_by_its_node() -> None:
    verdict = verify(RECEIPT, request=REQUEST, nonce=NONCE, policy={"nodes": [SIGNER.node]})
    assert (verdict.verified, verdict.shows, verdict.trust) == (True, "signed", "none")
    assert problems(verdict) == []
    assert verify(json.dumps(RECEIPT, indent=2)).verified


@pytest.mark.parametrize("path", list(places(RECEIPT)), ids=str)
def test_a_receipt_that_was_changed_anywhere_fails(path: tuple[Any, ...]) -> None:
    for new in ("00" * 32, "00" * 16, 1, None, "x", True):
        value = changed(RECEIPT, path, new)
        if value == RECEIPT:
            continue
        try:
            assert reasons(value)
        except Malformed as error:
            assert error.reason == "document-unknown" and path == ("v",)


def test_a_receipt_without_its_key_set_is_not_verified() -> None:
    assert reasons(RECEIPT, keyset=None) == ["keyset-not-given"]
    assert reasons(RECEIPT, keyset=Signer().keyset()) == ["keyset-mismatch"]


def test_what_is_signed_otherwise_is_no_receipt() -> None:
    unsigned = receipt.signed_bytes(RECEIPT)
    for key, context in (
        (SIGNER.receipt, signing.ANSWER),
        (SIGNER.log, signing.RECEIPT),
        (SIGNER.identity, signing.RECEIPT),
    ):
        made = {**RECEIPT, "signature": sign(key, context, unsigned)}
        assert reasons(made) == ["signature-invalid"]


def test_a_receipt_is_compared_with_the_answer_it_is_about() -> None:
    verdict = verify(RECEIPT, answer=ANSWER)
    assert verdict.verified and verdict.kind == "receipt" and verdict.shows == "signed"
    assert verify(json.dumps(RECEIPT), answer=ANSWER + b"\n").verified
    assert reasons(RECEIPT, answer=ANSWER.replace(b"you", b"You")) == ["reply-mismatch"]
    assert verify(SIGNER.make_receipt(None, STREAM + DONE), answer=STREAM + DONE).verified
    nothing = {**RECEIPT["response"], "sha256": None, "length": 0}
    unsent = SIGNER.make_receipt(None, b"", response=nothing)
    assert reasons(unsent, answer=ANSWER) == ["nothing-sent"]


def test_a_receipts_nonce_is_what_its_node_declares() -> None:
    def fresh(document: Any, **brought: Any) -> tuple[str, str, str]:
        verdict = verify(document, nonce=NONCE, **brought)
        check = next(check for check in verdict.checks if check.name == "fresh")
        return check.result, check.reason, check.source

    assert fresh(RECEIPT) == ("pass", "", "declared")
    unsigned = ("unknown", "signature-not-accepted", "unknown")
    assert fresh({**RECEIPT, "seed": 8}) == unsigned
    assert fresh(RECEIPT, keyset=None) == unsigned


def test_a_receipt_does_not_stand_in_for_an_attestation() -> None:
    for answer in (ANSWER, STREAM + DONE):
        made = SIGNER.make_receipt(None, answer)
        assert reasons(answer, receipt=made) == ["no-attestation"]


def test_a_policy_demands_what_a_receipt_cannot_show() -> None:
    cpu = verify(RECEIPT, policy={"require_cpu": True})
    assert (cpu.verified, cpu.reason) == (False, "not-checked")
    assert reasons(RECEIPT, policy={"require_fresh": True}) == ["nonce-not-given"]
    assert verify(RECEIPT, policy={"require_fresh": True}, nonce=NONCE).verified
    assert reasons(RECEIPT, policy={"models": ["00" * 32]}) == ["model-not-allowed"]


@pytest.mark.parametrize(
    "policy",
    [
        {"gpu_count": 1},
        {"ueids": ["1"]},
        {"min_driver": "550.1"},
        {"modes": ["PPCIE"]},
        {"measurements": ["00" * 48]},
        {"require_cpu": True},
        {"require_fresh": True},
        {"models": ["cd" * 32]},
        {"witnesses": [VerifierKey("w", COSIGNATURE, bytes(32)).text()]},
    ],
    ids=lambda policy: next(iter(policy)),
)
def test_a_policys_demands_hold_for_every_kind_of_document(policy: dict[str, Any]) -> None:
    field = next(iter(policy))
    cannot = {"receipt": set(policy) - {"models", "require_fresh"}, "keyset": {field}}
    cannot["checkpoint"] = {field} - {"witnesses"}
    for document in (RECEIPT, SIGNER.keyset(), head(HASHES)):
        keyset = None if document == SIGNER.keyset() else SIGNER.keyset()
        assert verify(document, keyset=keyset).verified
        verdict = verify(document, keyset=keyset, policy=policy)
        if field in cannot[verdict.kind]:
            assert (verdict.verified, verdict.reason) == (False, "not-checked")
            assert f"`{field}`" in verdict.detail and verdict.kind in verdict.detail
    everything = {"modes": ["SPT", "MPT", "PPCIE"], "rims": "require", "measurements": []}
    assert verify(RECEIPT, policy=everything).verified


_BROUGHT: dict[str, Any] = {
    "nonce": NONCE,
    "request": REQUEST,
    "receipt": RECEIPT,
    "answer": ANSWER,
    "keyset": SIGNER.keyset(),
}


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        (RECEIPT, {"nonce", "request", "answer", "keyset"}),
        (SIGNER.keyset(), set()),
        (head(HASHES), {"keyset"}),
        (consistency(2, 5), {"keyset"}),
        (inclusion(3), set(_BROUGHT)),
        (CASE.reply(), {"nonce", "request", "receipt", "keyset"}),
        (CASE.stream(), {"nonce", "request", "receipt", "keyset"}),
        (CASE.attestation("{}"), {"nonce", "request", "receipt", "keyset"}),
        (CASE.challenged(), {"nonce", "keyset"}),
        (CASE.evidence(NONCE), {"nonce", "keyset"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else verifying.verify(value).kind,
)
def test_what_a_document_is_not_compared_with_is_refused(document: Any, fits: set[str]) -> None:
    for name, value in _BROUGHT.items():
        if name in fits:
            verifying.verify(document, **{name: value})
            continue
        with pytest.raises(Malformed, match=f"`{name}` is for") as caught:
            verifying.verify(document, **{name: value})
        assert caught.value.reason == "not-compared"


def test_the_answer_is_compared_beside_a_log_proof() -> None:
    assert verify(inclusion(3), receipt=RECEIPT, answer=ANSWER).verified
    assert reasons(inclusion(3), receipt=RECEIPT, answer=STREAM) == ["reply-mismatch"]


def test_an_attested_answer_agrees_with_its_receipt() -> None:
    raw = SIGNER.statement()
    reply = CASE.reply(raw)
    made = SIGNER.make_receipt(raw, reply)
    assert CASE.verify(reply, receipt=made).simulated_pass
    for changes, reason in (
        ({"id": "00" * 16}, "receipt-id"),
        ({"statement": None}, "receipt-statement"),
        ({"statement": sha256("x")}, "receipt-statement"),
        ({"nonce": "00" * 32}, "receipt-nonce"),
        ({"request": {"sha256": "00" * 32, "length": 1}}, "receipt-request"),
        ({"seed": 8}, "receipt-seed"),
        ({"model": None}, "receipt-model"),
        ({"config": "00" * 32}, "receipt-config"),
    ):
        other = SIGNER.make_receipt(raw, reply, **changes)
        assert problems(CASE.verify(reply, receipt=other)) == [reason]
    elsewhere = SIGNER.make_receipt(raw, reply + b" ")
    assert problems(CASE.verify(reply, receipt=elsewhere)) == ["reply-mismatch"]
    unsigned = {**made, "signature": "00" * 64}
    assert problems(CASE.verify(reply, receipt=unsigned)) == ["signature-invalid"]
    assert problems(CASE.verify(reply, receipt={})) == ["receipt-malformed"]


def test_a_receipt_is_in_the_log() -> None:
    verdict = verify(inclusion(3), receipt=RECEIPT)
    assert (verdict.verified, verdict.log) == (True, "self-signed")
    assert verify(inclusion(3, id=RECEIPT["id"]), receipt=RECEIPT).verified
    alone = inclusion(0, [merkle.leaf_hash(receipt.leaf(RECEIPT))])
    assert verify(alone, receipt=RECEIPT).verified


def test_a_proof_without_its_receipt_shows_nothing() -> None:
    assert reasons(inclusion(3)) == ["receipt-not-given"]


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (inclusion(2), "inclusion-proof"),
        (inclusion(3, index=2), "inclusion-proof"),
        (inclusion(3, index=6), "inclusion-proof"),
        (inclusion(3, path=[]), "inclusion-proof"),
        (inclusion(3, path=[*inclusion(3)["path"], "00" * 32]), "inclusion-proof"),
        (inclusion(3, size=5), "size-mismatch"),
        (inclusion(3, id="00" * 16), "other-receipt"),
        (inclusion(3, id=1), "proof-malformed"),
        (inclusion(3, path=["x"]), "proof-malformed"),
        (inclusion(3, more=1), "proof-malformed"),
        (inclusion(3, checkpoint=""), "checkpoint-malformed"),
        (inclusion(3, checkpoint=head(HASHES, Signer())), "key-unknown"),
        (inclusion(3, checkpoint=head(HASHES, origin="somebody")), "origin-unknown"),
        (inclusion(3, checkpoint=head(HASHES[:-1] + HASHES[:1])), "inclusion-proof"),
        (inclusion(3, checkpoint=head(HASHES).replace("\n6\n", "\n7\n")), "signature-invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_proof_fails(proof: dict[str, Any], reason: str) -> None:
    assert reason in reasons(proof, receipt=RECEIPT)


def test_a_receipt_of_another_node_is_not_in_this_log() -> None:
    other = Signer()
    theirs = other.make_receipt(None, ANSWER)
    hashes = [merkle.leaf_hash(receipt.leaf(theirs))]
    found = reasons(inclusion(0, hashes), receipt=theirs, keyset=[SIGNER.keyset(), other.keyset()])
    assert found == ["other-log"]


def test_a_head_needs_a_key_set_of_its_node() -> None:
    text = head(HASHES)
    assert verify(text).verified and verify(text.encode()).kind == "checkpoint"
    assert reasons(text, keyset=None) == ["keyset-not-given"]
    assert reasons(text, keyset=Signer().keyset()) == ["keyset-not-given"]
    asked: list[str] = []

    def find(name: str) -> bytes:
        asked.append(name)
        return json.dumps(SIGNER.keyset()).encode()

    assert verify(text, keyset=None, find_keyset=find).verified and asked == [""]
    assert reasons(text, policy={"nodes": ["A" * 43]}) == ["node-not-allowed"]
    assert reasons(text, revoked=[SIGNER.node]) == ["node-revoked"]


def test_the_receipt_key_does_not_sign_heads() -> None:
    swapped = Signer(identity=SIGNER.identity, log=SIGNER.receipt)
    assert reasons(head(HASHES, swapped)) == ["key-unknown"]


def test_a_head_is_not_accused_where_its_key_is_not_at_hand() -> None:
    later = Signer(identity=SIGNER.identity)
    verdict = verify(head(HASHES), keyset=later.keyset())
    assert (verdict.verified, verdict.reason) == (False, "key-unknown")
    assert problems(verdict) == []
    assert reasons(head(HASHES).replace("\n6\n", "\n7\n")) == ["signature-invalid"]


def test_older_key_sets_are_asked_for() -> None:
    sets = [SIGNER.keyset()]
    for _ in range(log_proofs.MAX_OLDER + 1):
        previous = KeySet.parse(sets[-1]).name
        sets.append(Signer(identity=SIGNER.identity).keyset(previous=previous))
    by_name = {KeySet.parse(value).name: json.dumps(value).encode() for value in sets}
    asked: list[str] = []

    def find(current: int) -> Any:
        def get(name: str) -> bytes:
            asked.append(name)
            if name and name not in by_name:
                raise FileNotFoundError("no such key set")
            return by_name[name] if name else json.dumps(sets[current]).encode()

        return get

    assert verify(head(HASHES), keyset=None, find_keyset=find(3)).verified
    assert asked == ["", *[KeySet.parse(sets[at]).name for at in (2, 1, 0)]]
    assert verify(head(HASHES), keyset=sets[2], find_keyset=find(0)).verified
    assert verify(head(HASHES), keyset=None, find_keyset=find(log_proofs.MAX_OLDER)).verified
    asked.clear()
    far = find(log_proofs.MAX_OLDER + 1)
    assert reasons(head(HASHES), keyset=None, find_keyset=far) == ["key-unknown"]
    assert len(asked) == 1 + log_proofs.MAX_OLDER
    del by_name[KeySet.parse(sets[1]).name]
    assert reasons(head(HASHES), keyset=None, find_keyset=find(3)) == ["key-unknown"]


def test_a_key_set_of_another_name_or_node_does_not_stand_for_an_older_one() -> None:
    name = KeySet.parse(SIGNER.keyset()).name
    now = Signer(identity=SIGNER.identity).keyset(previous=name)
    for other in (SIGNER.keyset(config="00" * 32), Signer(log=SIGNER.log).keyset()):

        def find(name: str, other: dict[str, Any] = other) -> bytes:
            return json.dumps(other if name else now).encode()

        assert reasons(head(HASHES), keyset=None, find_keyset=find) == ["key-unknown"]


def test_a_log_that_shows_two_histories_is_a_fork() -> None:
    heads = MemoryHeads()
    assert verify(head(HASHES), heads=heads).verified
    assert verify(head(HASHES), heads=heads).verified
    other = [*HASHES[:-1], HASHES[0]]
    assert reasons(head(other), heads=heads) == ["log-fork"]
    assert heads.seen(ORIGIN) == {6: merkle.root(HASHES)}


def test_a_log_that_takes_receipts_back_is_named() -> None:
    heads = MemoryHeads()
    verify(head(HASHES[:4]), heads=heads)
    verify(head(HASHES), heads=heads)
    assert reasons(head(HASHES[:5]), heads=heads) == ["log-rollback"]
    assert verify(head(HASHES[:4]), heads=heads).verified


def test_a_head_that_nobody_signed_is_not_remembered() -> None:
    heads = MemoryHeads()
    verify(head(HASHES, Signer()), heads=heads)
    verify(head(HASHES), heads=heads, policy={"nodes": ["A" * 43]})
    assert heads.seen(ORIGIN) == {}


def test_growth_is_proven_where_a_proof_can_be_had() -> None:
    heads = MemoryHeads()
    verify(head(HASHES[:2]), heads=heads)
    grown = verify(head(HASHES[:3]), heads=heads)
    assert grown.verified
    assert [c.reason for c in grown.checks if c.name == "log-history"] == ["growth-unproven"]
    asked: list[tuple[int, int]] = []

    def find(old: int, new: int) -> bytes:
        asked.append((old, new))
        return json.dumps(consistency(old, new)).encode()

    verdict = verify(head(HASHES[:5]), heads=heads, find_proof=find)
    assert verdict.verified and asked == [(3, 5)]
    assert [c.result for c in verdict.checks if c.name == "log-history"] == ["pass"]

    def lie(old: int, new: int) -> bytes:
        return json.dumps({**consistency(old, new), "path": []}).encode()

    assert reasons(head(HASHES), heads=heads, find_proof=lie) == ["log-fork"]


def test_an_older_head_is_fine_where_the_log_still_goes_by_it() -> None:
    def find(old: int, new: int) -> bytes:
        return json.dumps(consistency(old, new)).encode()

    def gone(old: int, new: int) -> bytes:
        raise FileNotFoundError("no such size")

    def down(old: int, new: int) -> bytes:
        raise TimeoutError("no reply")

    heads = MemoryHeads()
    verify(head(HASHES), heads=heads)
    older = head(HASHES[:5])
    assert reasons(older, heads=heads, find_proof=gone) == ["log-rollback"]
    unsure = verify(older, heads=heads, find_proof=down)
    assert [c.reason for c in unsure.checks if c.name == "log-history"] == ["older-head"]
    heads = MemoryHeads()
    verify(head(HASHES), heads=heads)
    assert verify(older, heads=heads, find_proof=find).verified
    other = head([*HASHES[:3], HASHES[0]])
    assert reasons(other, heads=heads, find_proof=find) == ["log-fork"]


def test_a_node_that_begins_another_log_is_noticed() -> None:
    heads = MemoryHeads()
    verify(head(HASHES), heads=heads)
    verdict = verify(head(HASHES[:1], origin=f"{ORIGIN}/0123456789abcdef"), heads=heads)
    assert [c.reason for c in verdict.checks if c.name == "log-origin"] == ["log-replaced"]
    first = verify(head(HASHES, Signer()), heads=MemoryHeads())
    assert not [c for c in first.checks if c.name == "log-origin"]


def test_consistency_is_with_a_head_that_was_seen() -> None:
    heads = MemoryHeads()
    assert reasons(consistency(2, 5), heads=heads) == ["old-head-unknown"]
    heads = MemoryHeads()
    verify(head(HASHES[:2]), heads=heads)
    assert verify(consistency(2, 5), heads=heads).verified
    assert verify(consistency(5, 6), heads=heads).verified
    assert verify(consistency(0, 6), heads=heads).verified
    forked = MemoryHeads()
    verify(head(HASHES[1:3]), heads=forked)
    assert "log-fork" in reasons(consistency(2, 5), heads=forked)
    assert reasons({**consistency(2, 5), "new": 6}, heads=heads) == ["size-mismatch"]
    assert reasons({**consistency(2, 5), "path": ["00" * 32]}, heads=heads) == ["log-fork"]
    assert reasons({**consistency(2, 5), "path": 1}, heads=heads) == ["proof-malformed"]


def test_a_witness_that_the_policy_names_makes_the_log_witnessed() -> None:
    key = Ed25519PrivateKey.generate()
    witness = VerifierKey("witness.example", COSIGNATURE, public(key))
    made = Checkpoint(ORIGIN, 6, merkle.root(HASHES))
    time = TIME // 1000
    value = time.to_bytes(8, "big") + key.sign(cosigned_message(made, time))
    line = Signature(witness.name, witness.id, value).line()
    policy = {"witnesses": [witness.text()]}
    seen = MemoryHeads()
    seen.remember(ORIGIN, 7, bytes(32))
    older = verify(head(HASHES) + line, policy=policy, heads=seen)
    assert [c.reason for c in older.checks if c.name == "log-history"] == ["older-head"]
    verdict = verify(head(HASHES) + line, policy=policy)
    assert (verdict.verified, verdict.log) == (True, "witnessed")
    assert reasons(head(HASHES), policy=policy) == ["self-signed"]
    assert verify(head(HASHES) + line).log == "self-signed"
    later = (time + 1).to_bytes(8, "big") + value[8:]
    forged = Signature(witness.name, witness.id, later).line()
    assert reasons(head(HASHES) + forged, policy=policy) == ["self-signed"]
    with pytest.raises(Malformed):
        verify(head(HASHES), policy={"witnesses": ["x"]})


@settings(max_examples=100)
@given(st.data())
def test_no_character_of_a_proof_can_be_changed(data: st.DataObject) -> None:
    text = json.dumps(inclusion(3))
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.characters(exclude_categories=["Cs"]).filter(lambda c: c != text[at]))
    changed_text = text[:at] + new + text[at + 1 :]
    try:
        verdict = verify(changed_text, receipt=RECEIPT)
    except Malformed as error:
        assert error.reason
        return
    # White space for white space is the same JSON.
    assert not verdict.verified or json.loads(changed_text) == json.loads(text)


def test_a_leaf_that_a_proof_names_has_to_be_the_receipts() -> None:
    assert verify(inclusion(3, leaf=HASHES[3].hex()), receipt=RECEIPT).verified
    assert reasons(inclusion(3, leaf=HASHES[2].hex()), receipt=RECEIPT) == ["other-receipt"]


@pytest.mark.parametrize("suffix", ["/0123456789abcdef", "/0123456789ABCDEF", "/0", "/", "x"])
def test_a_log_that_could_not_go_on_has_a_successor(suffix: str) -> None:
    note = head(HASHES, origin=ORIGIN + suffix)
    if suffix == "/0123456789abcdef":
        assert verify(inclusion(3, checkpoint=note), receipt=RECEIPT).verified
    else:
        assert reasons(inclusion(3, checkpoint=note), receipt=RECEIPT) == ["origin-unknown"]
