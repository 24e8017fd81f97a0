"""What a verification comes to, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .checks import Check, Checks, Source
from .policy import Policy

Trust = Literal["nvidia", "simulated", "none"]
Shows = Literal["confidential-code", "device-genuine", "signed", "nothing"]

MEANING: dict[Shows, str] = {
    "confidential-code": (
        "This software, in a confidential VM, held the keys that signed this, and a genuine "
        "NVIDIA GPU signed its hash."
    ),
    "device-genuine": (
        "A genuine NVIDIA GPU signed the hash of this for whoever controlled it. That does not "
        "show that the text is true, that this GPU or this model made it, that confidential "
        "mode was on, or that the prompt stayed private."
    ),
    "signed": "The node signed this. No hardware vouches for it.",
    "nothing": "Nothing is shown.",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the document says, and who is to be believed for it."""

    name: str
    value: Any
    source: Source

    def as_dict(self) -> dict[str, Any]:
        """The claim as JSON has it."""
        return {"name": self.name, "value": self.value, "source": self.source}


@dataclass(slots=True)
class Findings:
    """Gathers checks. `demanded`: names of those that must have passed, each with the field
    of the policy that says so, "" where every policy does.
    """

    checks: Checks = field(default_factory=Checks)
    demanded: dict[str, str] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    trust: Trust = "none"
    freshness: str = "unknown"
    revocation: str = "unchecked"
    measurements: str = "absent"
    rims: str = "missing"
    compared: int = 0
    code: str = "unknown"
    log: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    shows: Shows = "nothing"

    def demand(self, *names: str, by: str = "") -> None:
        """Checks of these names must have passed for `verified`; `by`: a field of the policy."""
        for name in names:
            self.demanded.setdefault(name, by)

    def claim(self, name: str, value: Any, source: Source) -> None:
        """Note what the document says."""
        self.claims.append(Claim(name, value, source))


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verified`: all that `policy` demands passed, and no root but NVIDIA's was trusted.

    `simulated_pass`: all passed but for the root, a made-up one that the verifier named.
    `trust`: `nvidia`, `simulated` or `none`. `shows`: what a pass means (`MEANING`).
    `freshness`: `fresh` where the verifier's own nonce was signed. `code`: `known` where CPU
    evidence has a measurement on the policy's list. `log`: `self-signed` or `witnessed`.
    `reason`: the first failure, else the first demanded check that could not be made.
    `claims`: what the document says, each with its source. `gpus`: NVIDIA's claims.
    """

    kind: str
    verified: bool
    simulated_pass: bool
    shows: Shows
    reason: str
    detail: str
    trust: Trust
    freshness: str
    revocation: str
    measurements: str
    rims: str
    compared: int
    code: str
    log: str
    checks: list[Check]
    claims: list[Claim]
    gpus: list[dict[str, Any]]
    policy: dict[str, Any]
    policy_sha256: str

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON has it."""
        found = {name: getattr(self, name) for name in self.__slots__}
        found["checks"] = [check.as_dict() for check in self.checks]
        found["claims"] = [claim.as_dict() for claim in self.claims]
        return found


def conclude(kind: str, findings: Findings, policy: Policy) -> Verdict:
    """The verdict on all that was found."""
    problem = _problem(kind, findings)
    passed = problem is None
    simulated = findings.trust == "simulated"
    detail = problem.detail if problem else ""
    reason = problem.reason if problem else ""
    if passed and simulated:
        reason, detail = "simulated", "the evidence is SIMULATED: no hardware vouches for it"
    verified = passed and not simulated
    return Verdict(
        kind=kind,
        verified=verified,
        simulated_pass=passed and simulated,
        shows=findings.shows if verified else "nothing",
        reason=reason,
        detail=detail,
        trust=findings.trust,
        freshness=findings.freshness if passed else "unknown",
        revocation=findings.revocation,
        measurements=findings.measurements,
        rims=findings.rims,
        compared=findings.compared,
        code=findings.code,
        log=findings.log,
        checks=list(findings.checks.items),
        claims=list(findings.claims),
        gpus=list(findings.gpus),
        policy=policy.as_dict(),
        policy_sha256=policy.digest(),
    )


def _problem(kind: str, findings: Findings) -> Check | None:
    items = findings.checks.items
    for result in ("fail", "unknown"):
        for check in items:
            if check.result == result and (result == "fail" or check.name in findings.demanded):
                return check
    made = {check.name for check in items}
    for name, by in findings.demanded.items():
        if name not in made:
            why = f"the policy's `{by}` demands it; this document ({kind}) does not show it"
            detail = f"`{name}` was not checked" + (f": {why}" if by else "")
            return Check(name, "unknown", detail, "not-checked")
    if not findings.demanded:
        return Check("document", "unknown", "nothing in it can be checked", "not-checked")
    return None
