"""What a check of GPU evidence comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..checks import Check

Trust = Literal["nvidia", "simulated", "none"]
Freshness = Literal["fresh", "unknown"]
Revocation = Literal["good", "unchecked", "revoked"]
Measurements = Literal["success", "fail", "absent"]
Rims = Literal["valid", "expired", "missing", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verified` is true only where all that `policy` demands was met by a root of NVIDIA.

    `trust`: the root that every chain reaches. `freshness`: `fresh` where the caller's nonce
    is the one that was signed. `rims`: `expired` where they are valid only at the policy's
    clock. `reason`: the first failure in kebab-case, "" when verified. `compared`: how many
    measurements matched, of all GPUs. `claims`: one dict for each GPU with NVIDIA's names
    (claims 3.0). `policy_sha256`: digest of `policy`.
    """

    verified: bool
    trust: Trust
    freshness: Freshness
    revocation: Revocation
    measurements: Measurements
    rims: Rims
    reason: str
    checks: list[Check] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0
    policy: dict[str, Any] = field(default_factory=dict)
    policy_sha256: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON has it."""
        return {
            "verified": self.verified,
            "trust": self.trust,
            "freshness": self.freshness,
            "revocation": self.revocation,
            "measurements": self.measurements,
            "rims": self.rims,
            "reason": self.reason,
            "compared": self.compared,
            "checks": [check.as_dict() for check in self.checks],
            "claims": self.claims,
            "policy": self.policy,
            "policy_sha256": self.policy_sha256,
        }
