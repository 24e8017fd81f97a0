"""GPU evidence as a part of a verdict, and whether all that stands beside it agrees with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from . import nvidia, token
from .asked import Asked
from .challenge import gpu_digest
from .checks import Check, Checks, Malformed, Source
from .nvidia import claims
from .verdict import Findings

CONFLICT = "evidence-conflict"
SIMULATED = "simulated"
PUBLISHED_NONCES = frozenset(
    {
        "4cff7f5380ead8fad8ec2c531c110aca4302a88f603792801a8ca29ee151af2e",
        "931d8dd0add203ac3d8b4fbde75e115278eefcdceac5b87671a748f32364dfcb",
    }
)
"""Nonces of samples that NVIDIA publishes: anybody has evidence over them."""
_NONCE_MATCH = "x-nvidia-gpu-attestation-report-nonce-match"
_FACTS = (
    "hwmodel",
    "ueid",
    "oemid",
    "eat_nonce",
    "mode",
    "x-nvidia-gpu-arch-check",
    "x-nvidia-gpu-driver-version",
    "x-nvidia-gpu-vbios-version",
    "x-nvidia-gpu-attestation-report-parsed",
    "x-nvidia-gpu-attestation-report-signature-verified",
    "x-nvidia-gpu-attestation-report-cert-chain-fwid-match",
    _NONCE_MATCH,
)
"""Of NVIDIA's claims those that no policy and no clock changes."""


def check_gpu(findings: Findings, asked: Asked, evidences: Any, nonce: str | None) -> None:
    """Verify evidence for `nonce`, which somebody vouches for (None: nobody does)."""
    checks = findings.checks
    findings.demand("gpu")
    if not asked.samples and nonce in PUBLISHED_NONCES:
        checks.failed("gpu-nonce", "nonce-published", "everybody has evidence over this nonce")
    try:
        verdict = nvidia.verify(
            evidences, nonce, asked.policy.gpu, resources=asked.resources, now=asked.now
        )
    except Malformed as error:
        checks.failed("gpu", error.reason, error.detail)
        return
    checks.items += [_named(check, verdict.trust == "nvidia") for check in verdict.checks]
    findings.trust = verdict.trust
    findings.revocation = verdict.revocation
    findings.measurements = verdict.measurements
    findings.rims = verdict.rims
    findings.compared = verdict.compared
    findings.gpus = verdict.claims
    if verdict.verified:
        findings.shows = "device-genuine"
        checks.passed("gpu", "genuine NVIDIA hardware signed this nonce", "hardware")
    elif verdict.trust == "simulated" and verdict.reason == SIMULATED:
        checks.passed("gpu", "SIMULATED: signed under the root that you named", "operator")
    else:
        checks.failed("gpu", verdict.reason or "not-verified", "the evidence is not accepted")


def ueids(findings: Findings) -> list[str]:
    """The serial numbers of the GPUs that were found."""
    return [str(gpu["ueid"]) for gpu in findings.gpus if "ueid" in gpu]


def check_agreement(checks: Checks, value: dict[str, Any], nonce: Any) -> Any:
    """`token`, `evidences` and the nonces inside them agree; gives the list of evidence.

    `nonce`: the one beside them, None where there is none.
    """
    evidences, name = value.get("evidences"), "evidence-agrees"
    if "token" in value:
        try:
            said = token.decode(value["token"])
        except Malformed as error:
            checks.failed(name, error.reason, error.detail)
            return evidences
        if evidences is None:
            evidences = said
        elif said != evidences:
            checks.failed(name, CONFLICT, "the token holds other evidence than the list")
            return evidences
    entries = evidences if isinstance(evidences, list) else []
    inner = [entry.get("nonce") for entry in entries if isinstance(entry, dict)]
    if any(other not in (None, nonce) for other in inner) and nonce is not None:
        checks.failed(name, CONFLICT, "evidence in the list names another nonce than stands beside")
    else:
        checks.passed(name, "token, list and nonces say the same", "hashed")
    return evidences


def check_said(findings: Findings, said: Any, verified: Any, nonce: Any) -> None:
    """What the node says of the GPUs is what their evidence says, as far as that is fixed.

    `nonce`: the one beside the evidence, for which the node made its claims.
    """
    checks, gpus = findings.checks, findings.gpus
    if not isinstance(said, list) or not gpus:
        return
    name, reason = "node-claims", "claims-conflict"
    if verified and findings.trust == "simulated":
        checks.failed(name, reason, "the node says that simulated evidence is verified")
        return
    if len(said) != len(gpus):
        checks.failed(name, reason, "the node speaks of another number of GPUs")
        return
    for index, (theirs, ours) in enumerate(zip(said, gpus, strict=True)):
        if "eat_nonce" in ours:
            ours = {**ours, _NONCE_MATCH: ours["eat_nonce"] == nonce}
        wrong = _differs(theirs, ours)
        if wrong:
            detail = f"GPU {index}: the node says another {wrong} than the evidence"
            checks.failed(name, reason, detail)
            return
    source: Source = "hardware" if findings.trust == "nvidia" else "unknown"
    checks.passed(name, "what the node says of its GPUs is in the evidence", source)


def evidence_digest(evidences: Any) -> str:
    """SHA-256 over the GPU reports, as CPU evidence binds them. Raises Malformed."""
    reports: Iterable[bytes] = (entry.report for entry in nvidia.read(evidences))
    try:
        return gpu_digest(list(reports))
    except ValueError as error:
        raise Malformed(str(error), "evidence-malformed") from None


def _named(check: Check, genuine: bool) -> Check:
    """A check of the evidence as one of the whole verdict, which says by itself: simulated.

    Only under NVIDIA's root does hardware stand behind it.
    """
    source = check.source if genuine or check.source != "hardware" else "unknown"
    result = "unknown" if check.reason == SIMULATED else check.result
    return replace(check, name=f"gpu-{check.name}", result=result, source=source)


def _differs(theirs: Any, ours: dict[str, Any]) -> str:
    """The name of a claim that the evidence contradicts, or that no node makes."""
    if not isinstance(theirs, dict):
        return "thing"
    for name, said in theirs.items():
        if name in _FACTS and name in ours:
            if type(said) is not type(ours[name]) or said != ours[name]:
                return str(name)
        elif name not in claims.NAMES or not claims.is_possible(said):
            return str(name)[:64]
    return ""
