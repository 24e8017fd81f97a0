"""From a question to a verdict: what is bound to what, and then the evidence itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyperbeam.verify import signing, statement
from hyperbeam.verify.checks import Checks, Malformed
from hyperbeam.verify.keyset import KeySet

from .asked import Asked
from .checking import Checker
from .collect import in_tests
from .replay import PUBLISHED_NONCES

FindKeySet = Callable[[str], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verified` with its `reason` ("" when true), and the whole verdict as JSON has it."""

    verified: bool
    reason: str
    document: dict[str, Any]


def judge(asked: Asked, checker: Checker, find_keyset: FindKeySet) -> Outcome:
    """The verdict on what was asked. Raises Malformed only for the caller's policy.

    `find_keyset` gives the public part of a key set by its name. True takes a root of
    NVIDIA's, whatever the policy says.
    """
    policy = checker.policy
    if asked.policy is not None:
        policy = policy.tightened(asked.policy)
    checks = Checks()
    freshness = _check_binding(asked, checks, find_keyset)
    try:
        verdict = checker.verify(asked.evidences, asked.nonce, policy)
    except Malformed as error:
        checks.failed("evidence", error.reason, error.detail)
        document = {**_nothing(), "policy": policy.as_dict(), "policy_sha256": policy.digest()}
    else:
        document = verdict.as_dict()
        checks.items += verdict.checks
    genuine = document["verified"] is True and document["trust"] == "nvidia"
    verified = genuine and not checks.reason()
    reason = "" if verified else checks.reason() or document["reason"] or "not-verified"
    document |= {
        "verified": verified,
        "reason": reason,
        "freshness": freshness,
        "checks": [check.as_dict() for check in checks.items],
    }
    return Outcome(verified, reason, document)


def refused(error: Malformed) -> Outcome:
    """The verdict on what cannot be read as evidence."""
    checks = Checks()
    checks.failed("request", error.reason, error.detail)
    said = [check.as_dict() for check in checks.items]
    return Outcome(False, error.reason, {**_nothing(), "reason": error.reason, "checks": said})


def _nothing() -> dict[str, Any]:
    return {
        "verified": False,
        "trust": "none",
        "freshness": "unknown",
        "revocation": "unchecked",
        "measurements": "absent",
        "reason": "",
        "compared": 0,
        "checks": [],
        "claims": [],
    }


def _check_binding(asked: Asked, checks: Checks, find_keyset: FindKeySet) -> str:
    """Check who vouches for the nonce; gives the freshness."""
    if not in_tests() and PUBLISHED_NONCES & {asked.nonce, asked.caller}:
        checks.failed(
            "nonce", "nonce-published", "this is the nonce of a sample that everybody has"
        )
    if asked.raw is not None:
        return _check_statement(asked, asked.raw, checks, find_keyset)
    if asked.challenge is not None:
        if asked.caller is None:
            checks.failed(
                "challenge", "nonce-not-given",
                "say which nonce you chose: ?nonce=...; the challenge alone could be anybody's",
            )  # fmt: skip
        elif asked.challenge != asked.caller:
            checks.failed("challenge", "nonce-mismatch", "the challenge is over another nonce")
        else:
            checks.passed("challenge", "the challenge is over your nonce", "hashed")
    return "fresh" if asked.caller is not None and not checks.reason() else "unknown"


def _check_statement(asked: Asked, raw: str, checks: Checks, find_keyset: FindKeySet) -> str:
    try:
        said = statement.parse(raw)
    except Malformed as error:
        checks.failed("statement", error.reason, error.detail)
        return "unknown"
    checks.passed("statement", "the nonce is a hash of it", "hashed")
    _check_signature(asked, raw, said, checks, find_keyset)
    if asked.caller is None:
        return "unknown"
    if said["nonce"] != asked.caller:
        checks.failed(
            "caller-nonce", "nonce-mismatch", "the statement has another nonce than yours"
        )
        return "unknown"
    if said["nonce_by"] != "client":
        checks.unknown("caller-nonce", "nonce-by-node", "the node says that it chose this nonce")
        return "unknown"
    checks.passed("caller-nonce", "the statement has your nonce", "hashed")
    return "fresh"


def _check_signature(
    asked: Asked, raw: str, said: dict[str, Any], checks: Checks, find_keyset: FindKeySet
) -> None:
    posted = asked.keyset if isinstance(asked.keyset, dict | str) else None
    message = find_keyset(said["keyset"])
    if message is None and posted is None:
        checks.failed(
            "keyset", "keyset-unknown",
            "this node does not know the statement's key set; post it as `keyset`",
        )  # fmt: skip
        return
    try:
        keyset = KeySet.parse(message if message is not None else posted or "")
    except Malformed as error:
        checks.failed("keyset", error.reason, error.detail)
        return
    if keyset.name != said["keyset"] or keyset.node != said["node"]:
        checks.failed("keyset", "keyset-mismatch", "the statement names another key set")
        return
    if not keyset.lives_at(said["timestamp"]):
        checks.failed("keyset", "keyset-expired", "the statement was made outside its life")
        return
    whose = "of this node" if message is not None else f"that was posted, of node {keyset.node}"
    checks.passed("keyset", f"a key set {whose}", "declared")
    signature = asked.signature if isinstance(asked.signature, dict) else {}
    id, value = signature.get("key_id"), signature.get("value")
    key = keyset.receipt_key(id) if isinstance(id, str) else None
    if key is None or not signing.check(key, signing.ANSWER, raw.encode(), _bytes(value)):
        checks.failed(
            "statement-signature", "signature-invalid", "the key set's receipt key did not sign it"
        )
        return
    checks.passed("statement-signature", "signed by the key set's receipt key", "declared")


def _bytes(value: Any) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""
