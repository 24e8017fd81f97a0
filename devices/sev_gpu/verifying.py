"""From what was posted to a verdict, and to the one word of the plain reply."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyperbeam import BadRequest
from hyperbeam import verify as verification
from hyperbeam.verify import jcs, nvidia
from hyperbeam.verify.checks import Malformed

from .asked import Asked
from .checking import Checker
from .collect import in_tests
from .policies import tightened

_NAME = re.compile(r"[0-9a-f]{64}\Z")

FindKeySet = Callable[[str], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verified` with its `reason` ("" when true), and the whole verdict as JSON has it."""

    verified: bool
    reason: str
    document: dict[str, Any]


def judge(asked: Asked, checker: Checker, find_keyset: FindKeySet) -> Outcome:
    """The verdict on what was posted. True takes a root of NVIDIA's, whatever a policy says.

    `find_keyset` gives the public part of this node's key set of a name. Raises BadRequest
    for a policy or key set that cannot be taken.
    """
    policy = checker.policy
    if asked.policy is not None:
        policy = tightened(policy, asked.policy)
    posted = _posted(asked.keyset)

    def find(name: str) -> bytes:
        found = find_keyset(name)
        if found is None:
            raise FileNotFoundError("this node does not know it; post it as `keyset`")
        return jcs.encode(found)

    def check(trust: str | None, resources: nvidia.Resources) -> verification.Verdict:
        return verification.verify(
            asked.document,
            kind=asked.kind,
            nonce=asked.nonce,
            policy=policy,
            keyset=[*posted],
            find_keyset=find,
            trust=trust,
            resources=resources,
            samples=in_tests(),
        )

    try:
        verdict = check(None, checker.online)
        if verdict.trust == "none" and checker.simulated and policy.gpu.trust == "nvidia":
            second = check(f"simulated:{checker.simulated}", checker.made_up)
            verdict = second if second.trust == "simulated" else verdict
    except Malformed as error:
        return refused(error)
    verified = verdict.verified and verdict.trust == "nvidia"
    reason = "" if verified else verdict.reason or "not-verified"
    return Outcome(verified, reason, {**verdict.as_dict(), "verified": verified, "reason": reason})


def refused(error: Malformed) -> Outcome:
    """The verdict on what cannot be read as evidence."""
    check = {"name": "document", "result": "fail", "detail": error.detail, "reason": error.reason}
    document = {"verified": False, "trust": "none", "reason": error.reason, "checks": [check]}
    return Outcome(False, error.reason, document)


def _posted(value: Any) -> list[verification.KeySet]:
    if value is None or (isinstance(value, str) and _NAME.match(value)):
        return []
    if not isinstance(value, dict | str):
        raise BadRequest("`keyset` is a key set's object or its text", param="keyset")
    try:
        return [verification.KeySet.parse(value)]
    except Malformed as error:
        raise BadRequest(error.detail, error=error.reason, param="keyset") from None
