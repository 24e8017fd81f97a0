"""CPU evidence beside GPU evidence: what it is bound to, and whether its code is known."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any

from . import shape, snp
from .asked import Asked
from .challenge import quote
from .checks import Malformed
from .gpu import CONFLICT, evidence_digest
from .verdict import Findings

MALFORMED = "cpu-malformed"
_MEASUREMENT_UNKNOWN = "measurement-unknown"

_SHAPE = shape.record(
    keyset=shape.digest,
    nonce=shape.optional(shape.digest),
    gpu=shape.optional(shape.digest),
    report=shape.text(16 << 10),
    certificates=shape.listing(shape.text(64 << 10), most=8),
    backend=shape.text(64),
)


def check_cpu(
    findings: Findings, asked: Asked, value: Any, keyset: str, nonce: str, evidences: Any
) -> None:
    """Check a quote over `keyset`, and over `nonce` and GPU `evidences` where it names them."""
    checks = findings.checks
    if value is None:
        checks.unknown("cpu", "cpu-not-given", "no CPU evidence: the code that ran is not known")
        return
    try:
        shape.check(value, _SHAPE, "the CPU evidence", MALFORMED)
        report = _decode(value["report"])
        certificates = [_decode(item) for item in value["certificates"]]
        gpu = None if value["gpu"] is None else evidence_digest(evidences)
    except Malformed as error:
        checks.failed("cpu", error.reason, error.detail)
        return
    for name, expected in (("keyset", keyset), ("nonce", nonce), ("gpu", gpu)):
        if value[name] not in (expected, None):
            checks.failed("cpu", CONFLICT, f"the CPU's quote is for another {name}")
            return
    verdict = snp.verify(
        report,
        certificates,
        asked.policy.cpu,
        report_data=quote(keyset, value["nonce"], gpu),
        now=asked.now,
    )
    checks.items += [replace(check, name=f"cpu-{check.name}") for check in verdict.checks]
    measurement = f"measurement {verdict.measurement}"
    if verdict.verified:
        findings.code = "known"
        if findings.shows == "device-genuine":
            findings.shows = "confidential-code"
        checks.passed("cpu", f"{measurement} is on the policy's list", "hardware")
    elif verdict.reason == _MEASUREMENT_UNKNOWN:
        checks.unknown("cpu", "code-unknown", f"{measurement} is on no list of the policy")
    elif verdict.trust == "simulated" and verdict.reason == "simulated":
        findings.trust = "simulated"
        checks.passed("cpu", "SIMULATED: signed under the root that you named", "operator")
    else:
        checks.failed("cpu", verdict.reason, "the CPU evidence is not accepted")
    for claims in verdict.claims:
        findings.claim("cpu", claims, "hardware" if verdict.trust == "amd" else "unknown")
    findings.claim(
        "measurement", verdict.measurement, "hardware" if verdict.verified else "unknown"
    )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("the CPU evidence is not base64", MALFORMED) from None
