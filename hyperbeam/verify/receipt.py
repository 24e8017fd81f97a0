"""Receipts: what a node signed about one inference; digests only.

Shape: {v, id, node, keyset, key_id, nonce|null, nonce_by, salt, statement: sha256(raw)|null,
answer_id|null, endpoint, request: {sha256, length}, forwarded: {sha256, length}|null,
response: {status|null, sha256|null, length, stream, complete, end}, output_sha256|null,
model|null, backend|null, config, seed|null, seed_by, started, ended, log_by, signature}.
Times in ms. `nonce_by` is `node` where `nonce` is null. `response.end`: `complete`; `error`
(an error reply or event); `cut` (the backend or the node ended it early); `left` (the client).
"""

from __future__ import annotations

from typing import Any

from . import jcs, shape
from .checks import Malformed
from .statement import BACKEND, DIGEST, MODEL, NONCE_BY, SEED_BY, check_model

V = "hyperbeam.receipt/1"
MALFORMED = "receipt-malformed"

_SHAPE = shape.record(
    v=shape.constant(V),
    id=shape.receipt_id,
    node=shape.address,
    keyset=shape.digest,
    key_id=shape.key_id,
    nonce=shape.optional(shape.digest),
    nonce_by=NONCE_BY,
    salt=shape.salt,
    statement=shape.optional(shape.digest),
    answer_id=shape.optional(shape.text()),
    endpoint=shape.text(),
    request=DIGEST,
    forwarded=shape.optional(DIGEST),
    response=shape.record(
        status=shape.optional(shape.status),
        sha256=shape.optional(shape.digest),
        length=shape.natural,
        stream=shape.boolean,
        complete=shape.boolean,
        end=shape.one_of("complete", "error", "cut", "left"),
    ),
    output_sha256=shape.optional(shape.digest),
    model=shape.optional(MODEL),
    backend=shape.optional(BACKEND),
    config=shape.digest,
    seed=shape.optional(shape.integer),
    seed_by=SEED_BY,
    started=shape.natural,
    ended=shape.natural,
    log_by=shape.natural,
    signature=shape.signature,
)


def parse(value: dict[str, Any]) -> dict[str, Any]:
    """The receipt, checked for its shape (not its signature). Raises Malformed."""
    shape.check(value, _SHAPE, "the receipt", MALFORMED)
    if value["nonce"] is None and value["nonce_by"] != "node":
        raise Malformed("the receipt has no nonce, yet says the client gave one", MALFORMED)
    if value["model"] is not None:
        check_model(value["model"], "the receipt", MALFORMED)
    try:
        jcs.encode(value)
    except ValueError as error:
        raise Malformed(f"the receipt: {error}", MALFORMED) from None
    return value


def signed_bytes(receipt: dict[str, Any]) -> bytes:
    """What the receipt key signs (context `signing.RECEIPT`): the JCS without `signature`."""
    return jcs.encode({key: value for key, value in receipt.items() if key != "signature"})


def leaf(receipt: dict[str, Any]) -> bytes:
    """The receipt as the log holds it: its JCS, signature included."""
    return jcs.encode(receipt)
