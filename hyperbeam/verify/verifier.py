"""`verify`: one document of any kind, checked as far as what the verifier brings allows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import document as documents
from .answer import split_plain, split_stream
from .asked import Asked, FindKeySet, FindProof, check_node
from .attestation import check_attestation
from .challenge_checks import check_challenge
from .checks import Malformed
from .compare import check_fresh
from .demands import check_brought, demanded
from .document import Document
from .gpu import check_agreement, check_gpu, check_said, ueids
from .heads import Heads
from .keyset import KeySet
from .log_proofs import check_checkpoint, check_consistency, check_inclusion
from .nvidia import Fetch, Resources
from .nvidia.evidence import read_nonce
from .policy import Policy
from .reading import read_object
from .receipt_checks import check_receipt
from .revoked import Revoked
from .verdict import Findings, Verdict, conclude

KeySetLike = KeySet | dict[str, Any] | str | bytes


def verify(
    document: bytes | str | dict[str, Any] | list[Any],
    *,
    kind: str | None = None,
    nonce: str | None = None,
    policy: Policy | dict[str, Any] | None = None,
    request: bytes | None = None,
    receipt: bytes | str | dict[str, Any] | None = None,
    answer: bytes | None = None,
    keyset: KeySetLike | list[KeySetLike] | None = None,
    find_keyset: FindKeySet | None = None,
    find_proof: FindProof | None = None,
    revoked: Revoked | dict[str, Any] | list[Any] | str | bytes | None = None,
    trust: str | None = None,
    rims: Path | None = None,
    fetch: Fetch | None = None,
    resources: Resources | None = None,
    now: datetime | None = None,
    heads: Heads | None = None,
    samples: bool = False,
) -> Verdict:
    """What to believe about `document`: a saved answer, stream, attestation, reply of
    `generate`, evidence, token, receipt, key set, log proof or head. Give the bytes as they
    came; a parsed answer is written out again and only then compared.

    `kind`: refuse any other. `nonce`: your own, 64 hex characters. `request`: the bytes that
    you sent. `receipt`: that of the attested answer, or the one a log proof is about.
    `answer`: the saved reply that a receipt is about. `keyset`: of the node, or a list;
    `find_keyset` gets one by its name. `revoked`: as `Revoked.parse` takes it. `trust`:
    `simulated:<fingerprint>` of a made-up root, which never gives `verified`. `rims`: a folder
    of reference manifests; `fetch` gets others, and OCSP answers (`resources` says more than
    these two). `heads`: what was seen of logs before; `find_proof` has the log prove that one
    continues another. `samples`: take nonces that were published, in tests only.

    Raises Malformed for a document, or for something brought along, that cannot be read at
    all, and `not-compared` for something that such a document is not compared with;
    everything else is a check in the verdict.
    """
    found = documents.read(document, kind)
    brought = {"nonce": nonce, "request": request, "receipt": receipt, "answer": answer}
    check_brought(found.kind, {**brought, "keyset": keyset})
    whole = policy if isinstance(policy, Policy) else Policy.parse(policy or {})
    asked = Asked(
        policy=whole if trust is None else whole.with_trust(trust),
        nonce=None if nonce is None else read_nonce(nonce),
        request=request,
        receipt=_receipt(receipt),
        answer=answer,
        keysets=tuple(_keysets(keyset)),
        find_keyset=find_keyset,
        find_proof=find_proof,
        revoked=_revoked(revoked),
        resources=resources or Resources(rim_folder=rims, fetch=fetch),
        now=now,
        heads=heads,
        samples=samples,
    )
    findings = Findings()
    for name, check in demanded(asked.policy):
        findings.demand(check, by=name)
    _check(findings, asked, found)
    return conclude(found.kind, findings, asked.policy)


def _check(findings: Findings, asked: Asked, document: Document) -> None:
    value = document.value
    match document.kind:
        case "answer":
            _check_plain(findings, asked, document)
        case "stream":
            _check_stream(findings, asked, document)
        case "attestation":
            check_attestation(findings, asked, value)
        case "challenge":
            check_challenge(findings, asked, value)
        case "evidence":
            _check_evidence(findings, asked, value)
        case "receipt":
            check_receipt(findings, asked, value, asked.answer)
        case "keyset":
            _check_keyset(findings, asked, value)
        case "inclusion":
            check_inclusion(findings, asked, value)
        case "consistency":
            check_consistency(findings, asked, value)
        case "checkpoint":
            check_checkpoint(findings, asked, document.data)


def _check_plain(findings: Findings, asked: Asked, document: Document) -> None:
    findings.demand("reply")
    if "attestation" not in document.value:
        findings.checks.failed("reply", "no-attestation", _NO_ATTESTATION)
        return
    try:
        answer, model, attestation = split_plain(document.data)
    except Malformed as error:
        findings.checks.failed("reply", error.reason, error.detail)
        return
    findings.checks.passed("reply", "answer and attestation stand as a node writes them")
    check_attestation(
        findings, asked, attestation,
        answer=answer, whole=document.data, resolved_model=model,
    )  # fmt: skip


def _check_stream(findings: Findings, asked: Asked, document: Document) -> None:
    split = split_stream(document.data)
    findings.demand("reply")
    if split.complete:
        findings.checks.passed("reply", "a whole stream with one attestation before its end")
    else:
        findings.checks.failed("reply", split.problem, _STREAM[split.problem])
    if split.attestation is not None:
        check_attestation(
            findings, asked, split.attestation,
            answer=split.answer, whole=document.data, stream=True,
            resolved_model=split.resolved_model,
        )  # fmt: skip


_NO_ATTESTATION = (
    "the answer has no attestation; to check it by its receipt, verify the receipt and give the "
    "answer with it"
)
_STREAM = {
    "no-attestation": _NO_ATTESTATION,
    "stream-after-done": "something follows [DONE]",
    "stream-malformed": "an event is not a JSON object",
    "stream-two-attestations": "two events have an attestation",
    "stream-attestation-malformed": "the event with the attestation lacks a part or comes first",
    "stream-attestation-changed": "the event with the attestation is not as a node writes it",
    "stream-chunk-after-attestation": "a chunk follows the attestation, which is not about it",
    "stream-error-event": "the stream holds an error, so the answer is not complete",
    "stream-unfinished": "the stream was cut in the middle of an event",
    "stream-no-done": "the stream was cut: [DONE] is missing",
}


def _check_evidence(findings: Findings, asked: Asked, value: dict[str, Any]) -> None:
    """Evidence alone is believed only for a nonce that the verifier brings."""
    checks = findings.checks
    findings.demand("evidence-agrees", "fresh")
    said = value.get("nonce", asked.nonce)
    evidences = check_agreement(checks, value, said)
    check_gpu(findings, asked, evidences, asked.nonce)
    check_said(findings, value.get("claims"), value.get("verified"), said)
    check_fresh(findings, asked, said, "client")
    if asked.revoked is not None:
        asked.revoked.check(checks, "", "", ueids(findings))
    for ueid in ueids(findings):
        findings.claim("gpu", ueid, "hardware" if findings.trust == "nvidia" else "unknown")


def _check_keyset(findings: Findings, asked: Asked, value: dict[str, Any]) -> None:
    checks = findings.checks
    findings.demand("keyset")
    try:
        keyset = KeySet.parse(value)
    except Malformed as error:
        checks.failed("keyset", error.reason, error.detail)
        return
    checks.passed("keyset", f"signed by the identity of {keyset.node}", "declared")
    check_node(asked, keyset.node, checks)
    now = asked.now or datetime.now(UTC)
    if keyset.lives_at(int(now.timestamp() * 1000)):
        checks.passed("keyset-life", "it is in force", "declared")
    else:
        checks.unknown("keyset-life", "keyset-expired", "it is not in force now")
    findings.shows = "signed"
    findings.claim("name", keyset.name, "hashed")
    for name in ("node", "not_before", "not_after", "config", "code", "gpu"):
        findings.claim(name, keyset.message[name], "declared")
    if asked.revoked is not None:
        gpu = keyset.message["gpu"] or {}
        asked.revoked.check(checks, keyset.node, keyset.name, gpu.get("ueids", ()))


def _receipt(value: bytes | str | dict[str, Any] | None) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    return read_object(value, "the receipt", "receipt-malformed")


def _keysets(value: KeySetLike | list[KeySetLike] | None) -> list[KeySet]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [item if isinstance(item, KeySet) else KeySet.parse(item) for item in items]


def _revoked(value: Revoked | dict[str, Any] | list[Any] | str | bytes | None) -> Revoked | None:
    return value if value is None or isinstance(value, Revoked) else Revoked.parse(value)
