"""Checks of a receipt: who signed it, and what else it has to agree with."""

from __future__ import annotations

import hashlib
from typing import Any

from . import receipt as receipts
from . import signing
from .asked import Asked, check_node, keyset_of
from .checks import Checks, Malformed
from .compare import check_fresh, check_model, check_request, check_seed, is_digest_of
from .keyset import KeySet
from .verdict import Findings

_SAME = ("node", "keyset", "config", "nonce_by", "seed", "seed_by", "model", "backend", "forwarded")


def check_receipt(
    findings: Findings, asked: Asked, value: Any, answer: bytes | None = None
) -> dict[str, Any] | None:
    """Check a receipt by itself; `answer`: the saved reply that it should be about."""
    checks = findings.checks
    findings.demand("receipt", "keyset", "keyset-life", "receipt-signature")
    try:
        receipt = receipts.parse(value)
    except Malformed as error:
        checks.failed("receipt", error.reason, error.detail)
        return None
    checks.passed("receipt", f"{receipt['id']}, of a known kind")
    keyset = keyset_of(asked, receipt["keyset"], receipt["node"], receipt["ended"], checks)
    check_node(asked, receipt["node"], checks)
    if _check_signature(checks, keyset, receipt):
        findings.shows = "signed"
    check_request(findings, asked, receipt)
    check_seed(checks, receipt, asked.request)
    check_model(findings, asked, receipt)
    check_fresh(findings, asked, receipt["nonce"], receipt["nonce_by"], "receipt-signature")
    if answer is not None:
        findings.demand("answer")
        _check_reply(checks, receipt, answer)
    if asked.revoked is not None:
        asked.revoked.check(checks, receipt["node"], receipt["keyset"], ())
    _claim(findings, receipt)
    return receipt


def check_agreement(
    findings: Findings,
    asked: Asked,
    said: dict[str, Any],
    raw: str,
    keyset: KeySet | None,
    reply: bytes | None,
) -> None:
    """Check that `asked.receipt` is the one of the statement `said`, and of the whole `reply`."""
    checks = findings.checks
    findings.demand("receipt", "receipt-signature", "receipt-agrees")
    try:
        receipt = receipts.parse(asked.receipt or {})
    except Malformed as error:
        checks.failed("receipt", error.reason, error.detail)
        return
    checks.passed("receipt", f"{receipt['id']}, of a known kind")
    same = receipt["keyset"] == said["keyset"]
    if _check_signature(checks, keyset if same else None, receipt):
        wrong = _differs(receipt, said, raw)
        if wrong:
            checks.failed(
                "receipt-agrees", f"receipt-{wrong}", f"receipt and statement differ in `{wrong}`"
            )
        else:
            checks.passed("receipt-agrees", "receipt and statement say the same", "hashed")
    if reply is not None:
        findings.demand("receipt-reply")
        _check_reply(checks, receipt, reply, "receipt-reply")


def _check_signature(checks: Checks, keyset: KeySet | None, receipt: dict[str, Any]) -> bool:
    name = "receipt-signature"
    if keyset is None:
        detail = "without its key set anybody could have written it"
        checks.unknown(name, "keyset-unknown", detail)
        return False
    key = keyset.receipt_key(receipt["key_id"])
    if key is None:
        checks.failed(name, "key-unknown", f"the key set has no receipt key {receipt['key_id']}")
        return False
    signature = bytes.fromhex(receipt["signature"])
    if not signing.check(key, signing.RECEIPT, receipts.signed_bytes(receipt), signature):
        checks.failed(name, "signature-invalid", "the receipt key did not sign this receipt")
        return False
    checks.passed(name, f"by the receipt key {receipt['key_id']}", "declared")
    return True


def _differs(receipt: dict[str, Any], said: dict[str, Any], raw: str) -> str:
    """The field in which a receipt and a statement differ, or ""."""
    if receipt["id"] != said["receipt"]:
        return "id"
    if receipt["statement"] != hashlib.sha256(raw.encode()).hexdigest():
        return "statement"
    if receipt["nonce"] not in (None, said["nonce"]):
        return "nonce"
    for name in ("sha256", "length"):
        if receipt["request"][name] != said["request"][name]:
            return "request"
    return next((name for name in _SAME if receipt[name] != said[name]), "")


def _check_reply(
    checks: Checks, receipt: dict[str, Any], reply: bytes, name: str = "answer"
) -> None:
    """The saved reply is what went to the client; programs that save may add a line end."""
    response = receipt["response"]
    if response["sha256"] is None:
        checks.failed(name, "nothing-sent", "the receipt says that nothing was sent")
    elif any(is_digest_of(text, response) for text in (reply, reply.rstrip(b"\r\n"))):
        checks.passed(name, f"{response['length']} bytes, as the receipt says", "hashed")
    else:
        checks.failed(name, "reply-mismatch", "the reply is not the one that the receipt is about")


def _claim(findings: Findings, receipt: dict[str, Any]) -> None:
    model = receipt["model"] or {}
    for name in ("node", "keyset", "config", "endpoint", "started", "ended", "seed", "log_by"):
        findings.claim(name, receipt[name], "declared")
    findings.claim("end", receipt["response"]["end"], "declared")
    findings.claim("model", model.get("name"), "declared")
    findings.claim("model-sha256", model.get("sha256"), model.get("by", "unknown"))
