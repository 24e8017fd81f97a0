"""What a node said, in a statement or receipt, beside what the verifier has."""

from __future__ import annotations

import hashlib
from typing import Any

from .asked import Asked
from .checks import Checks, Source
from .gpu import PUBLISHED_NONCES
from .seed import derive
from .verdict import Findings

_UNSIGNED = {
    "gpu": "hardware-not-accepted",
    "receipt-signature": "signature-not-accepted",
}


def check_bodies(checks: Checks, said: dict[str, Any]) -> None:
    """The bodies that the statement holds are those whose digests it holds."""
    for name in ("request", "response"):
        body = said[name]["body"]
        if body is not None and not is_digest_of(body.encode(), said[name]):
            checks.failed(
                "statement-bodies", f"{name}-digest", f"the statement's {name} is not its digest's"
            )
            return
    checks.passed("statement-bodies", "the texts in the statement match its digests", "hashed")


def check_answer(checks: Checks, said: dict[str, Any], answer: bytes, stream: bool) -> None:
    """The answer is the one that the statement is about."""
    response = said["response"]
    if response["stream"] is not stream:
        kinds = ("a plain answer", "a stream")
        checks.failed("answer", "answer-kind", f"the statement is about {kinds[not stream]}")
    elif not response["complete"]:
        checks.failed("answer", "answer-incomplete", "the statement says that it was cut")
    elif len(answer) != response["length"]:
        detail = f"the answer has {len(answer)} bytes, the statement says {response['length']}"
        checks.failed("answer", "answer-length", detail)
    elif not is_digest_of(answer, response):
        checks.failed("answer", "answer-digest", _where(answer, response["body"]))
    else:
        checks.passed("answer", f"{len(answer)} bytes, as the statement says", "hashed")


def check_resolved(checks: Checks, said: dict[str, Any], resolved_model: str) -> None:
    """`resolved_model` beside the attestation is the statement's model."""
    if resolved_model == said["model"]["name"]:
        checks.passed("resolved-model", resolved_model, said["model"]["by"])
    else:
        checks.failed(
            "resolved-model",
            "resolved-model-mismatch",
            f"the reply says {resolved_model!r}, the statement {said['model']['name']!r}",
        )


def check_request(findings: Findings, asked: Asked, said: dict[str, Any]) -> None:
    """The request that the verifier has is the one in the statement or receipt `said`."""
    checks = findings.checks
    if asked.request is None:
        checks.unknown("request", "request-not-given", "no request was given to compare")
        return
    findings.demand("request")
    if is_digest_of(asked.request, said["request"]):
        checks.passed("request", f"{len(asked.request)} bytes, as the node says", "hashed")
        return
    detail = "the request given is not the one that the node hashed"
    if any(
        is_digest_of(asked.request.rstrip(b"\r\n") + end, said["request"]) for end in (b"", b"\n")
    ):
        detail += "; it differs in the line end at its end only"
    checks.failed("request", "request-mismatch", detail)


def check_seed(checks: Checks, said: dict[str, Any], request: bytes | None) -> None:
    """A seed that the node made is the one that the request gives; nothing without a request."""
    if request is None or said["seed_by"] != "node" or not is_digest_of(request, said["request"]):
        return
    seed = derive(request, said["nonce"] if said["nonce_by"] == "client" else None)
    if seed == said["seed"]:
        checks.passed("seed", f"{seed}, made from the request", "hashed")
    else:
        detail = f"the node says that it made {said['seed']}, and the request gives {seed}"
        checks.failed("seed", "seed-mismatch", detail)


def check_model(findings: Findings, asked: Asked, said: dict[str, Any]) -> None:
    """Which model the node says it was, and how it knows."""
    checks, model, wanted = findings.checks, said["model"], asked.policy.models
    if model is None:
        checks.unknown("model", "model-unknown", "no model is named")
        return
    digest = model["sha256"] or "no digest"
    if wanted is None:
        checks.passed("model", f"{model['name']} ({digest}), {model['by']}", model["by"])
    elif model["by"] == "hashed" and model["sha256"] in wanted:
        checks.passed("model", f"{model['name']} is on the policy's list", "hashed")
    else:
        checks.failed(
            "model", "model-not-allowed", f"{model['name']} ({digest}, {model['by']}): not listed"
        )


def check_fresh(
    findings: Findings, asked: Asked, nonce: str | None, by: str, signed: str = "gpu"
) -> None:
    """Whether the verifier's own nonce is the one that was signed.

    `signed`: the check, made before, that somebody signed: `gpu`, or one of a node's signature.
    """
    checks = findings.checks
    if asked.nonce is not None:
        findings.demand("fresh")
    if asked.nonce is None:
        checks.unknown("fresh", "nonce-not-given", "say which nonce you sent to know how old it is")
    elif not asked.samples and asked.nonce in PUBLISHED_NONCES:
        checks.failed("fresh", "nonce-published", "everybody knows this nonce")
    elif nonce != asked.nonce:
        checks.failed("fresh", "nonce-mismatch", f"it was made for the nonce {nonce}, not yours")
    elif by != "client":
        checks.failed("fresh", "nonce-by-node", "the node says that it chose the nonce itself")
    elif not checks.ok(signed):
        detail = "it holds your nonce, and nobody whose signature is accepted says so"
        checks.unknown("fresh", _UNSIGNED[signed], detail)
    else:
        findings.freshness = "fresh"
        source: Source = "hashed" if signed == "gpu" else "declared"
        checks.passed("fresh", "it was made after you chose your nonce", source)


def is_digest_of(data: bytes, digest: dict[str, Any]) -> bool:
    same: bool = hashlib.sha256(data).hexdigest() == digest["sha256"]
    return same and len(data) == digest["length"]


def _where(answer: bytes, body: str | None) -> str:
    if body is None:
        return "the answer is not the one with the statement's digest"
    attested = body.encode()
    at = next((i for i, (a, b) in enumerate(zip(answer, attested, strict=False)) if a != b), None)
    return f"the answer differs from the statement's from byte {at} on"
