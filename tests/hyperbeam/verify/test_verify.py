"""`verify` of whole answers: what passes, and what each change of them is called."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperbeam import verify as verifying
from hyperbeam.verify import answer, jcs, signing, token
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.seed import derive

from .cases import DONE, PROCESSOR, Case, problems, rims, ueid, world
from .documents import (
    ANSWER,
    CHUNK,
    DAY,
    NONCE,
    REQUEST,
    STREAM,
    TIME,
    Signer,
    public,
    sha256,
    sign,
)
from .nvidia.samples import NONCE as SAMPLE_NONCE
from .nvidia.samples import RIMS, THEN, entry
from .snp.simulated import MEASUREMENT

CASE = Case()
RAW = CASE.signer.statement()
REPLY = CASE.reply(RAW)
ATTESTATION = json.loads(REPLY)["attestation"]


def reasons(document: Any, **brought: Any) -> list[str]:
    verdict = CASE.verify(document, **brought)
    assert not verdict.verified and not verdict.simulated_pass
    assert verdict.reason and verdict.shows == "nothing"
    return problems(verdict) or [verdict.reason]


def test_an_answer_passes_but_for_its_root() -> None:
    verdict = CASE.verify(REPLY, request=REQUEST, nonce=NONCE)
    assert problems(verdict) == []
    assert (verdict.verified, verdict.simulated_pass, verdict.reason) == (False, True, "simulated")
    assert (verdict.kind, verdict.trust, verdict.freshness) == ("answer", "simulated", "fresh")
    passed = {check.name for check in verdict.checks if check.result == "pass"}
    assert passed >= {
        "reply", "attestation", "statement", "keyset", "keyset-life", "statement-signature",
        "nonce", "evidence-agrees", "gpu", "backend", "keyset-gpus", "node-claims", "answer",
        "statement-bodies", "resolved-model", "request", "model", "fresh",
    }  # fmt: skip
    assert json.loads(json.dumps(verdict.as_dict()))["claims"][0]["source"] == "declared"


def test_every_claim_and_pass_names_its_source() -> None:
    verdict = CASE.verify(REPLY)
    sources = {"hardware", "hashed", "declared", "operator", "unknown"}
    assert {claim.source for claim in verdict.claims} <= sources
    said = {claim.name: claim.source for claim in verdict.claims}
    assert said["model"] == "declared" and said["model-sha256"] == "hashed"
    assert said["confidential-mode"] == "declared"


def test_without_the_root_being_named_nothing_simulated_passes() -> None:
    verdict = CASE.verify(REPLY, trust=None)
    assert not verdict.verified and not verdict.simulated_pass and verdict.trust == "none"
    other = "simulated:" + "00" * 32
    assert not CASE.verify(REPLY, trust=other).simulated_pass


@pytest.mark.parametrize("text", [REPLY, REPLY + b"\n", REPLY.decode(), json.loads(REPLY)])
def test_an_answer_may_come_in_several_ways(text: Any) -> None:
    assert CASE.verify(text).simulated_pass


def test_a_stream_and_a_bare_attestation_pass() -> None:
    stream = CASE.verify(CASE.stream())
    assert stream.simulated_pass and stream.kind == "stream"
    alone = CASE.verify(ATTESTATION)
    assert alone.simulated_pass and alone.kind == "attestation"
    assert ("answer", "unknown") in {(check.name, check.result) for check in alone.checks}


def test_an_attestation_that_was_handed_on_passes() -> None:
    relayed = answer.splice(ANSWER, "m", {"upstream": ATTESTATION})
    assert CASE.verify(relayed).simulated_pass
    assert CASE.verify(
        answer.splice(ANSWER, "m", {"upstream": {"upstream": ATTESTATION}})
    ).simulated_pass
    mixed = answer.splice(ANSWER, "m", {"upstream": ATTESTATION, "raw": ""})
    assert reasons(mixed) == ["attestation-malformed"]


def test_a_statement_of_digests_only_passes() -> None:
    said = json.loads(RAW)
    said["request"]["body"] = said["response"]["body"] = None
    reply = CASE.reply(jcs.encode(said).decode())
    assert CASE.verify(reply).simulated_pass
    assert reasons(reply.replace(b"you", b"You", 1)) == ["answer-digest"]


_PARTS = {
    "answer": (0, REPLY.index(b',"resolved_model"')),
    "resolved-model": (REPLY.index(b'"resolved_model"'), REPLY.index(b'"attestation"')),
    "raw": (REPLY.index(b'"raw"'), REPLY.index(b'"signature"')),
    "signature": (
        REPLY.index(b'"signature"'),
        REPLY.index(b'"nonce"', REPLY.index(b'"signature"')),
    ),
    "backend": (REPLY.index(b'"batch"'), REPLY.index(b'"evidences"')),
    "evidences": (REPLY.index(b'"evidences"'), REPLY.index(b'"token"')),
    "token": (REPLY.index(b'"token"'), REPLY.index(b'"claims"')),
}


@pytest.mark.parametrize("part", _PARTS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_character_can_be_changed(part: str, data: st.DataObject) -> None:
    low, high = _PARTS[part]
    at = data.draw(st.integers(low, high - 1))
    new = data.draw(st.integers(32, 126).filter(lambda byte: byte != REPLY[at]))
    changed = REPLY[:at] + bytes([new]) + REPLY[at + 1 :]
    try:
        found = reasons(changed)
    except Malformed as error:
        found = [error.reason]
    assert found and all(found)


@pytest.mark.parametrize("verified", [b'"verified":true', b'"verified":null', b'"verified":0'])
def test_the_nodes_own_verdict_is_no_evidence(verified: bytes) -> None:
    assert reasons(REPLY.replace(b'"verified":false', verified)) in (
        ["claims-conflict"],
        ["attestation-malformed"],
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"you", b"You", "answer-digest"),
        (b'"stop"', b'"stop "', "answer-length"),
        (b'"resolved_model":"m"', b'"resolved_model":"n"', "resolved-model-mismatch"),
        (b'"resolved_model":', b' "resolved_model":', "answer-reformatted"),
        (b'"backend":"simulated"', b'"backend":"nvml"', "evidence-conflict"),
        (b'"token":"W3si', b'"token":"X3si', "token-malformed"),
        (b'"arch":"HOPPER"', b'"arch":"HOPPED"', "evidence-conflict"),
        (b'"batch":null', b'"batch":{}', "batch-malformed"),
        (b'"batch":null', b'"batch":[]', "attestation-malformed"),
        (b'"cpu":null', b'"cpu":{}', "cpu-malformed"),
        (b'"cpu":null', b'"cpu":null,"more":1', "attestation-malformed"),
        (b'"ueid":"', b'"ueid":"1', "claims-conflict"),
    ],
)
def test_a_change_has_a_name(old: bytes, new: bytes, reason: str) -> None:
    assert reason in reasons(REPLY.replace(old, new, 1))


def test_a_line_that_differs_is_shown_by_its_place() -> None:
    verdict = CASE.verify(REPLY.replace(b"you", b"You", 1))
    at = ANSWER.index(b"you")
    assert f"from byte {at} on" in verdict.detail


def test_what_has_no_attestation_is_not_verified() -> None:
    assert reasons(ANSWER) == ["no-attestation"]
    assert reasons(STREAM + DONE) == ["no-attestation"]
    assert reasons([]) and reasons({"evidences": []}) and reasons({"token": "W10="})


def test_without_the_key_set_nothing_of_the_statement_counts() -> None:
    verdict = CASE.verify(REPLY, keyset=None)
    assert (verdict.verified, verdict.simulated_pass) == (False, False)
    assert verdict.reason == "keyset-not-given"
    assert problems(verdict) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"not_after": TIME - 1, "not_before": TIME - DAY}, "keyset-mismatch"),
        ({"config": "00" * 32}, "keyset-mismatch"),
    ],
)
def test_another_key_set_of_the_node_does_not_do(changes: dict[str, Any], reason: str) -> None:
    assert reasons(REPLY, keyset=CASE.signer.keyset(**changes)) == [reason]


def test_several_key_sets_may_be_given_and_others_are_asked_for() -> None:
    sets = [Signer().keyset(), CASE.signer.keyset()]
    assert CASE.verify(REPLY, keyset=sets).simulated_pass
    asked: list[str] = []

    def find(name: str) -> bytes:
        asked.append(name)
        return json.dumps(CASE.signer.keyset()).encode()

    assert CASE.verify(REPLY, keyset=None, find_keyset=find).simulated_pass
    assert asked == [CASE.signer.keyset_name]
    other = json.dumps(Signer().keyset())
    assert reasons(REPLY, keyset=None, find_keyset=lambda name: other) == ["keyset-mismatch"]
    assert reasons(REPLY, keyset=None, find_keyset=lambda name: b"{}") == ["keyset-malformed"]

    def down(name: str) -> bytes:
        raise TimeoutError("no reply")

    assert reasons(REPLY, keyset=None, find_keyset=down) == ["keyset-unreachable"]


def test_a_statement_from_outside_its_key_sets_life_is_refused() -> None:
    late = CASE.reply(CASE.signer.statement(timestamp=TIME + 2 * DAY))
    assert reasons(late) == ["keyset-expired"]


def test_a_forged_statement_with_genuine_evidence_fails_on_its_signature() -> None:
    other = Signer(identity=CASE.signer.identity, gpu=CASE.signer.gpu)
    forged = CASE.signer.statement(timestamp=TIME + 1)
    fake = CASE.reply(forged, signature=other.signature(forged))
    assert reasons(fake) == ["key-unknown"]
    id = signing.key_id(public(CASE.signer.receipt))
    under_its_id = {**other.signature(forged), "key_id": id}
    assert reasons(CASE.reply(forged, signature=under_its_id)) == ["signature-invalid"]
    as_receipt = sign(CASE.signer.receipt, signing.RECEIPT, RAW.encode())
    assert reasons(CASE.reply(RAW, signature={"key_id": id, "value": as_receipt})) == [
        "signature-invalid"
    ]


def test_the_log_key_does_not_sign_answers() -> None:
    key = public(CASE.signer.log)
    value = sign(CASE.signer.log, signing.ANSWER, RAW.encode())
    assert reasons(CASE.reply(RAW, signature={"key_id": signing.key_id(key), "value": value})) == [
        "key-unknown"
    ]


def test_evidence_of_another_answer_does_not_do() -> None:
    other = CASE.attestation(CASE.signer.statement(receipt="99" * 16))
    evidence = {name: other[name] for name in ("evidences", "token", "claims")}
    found = reasons(CASE.reply(RAW, **evidence))
    assert "evidence-conflict" in found and "nonce-mismatch" in found
    moved = reasons(CASE.reply(RAW, **evidence, nonce=other["nonce"]))
    assert "nonce-not-of-statement" in moved


def test_evidence_of_another_gpu_than_the_key_sets_is_named() -> None:
    case = Case(Signer(gpu={"cc": True, "devtools": False, "ueids": ["1"]}))
    verdict = case.verify(case.reply())
    assert problems(verdict) == ["ueid-not-in-keyset"]


def test_the_request_is_compared() -> None:
    assert CASE.verify(REPLY, request=REQUEST).simulated_pass
    assert reasons(REPLY, request=REQUEST[:-1]) == ["request-mismatch"]
    verdict = CASE.verify(REPLY, request=REQUEST + b"\n")
    assert verdict.reason == "request-mismatch" and "line end" in verdict.detail


def test_bodies_in_the_statement_are_those_it_has_digests_of() -> None:
    said = json.loads(RAW)
    said["request"]["body"] += " "
    assert reasons(CASE.reply(jcs.encode(said).decode())) == ["request-digest"]
    said = json.loads(RAW)
    said["response"]["body"] = "x"
    assert reasons(CASE.reply(jcs.encode(said).decode())) == ["response-digest"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stream": True}, "answer-kind"),
        ({"complete": False}, "answer-incomplete"),
    ],
)
def test_the_statement_is_about_this_kind_of_answer(changes: dict[str, Any], reason: str) -> None:
    said = json.loads(RAW)
    said["response"] |= changes
    assert reasons(CASE.reply(jcs.encode(said).decode())) == [reason]


def test_an_answer_computed_elsewhere_is_not_attested() -> None:
    elsewhere = {"kind": "url", "where": "url", "settings": {}}
    assert reasons(CASE.reply(CASE.signer.statement(backend=elsewhere))) == ["backend-not-local"]


def test_fresh_is_only_what_holds_the_verifiers_nonce() -> None:
    assert CASE.verify(REPLY).freshness == "unknown"
    assert reasons(REPLY, nonce="00" * 32) == ["nonce-mismatch"]
    assert reasons(REPLY, policy={"require_fresh": True}) == ["nonce-not-given"]
    own = CASE.reply(CASE.signer.statement(nonce_by="node", seed=derive(REQUEST, None)))
    assert reasons(own, nonce=NONCE) == ["nonce-by-node"]
    published = CASE.reply(
        CASE.signer.statement(nonce=SAMPLE_NONCE, seed=derive(REQUEST, SAMPLE_NONCE))
    )
    assert reasons(published, nonce=SAMPLE_NONCE) == ["nonce-published"]
    with pytest.raises(Malformed, match="64 hex"):
        CASE.verify(REPLY, nonce="00")


def test_a_policy_names_nodes_and_models() -> None:
    nodes = {"nodes": [CASE.signer.node]}
    assert CASE.verify(REPLY, policy=nodes).simulated_pass
    assert reasons(REPLY, policy={"nodes": ["A" * 43]}) == ["node-not-allowed"]
    assert CASE.verify(REPLY, policy={"models": ["cd" * 32]}).simulated_pass
    assert reasons(REPLY, policy={"models": ["00" * 32]}) == ["model-not-allowed"]
    model = {"name": "m", "sha256": "cd" * 32, "size": None, "by": "declared"}
    declared = CASE.reply(CASE.signer.statement(model=model))
    assert CASE.verify(declared).simulated_pass
    assert reasons(declared, policy={"models": ["cd" * 32]}) == ["model-not-allowed"]


@pytest.mark.parametrize("kind", ["node", "keyset", "ueid"])
def test_what_was_revoked_is_not_believed(kind: str) -> None:
    name = {"node": CASE.signer.node, "keyset": CASE.signer.keyset_name, "ueid": ueid()}[kind]
    assert reasons(REPLY, revoked=f"# no more\n{name}\n") == [f"{kind}-revoked"]
    assert CASE.verify(REPLY, revoked=["B" * 43]).simulated_pass


def test_a_batch_is_one_report_over_many() -> None:
    for index in range(5):
        assert CASE.verify(CASE.batched(index, 5)).simulated_pass
    assert CASE.verify(CASE.batched(0, 1)).simulated_pass


def _other_index(batch: dict[str, Any]) -> None:
    batch["index"] = 1


def _other_size(batch: dict[str, Any]) -> None:
    batch["size"] = 6


def _cut(batch: dict[str, Any]) -> None:
    batch["path"].pop()


def _longer(batch: dict[str, Any]) -> None:
    batch["path"].append("00" * 32)


def _other_root(batch: dict[str, Any]) -> None:
    batch["root"] = "00" * 32


def _inner_node(batch: dict[str, Any]) -> None:
    batch["path"].pop(0)
    batch["index"], batch["size"] = batch["index"] // 2, 3


@pytest.mark.parametrize(
    "change", [_other_index, _other_size, _cut, _longer, _other_root, _inner_node]
)
def test_a_batch_proof_that_was_changed_fails(change: Any) -> None:
    attestation = CASE.batched(2, 5)
    change(attestation["batch"])
    assert "batch-proof" in reasons(attestation)


def test_a_batch_with_the_proof_of_another_statement_fails() -> None:
    attestation = CASE.batched(2, 5)
    attestation["batch"] = CASE.batched(3, 5)["batch"]
    assert "batch-proof" in reasons(attestation)


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (lambda s, e: s.replace(b'"hi"', b'"ho"', 1), "answer-digest"),
        (lambda s, e: s.replace(b": keep-alive\n\n", b"", 1), "answer-length"),
        (lambda s, e: s.replace(e, b"data: " + CHUNK + b"\n\n" + e), "answer-length"),
        (
            lambda s, e: s.replace(e, e + b"data: " + CHUNK + b"\n\n"),
            "stream-chunk-after-attestation",
        ),
        (lambda s, e: s.replace(e, e + e), "stream-two-attestations"),
        (lambda s, e: s.removesuffix(DONE), "stream-no-done"),
        (lambda s, e: s[: s.index(e)], "stream-no-done"),
        (
            lambda s, e: s.replace(DONE, b'data: {"error":{"message":"gpu"}}\n\n'),
            "stream-error-event",
        ),
        (lambda s, e: s + b"data: 1\n\n", "stream-after-done"),
    ],
)
def test_a_stream_that_was_changed_fails(stream: Any, reason: str) -> None:
    whole = CASE.stream()
    event = whole[len(STREAM) : -len(DONE)]
    assert reason in reasons(stream(whole, event))


def test_a_plain_answer_under_a_streams_statement_fails() -> None:
    raw = CASE.signer.statement(response=STREAM, stream=True)
    assert "answer-kind" in reasons(CASE.reply(raw))


def test_evidence_alone_needs_the_verifiers_nonce() -> None:
    evidences = CASE.evidence(NONCE)
    for document in (evidences, {"evidences": evidences}, token.encode(evidences)):
        assert CASE.verify(document, nonce=NONCE).simulated_pass
        assert "nonce-not-given" in reasons(document)
        assert "nonce-mismatch" in reasons(document, nonce="00" * 32)
        for policy in ({"nodes": [CASE.signer.node]}, {"models": ["cd" * 32]}):
            assert reasons(document, nonce=NONCE, policy=policy) == ["not-checked"]
    said = {"evidences": evidences, "nonce": NONCE}
    assert CASE.verify(said, nonce=NONCE).simulated_pass
    assert "nonce-not-given" in reasons(said)
    assert "evidence-conflict" in reasons({**said, "nonce": "00" * 32}, nonce=NONCE)
    other = token.encode(CASE.evidence("01" * 32))
    assert "evidence-conflict" in reasons({**said, "token": other}, nonce=NONCE)


def test_a_challenge_is_believed_for_the_nonce_in_it() -> None:
    reply = CASE.challenged()
    assert CASE.verify(reply, nonce=NONCE).simulated_pass
    assert "nonce-not-given" in reasons(reply)
    assert "nonce-mismatch" in reasons(reply, nonce="00" * 32)
    assert "nonce-not-of-challenge" in reasons({**reply, "nonce": "00" * 32}, nonce=NONCE)
    for raw in (
        "{}",
        " " + reply["challenge"],
        reply["challenge"].replace("/1", "/2"),
        1,
        "x" * 9999,
    ):
        found = reasons({**reply, "challenge": raw}, nonce=NONCE)
        assert found[0] in ("challenge-malformed", "not-canonical")


def test_a_challenge_is_no_statement_and_a_statement_no_challenge() -> None:
    reply = CASE.challenged()
    raw = reply["challenge"]
    posed = CASE.attestation(raw, nonce=sha256(raw))
    assert reasons(posed) == ["statement-malformed"]
    turned = {**reply, "challenge": RAW, "nonce": sha256(RAW)}
    assert reasons(turned, nonce=NONCE)[0] == "challenge-malformed"


CPU_TRUST = {"trust": PROCESSOR.trust, "products": ["Milan"]}


def with_cpu(**changes: Any) -> bytes:
    evidences = CASE.evidence(sha256(RAW))
    cpu = CASE.cpu(sha256(RAW), evidences, **changes)
    return CASE.reply(RAW, evidences=evidences, token=token.encode(evidences), cpu=cpu)


def result(verdict: Any, name: str) -> tuple[str, str]:
    return next((c.result, c.reason) for c in verdict.checks if c.name == name)


def test_cpu_evidence_with_a_listed_measurement_passes() -> None:
    policy = {"snp": {**CPU_TRUST, "measurements": [MEASUREMENT.hex()]}, "require_cpu": True}
    verdict = CASE.verify(with_cpu(), policy=policy)
    assert result(verdict, "cpu") == ("pass", "")
    assert verdict.simulated_pass
    assert CASE.verify(with_cpu(nonce=None, gpu=None), policy=policy).simulated_pass


def test_an_unlisted_measurement_is_code_unknown() -> None:
    verdict = CASE.verify(with_cpu(), policy={"snp": CPU_TRUST})
    assert result(verdict, "cpu") == ("unknown", "code-unknown") and verdict.simulated_pass
    assert verdict.code == "unknown"
    needed = reasons(with_cpu(), policy={"snp": CPU_TRUST, "require_cpu": True})
    assert needed == ["code-unknown"]
    assert reasons(REPLY, policy={"require_cpu": True}) == ["cpu-not-given"]


@pytest.mark.parametrize(
    "changes", [{"keyset": "00" * 32}, {"nonce": "00" * 32}, {"gpu": "00" * 32}], ids=str
)
def test_cpu_evidence_over_something_else_fails(changes: dict[str, Any]) -> None:
    assert reasons(with_cpu(**changes), policy={"snp": CPU_TRUST}) == ["evidence-conflict"]


def test_cpu_evidence_of_no_known_root_fails() -> None:
    assert reasons(with_cpu())


def test_genuine_evidence_passes_with_the_clock_of_its_time() -> None:
    brought: dict[str, Any] = {
        "nonce": SAMPLE_NONCE,
        "policy": {"ocsp": "skip", "rim_clock": int(THEN.timestamp() * 1000)},
        "rims": RIMS,
    }
    verdict = verifying.verify([entry()], samples=True, **brought)
    assert (verdict.verified, verdict.trust, verdict.shows) == (True, "nvidia", "device-genuine")
    assert (verdict.compared, verdict.rims, verdict.revocation) == (33, "expired", "unchecked")
    refused = verifying.verify([entry()], **brought)
    assert not refused.verified and refused.reason == "nonce-published"
    strict = verifying.verify([entry()], samples=True, nonce=SAMPLE_NONCE)
    assert not strict.verified


def test_a_verdict_repeats_the_policy_it_is_by() -> None:
    verdict = CASE.verify(REPLY)
    text = jcs.encode(verdict.policy)
    assert hashlib.sha256(text).hexdigest() == verdict.policy_sha256
    assert verdict.policy["ocsp"] == "skip" and verdict.policy["trust"] == world().trust


def test_a_key_set_is_checked_by_itself() -> None:
    verdict = verifying.verify(CASE.signer.keyset())
    assert verdict.verified and verdict.shows == "signed"
    changed = verifying.verify({**CASE.signer.keyset(), "config": "00" * 32})
    assert not changed.verified and changed.reason == "keyset-signature"
    nodes = verifying.verify(CASE.signer.keyset(), policy={"nodes": ["A" * 43]})
    assert nodes.reason == "node-not-allowed"


def test_another_kind_than_was_asked_for_is_refused() -> None:
    with pytest.raises(Malformed) as caught:
        CASE.verify(REPLY, kind="receipt")
    assert caught.value.reason == "document-kind"
    with pytest.raises(Malformed) as caught:
        CASE.verify(REPLY, kind="foo")
    assert caught.value.reason == "kind-unknown"


def test_simulated_evidence_that_fails_does_not_say_that_it_is_none() -> None:
    said = CASE.verify(REPLY, policy={"gpu_count": 2}).as_dict()
    assert (said["trust"], said["simulated_pass"], said["verified"]) == ("simulated", False, False)
    assert "simulated" not in said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(ATTESTATION)), json_values)
def test_nothing_in_an_attestation_gives_more_than_a_refusal(name: str, new: Any) -> None:
    attestation = {**ATTESTATION, name: new}
    if name not in ("claims", "verified", "cpu") and new != ATTESTATION[name]:
        assert reasons(attestation)
    else:
        CASE.verify(attestation)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["v", "raw", "signature", "evidences", "token", "nonce", "challenge", "attestation",
             "choices", "path", "checkpoint", "index", "size", "old", "new", "id"]
        ),
        json_values | st.sampled_from(["hyperbeam.inclusion/1", "hyperbeam.receipt/1",
                                       "hyperbeam.consistency/1", "hyperbeam.keyset/1"]),
    )
)  # fmt: skip
def test_no_object_gives_more_than_a_refusal(value: dict[str, Any]) -> None:
    try:
        assert not CASE.verify(value, rims=rims()).verified
    except Malformed as error:
        assert error.reason


@pytest.mark.parametrize(
    "change",
    [
        {"measrez": "success"},
        {"measres": "succesS"},
        {"x-nvidia-gpu-driver-rim-fetched": 1},
        {"x-nvidia-gpu-driver-rim-cert-chain": {"x-nvidia-cert-status": "valid"}},
        {"x-nvidia-gpu-driver-rim-cert-chain": []},
        {"ueid": "1"},
        {"mode": "PPCIE"},
        {"x-nvidia-gpu-arch-check": False},
        {"x-nvidia-gpu-arch-check": 1},
        {"x-nvidia-gpu-attestation-report-parsed": False},
        {"x-nvidia-gpu-attestation-report-nonce-match": False},
        {"x-nvidia-gpu-attestation-report-signature-verified": False},
        {"x-nvidia-gpu-attestation-report-cert-chain-fwid-match": "success"},
    ],
)
def test_a_claim_that_no_node_makes_is_named(change: dict[str, Any]) -> None:
    made = CASE.attestation(RAW)
    assert CASE.verify(made).simulated_pass
    made["claims"][0] |= change
    assert reasons(made) == ["claims-conflict"]


def test_the_claims_that_the_verifier_finds_itself_are_no_conflict() -> None:
    made = CASE.attestation(RAW)
    made["claims"] = CASE.verify(made).gpus
    assert CASE.verify(made).simulated_pass
    # Another policy changes what is accepted, not what the evidence says.
    other = CASE.verify(made, trust=None, rims=None, policy={"modes": ["PPCIE"]})
    assert result(other, "node-claims")[0] == "pass"
    reply = CASE.challenged()
    reply["claims"] = CASE.verify(reply, nonce=NONCE).gpus
    assert result(CASE.verify(reply), "node-claims")[0] == "pass"


@pytest.mark.parametrize("count", [0, 2])
def test_claims_are_as_many_as_the_gpus(count: int) -> None:
    claims = CASE.attestation(RAW)["claims"] * count
    assert reasons(CASE.attestation(RAW, claims=claims)) == ["claims-conflict"]
    bare = {"evidences": CASE.evidence(NONCE), "nonce": NONCE, "claims": claims}
    assert reasons(bare, nonce=NONCE) == ["claims-conflict"]


def test_nothing_is_fresh_where_nobody_accepted_signed_the_nonce() -> None:
    for document in (REPLY, CASE.challenged(), CASE.evidence(NONCE)):
        good = CASE.verify(document, nonce=NONCE)
        assert (good.freshness, result(good, "fresh")) == ("fresh", ("pass", ""))
        for brought in ({"trust": None}, {"policy": {"gpu_count": 2}}):
            verdict = CASE.verify(document, nonce=NONCE, **brought)
            assert result(verdict, "fresh") == ("unknown", "hardware-not-accepted")
            assert (verdict.freshness, verdict.verified) == ("unknown", False)
