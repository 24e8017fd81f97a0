"""Checks of an attestation: from the answer over the statement to what the hardware signed."""

from __future__ import annotations

import hashlib
from typing import Any

from . import batch as batches
from . import shape, signing
from . import statement as statements
from .asked import Asked, check_node, keyset_of
from .checks import Checks, Malformed, Source
from .compare import (
    check_answer,
    check_bodies,
    check_fresh,
    check_model,
    check_request,
    check_resolved,
    check_seed,
)
from .cpu import check_cpu
from .gpu import check_agreement, check_gpu, check_said, ueids
from .keyset import KeySet
from .receipt_checks import check_agreement as check_receipt_agrees
from .verdict import Findings

MALFORMED = "attestation-malformed"
MAX_UPSTREAM = 8
_MADE_UP = ("simulated", "replay")

_SHAPE = shape.record(
    raw=shape.text(statements.MAX_BYTES),
    signature=shape.record(key_id=shape.key_id, value=shape.signature),
    nonce=shape.digest,
    batch=shape.optional(shape.mapping),
    backend=shape.text(64),
    evidences=shape.listing(shape.mapping, 1),
    token=shape.text(8 << 20),
    claims=shape.listing(shape.mapping),
    verified=shape.boolean,
    cpu=shape.optional(shape.mapping),
)


def check_attestation(
    findings: Findings,
    asked: Asked,
    value: dict[str, Any],
    *,
    answer: bytes | None = None,
    whole: bytes | None = None,
    stream: bool = False,
    resolved_model: str | None = None,
) -> None:
    """Check `value`. `answer`: the attested bytes; `whole`: the reply they were cut from."""
    checks = findings.checks
    findings.demand(
        "attestation", "statement", "keyset", "keyset-life", "statement-signature",
        "statement-bodies", "nonce", "evidence-agrees", "backend",
    )  # fmt: skip
    value = _relayed(value)
    try:
        shape.check(value, _SHAPE, "the attestation", MALFORMED)
    except Malformed as error:
        checks.failed("attestation", error.reason, error.detail)
        return
    checks.passed("attestation", "it has all its parts and no others")
    try:
        said = statements.parse(value["raw"])
    except Malformed as error:
        checks.failed("statement", error.reason, error.detail)
        return
    checks.passed("statement", "canonical, of a known kind")
    keyset = keyset_of(asked, said["keyset"], said["node"], said["timestamp"], checks)
    check_node(asked, said["node"], checks)
    _check_signature(checks, keyset, value)
    bound = _check_binding(checks, value)
    evidences = check_agreement(checks, value, value["nonce"])
    check_gpu(findings, asked, evidences, value["nonce"] if bound else None)
    _check_backend(findings, value, said)
    check_said(findings, value["claims"], value["verified"], value["nonce"])
    _check_keyset_gpus(findings, keyset)
    check_bodies(checks, said)
    if answer is not None:
        findings.demand("answer")
        check_answer(checks, said, answer, stream)
    else:
        checks.unknown("answer", "answer-not-given", "the statement alone was given")
    if resolved_model is not None:
        findings.demand("resolved-model")
        check_resolved(checks, said, resolved_model)
    check_request(findings, asked, said)
    body = said["request"]["body"]
    check_seed(checks, said, asked.request if body is None else body.encode())
    check_model(findings, asked, said)
    check_fresh(findings, asked, said["nonce"], said["nonce_by"])
    check_cpu(findings, asked, value["cpu"], said["keyset"], value["nonce"], evidences)
    if asked.receipt is not None:
        check_receipt_agrees(findings, asked, said, value["raw"], keyset, whole)
    if asked.revoked is not None:
        asked.revoked.check(checks, said["node"], said["keyset"], ueids(findings))
    _claim(findings, said, keyset)


def _relayed(value: dict[str, Any]) -> dict[str, Any]:
    """The attestation of the node that made the answer, where others handed it on."""
    for _ in range(MAX_UPSTREAM):
        inner = value.get("upstream")
        if list(value) != ["upstream"] or not isinstance(inner, dict):
            break
        value = inner
    return value


