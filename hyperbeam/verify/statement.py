"""The statement (`attestation.raw`): what a node says about one answer, as canonical JSON.

Shape: {v, node, keyset, receipt, nonce, nonce_by, salt, timestamp, config,
request: {method, path, sha256, length, body|null}, forwarded: {sha256, length},
response: {status, type, sha256, length, stream, complete, body|null},
model: {name, sha256|null, size|null, by}, seed|null, seed_by: client|node|null,
backend: {kind, where, settings: {...}}}. Times in ms; sizes in bytes; a seed past 2^53 is text.
"""

from __future__ import annotations

from typing import Any

from . import jcs, shape
from .checks import Malformed

V = "hyperbeam.answer/1"
MALFORMED = "statement-malformed"
MAX_BYTES = 80 << 20

_BODY = shape.text(MAX_BYTES)
DIGEST = shape.record(sha256=shape.digest, length=shape.natural)
MODEL = shape.record(
    name=shape.text(),
    sha256=shape.optional(shape.digest),
    size=shape.optional(shape.natural),
    by=shape.one_of("hashed", "declared"),
)
BACKEND = shape.record(
    kind=shape.text(64), where=shape.one_of("child", "url"), settings=shape.mapping
)
NONCE_BY = shape.one_of("client", "node")
SEED_BY = shape.one_of("client", "node", None)
_SHAPE = shape.record(
    v=shape.constant(V),
    node=shape.address,
    keyset=shape.digest,
    receipt=shape.receipt_id,
    nonce=shape.digest,
    nonce_by=NONCE_BY,
    salt=shape.salt,
    timestamp=shape.natural,
    config=shape.digest,
    request=shape.record(
        method=shape.text(16),
        path=shape.text(64 << 10),
        sha256=shape.digest,
        length=shape.natural,
        body=shape.optional(_BODY),
    ),
    forwarded=DIGEST,
    response=shape.record(
        status=shape.status,
        type=shape.text(),
        sha256=shape.digest,
        length=shape.natural,
        stream=shape.boolean,
        complete=shape.boolean,
        body=shape.optional(_BODY),
    ),
    model=MODEL,
    seed=shape.optional(shape.integer),
    seed_by=SEED_BY,
    backend=BACKEND,
)


def parse(raw: str) -> dict[str, Any]:
    """The statement in `raw`. Raises Malformed: `not-canonical`, or `statement-malformed`."""
    if len(raw) > MAX_BYTES:
        raise Malformed(f"the statement is over {MAX_BYTES >> 20} MiB", MALFORMED)
    value = jcs.parse(raw, "the statement")
    shape.check(value, _SHAPE, "the statement", MALFORMED)
    check_model(value["model"], "the statement", MALFORMED)
    return value


def check_model(model: dict[str, Any], what: str, reason: str) -> None:
    """Raise Malformed `reason` for a model that is said to be hashed and has no digest."""
    if model["by"] == "hashed" and model["sha256"] is None:
        raise Malformed(f"{what}.model is `by: hashed` without a sha256", reason)
