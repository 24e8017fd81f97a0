"""What a check of a CPU's report comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..checks import Check

Trust = Literal["amd", "simulated", "none"]
Code = Literal["accepted", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verified` is true only where all that `policy` demands was met under a root of AMD.

    `trust`: the root that the report's key reaches. `code`: whether the measurement is one
    that the policy accepts. `measurement`: the report's own (hex), "" where it cannot be
    read. `reason`: the first failure in kebab-case, "" when verified. `revocation`: AMD's
    revocation lists are not read here. `claims`: one dict for the CPU, none where the
    report is not genuine. `policy_sha256`: digest of `policy`.
    """

    verified: bool
    trust: Trust
    code: Code
    reason: str
    measurement: str = ""
    checks: list[Check] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    policy: dict[str, Any] = field(default_factory=dict)
    policy_sha256: str = ""
    revocation: Literal["unchecked"] = "unchecked"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON has it."""
        return {
            "verified": self.verified,
            "trust": self.trust,
            "code": self.code,
            "revocation": self.revocation,
            "reason": self.reason,
            "measurement": self.measurement,
            "checks": [check.as_dict() for check in self.checks],
            "claims": self.claims,
            "policy": self.policy,
            "policy_sha256": self.policy_sha256,
        }