def _check_signature(checks: Checks, keyset: KeySet | None, value: dict[str, Any]) -> None:
    name = "statement-signature"
    if keyset is None:
        checks.unknown(name, "keyset-unknown", "without the key set anybody could have written it")
        return
    id = value["signature"]["key_id"]
    key = keyset.receipt_key(id)
    if key is None:
        checks.failed(name, "key-unknown", f"the key set has no receipt key {id}")
        return
    signature = bytes.fromhex(value["signature"]["value"])
    if signing.check(key, signing.ANSWER, value["raw"].encode(), signature):
        checks.passed(name, f"by the receipt key {id}", "declared")
    else:
        checks.failed(
            name, "signature-invalid", f"the receipt key {id} did not sign this statement"
        )


def _check_binding(checks: Checks, value: dict[str, Any]) -> bool:
    """Whether the nonce that the hardware signed stands for `raw`."""
    raw, nonce = value["raw"], value["nonce"]
    if value["batch"] is None:
        good = bool(hashlib.sha256(raw.encode()).hexdigest() == nonce)
        reason, detail = "nonce-not-of-statement", "the nonce is not the statement's SHA-256"
    else:
        try:
            good = batches.verify(batches.parse(value["batch"]), raw, nonce)
        except Malformed as error:
            checks.failed("nonce", error.reason, error.detail)
            return False
        reason, detail = "batch-proof", "the statement is not in the batch with this nonce"
    if good:
        checks.passed("nonce", "the hardware's nonce is a hash of the statement", "hashed")
    else:
        checks.failed("nonce", reason, detail)
    return good


def _check_backend(findings: Findings, value: dict[str, Any], said: dict[str, Any]) -> None:
    checks = findings.checks
    stated = "simulated" if value["backend"] in _MADE_UP else "nvidia"
    if findings.trust not in ("none", stated):
        checks.failed(
            "backend",
            "evidence-conflict",
            f"the node says its evidence is by {value['backend']!r}; its root says otherwise",
        )
    elif said["backend"]["where"] != "child":
        checks.failed("backend", "backend-not-local", "the node did not run the backend itself")
    else:
        checks.passed("backend", f"{said['backend']['kind']}, run by the node", "declared")


def _check_keyset_gpus(findings: Findings, keyset: KeySet | None) -> None:
    stated = keyset.message["gpu"] if keyset is not None else None
    if stated is None or not findings.gpus:
        return
    if not stated["ueids"]:
        return
    others = [ueid for ueid in ueids(findings) if ueid not in stated["ueids"]]
    if others:
        findings.checks.failed(
            "keyset-gpus", "ueid-not-in-keyset", f"the node has not declared the GPU {others[0]}"
        )
    else:
        findings.checks.passed("keyset-gpus", "the GPUs are those of the key set", "declared")


def _claim(findings: Findings, said: dict[str, Any], keyset: KeySet | None) -> None:
    model = said["model"]
    findings.claim("node", said["node"], "declared")
    findings.claim("keyset", said["keyset"], "declared")
    findings.claim("config", said["config"], "declared")
    findings.claim("timestamp", said["timestamp"], "declared")
    findings.claim("model", model["name"], "declared")
    findings.claim("model-sha256", model["sha256"], model["by"])
    findings.claim("seed", said["seed"], "declared")
    findings.claim("computed-by", said["backend"]["kind"], "declared")
    findings.claim("request-sha256", said["request"]["sha256"], "hashed")
    findings.claim("response-sha256", said["response"]["sha256"], "hashed")
    for ueid in ueids(findings):
        findings.claim("gpu", ueid, "hardware" if findings.trust == "nvidia" else "unknown")
    gpu = keyset.message["gpu"] if keyset is not None else None
    if gpu is not None:
        cc: Source = "hardware" if findings.code == "known" else "declared"
        findings.claim("confidential-mode", gpu["cc"], cc)
