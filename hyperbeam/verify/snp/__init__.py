"""Checks a report of an AMD SEV-SNP guest offline: what runs there, on genuine hardware.

Source: AMD SEV-SNP Firmware ABI (56860), VCEK Certificate and KDS Interface (57230).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from .checking import Checking
from .policy import Policy
from .verdict import Code, Trust, Verdict

__all__ = ["Policy", "Verdict", "verify"]


def verify(
    report: bytes,
    certificates: Sequence[bytes],
    policy: Policy | None = None,
    *,
    report_data: bytes | None,
    now: datetime | None = None,
) -> Verdict:
    """The verdict on a report of 1184 bytes.

    `certificates`: DER or PEM, in any order: the VCEK or VLEK, and AMD's where the package
    lacks them. `report_data`: the 64 bytes that the report has to be bound to
    (`hyperbeam.verify.challenge.quote`); None, for nobody can say, never verifies.
    Raises nothing for what others may send.
    """
    policy = policy or Policy()
    checking = Checking(policy, now or datetime.now(UTC))
    read = checking.read(report)
    if read is not None:
        checking.authenticate(read, certificates)
        checking.guest(read)
        checking.measurement(read)
        checking.report_data(read, report_data)
    return _verdict(checking, policy)


def _verdict(checking: Checking, policy: Policy) -> Verdict:
    checks, report, chain = checking.checks, checking.report, checking.chain
    trust: Trust = "none"
    if checking.genuine:
        trust = "amd" if policy.trust == "amd" else "simulated"
    code: Code = "accepted" if checking.genuine and checks.ok("measurement") else "unknown"
    reason = checks.reason()
    if not reason and code == "unknown":
        reason = "measurement-unknown"
    if not reason and trust == "simulated":
        reason = "simulated"
    known = report is not None and chain is not None and checking.genuine
    return Verdict(
        verified=not reason and trust == "amd",
        trust=trust,
        code=code,
        reason=reason,
        measurement=report.measurement.hex() if report is not None else "",
        checks=checks.items,
        claims=[checking.claims(report, chain)] if known and report and chain else [],
        policy=policy.as_dict(),
        policy_sha256=policy.digest(),
    )
