"""Checks of what `generate` of sev_gpu@1.0 gives: evidence over a challenge."""

from __future__ import annotations

import hashlib
from typing import Any

from . import jcs, shape
from .asked import Asked
from .challenge import CHALLENGE
from .checks import Malformed
from .compare import check_fresh
from .cpu import check_cpu
from .gpu import check_agreement, check_gpu, check_said, ueids
from .verdict import Findings

MALFORMED = "challenge-malformed"
_SHAPE = shape.record(v=shape.constant(CHALLENGE), keyset=shape.digest, nonce=shape.digest)


def check_challenge(findings: Findings, asked: Asked, value: dict[str, Any]) -> None:
    """The hardware's nonce is the challenge's hash, and the challenge holds the verifier's."""
    checks = findings.checks
    findings.demand("challenge", "nonce", "evidence-agrees", "fresh")
    raw, nonce = value["challenge"], value.get("nonce")
    try:
        if not isinstance(raw, str) or len(raw) > 1024:
            raise Malformed("the challenge is not a short text", MALFORMED)
        said = jcs.parse(raw, "the challenge")
        shape.check(said, _SHAPE, "the challenge", MALFORMED)
    except Malformed as error:
        checks.failed("challenge", error.reason, error.detail)
        return
    checks.passed("challenge", "canonical, of a known kind")
    bound = hashlib.sha256(raw.encode()).hexdigest() == nonce
    if bound:
        checks.passed("nonce", "the hardware's nonce is the challenge's SHA-256", "hashed")
    else:
        checks.failed("nonce", "nonce-not-of-challenge", "the nonce is not the challenge's SHA-256")
    evidences = check_agreement(checks, value, nonce)
    # Anybody can write a challenge: only one with the verifier's nonce vouches for this one.
    vouched = bound and asked.nonce == said["nonce"]
    check_gpu(findings, asked, evidences, nonce if vouched else None)
    check_said(findings, value.get("claims"), value.get("verified"), nonce)
    check_fresh(findings, asked, said["nonce"], "client")
    if bound:
        check_cpu(findings, asked, value.get("cpu"), said["keyset"], str(nonce), evidences)
    if asked.revoked is not None:
        asked.revoked.check(checks, "", said["keyset"], ueids(findings))
    findings.claim("keyset", said["keyset"], "declared")
    for ueid in ueids(findings):
        findings.claim("gpu", ueid, "hardware" if findings.trust == "nvidia" else "unknown")
