"""Orders: requests that the operator has signed for this node, for now, and for once.

An order is signed (RFC 9421) with its path and body. It names by address the node that it goes
`to`, its `timestamp` (milliseconds, or `created` of the signature in seconds) and a `nonce` (or
that of the signature); its other keys, or those of its JSON body, are what is ordered.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..codecs import json
from ..codecs.siginfo import OF_REPLIES
from ..errors import BadRequest, Forbidden
from ..message import Message, is_private

WINDOW = 5 * 60 * 1000
"""Milliseconds that an order's time may be off."""
MAX_NONCE = 128
_NOT_ORDERED = frozenset(
    {
        "accept",
        "accept-bundle",
        "accept-encoding",
        "ao-types",
        "body",
        "codec-device",
        "commitments",
        "connection",
        "content-digest",
        "content-length",
        "content-type",
        "date",
        "device",
        "host",
        "method",
        "path",
        "user-agent",
    }
)


@dataclass(frozen=True, slots=True)
class Order:
    """`by`: the address of who signed it. `time` in milliseconds. `keys`: what is ordered.
    `host`: the name that it asked the node under."""

    by: str
    time: int
    nonce: str
    keys: Message
    host: str = ""


def signature_by(request: Message, address: str | None) -> dict[str, Any]:
    """The signature of `request` by `address` (None: the first). Raises Forbidden."""
    private = request.get("priv")
    found = private.get("signatures", ()) if isinstance(private, dict) else ()
    for one in found:
        if address in (None, one["by"]):
            signature: dict[str, Any] = one
            return signature
    if address and found:
        signers = ", ".join(dict.fromkeys(one["by"] for one in found))
        told = f"this is signed by {signers[:200]}, and the node's operator is {address}"
    else:
        who = f"the node's operator, {address}," if address else "a key"
        told = f"this has to be signed by {who} (RFC 9421); `hyperbeam operator` does that"
    raise Forbidden(told, error="not_the_operator")


def read(request: Message, address: str | None, node: str) -> Order:
    """The order that `request` is, signed by `address`, for the node with the address `node`.

    Raises Forbidden for one that is not signed so, for another node or time, BadRequest for one
    that cannot be read.
    """
    signature = signature_by(request, address)
    if len(request["priv"]["signatures"]) != 1:
        # Of several, what is kept of the request is what all of them cover: less than was ordered.
        raise Forbidden("an order has one signature", error="not_the_operator")
    signed = signature["keys"]
    if signed & OF_REPLIES:
        raise Forbidden("that is a signed reply, and no order", error="not_the_operator")
    if "path" not in signed:
        raise Forbidden("an order is signed with its path: @path or path", error="not_the_operator")
    keys = {
        name: value
        for name, value in request.items()
        if name in signed and name not in _NOT_ORDERED and not is_private(name)
    }
    keys |= _of_body(request) if "body" in signed else {}
    wanted = keys.pop("to", None)
    if wanted != node:
        said = f"for {str(wanted)[:100]!r}" if wanted else "for no node by name"
        raise Forbidden(f"the order is {said}; this node is {node}", error="another_node")
    at = keys.pop("timestamp", None)
    if at is None and signature["created"] is not None:
        at = signature["created"] * 1000
    at = int(at) if isinstance(at, str) and at.isascii() and at.isdigit() else at
    if type(at) is not int:
        raise BadRequest("an order has a timestamp in milliseconds", param="timestamp")
    if abs(at - now()) > WINDOW:
        raise Forbidden(
            f"the order is not of now: its time differs by over {WINDOW // 60_000} minutes",
            error="stale_order",
        )
    nonce = keys.pop("nonce", None) or signature["nonce"]
    if not isinstance(nonce, str) or not 0 < len(nonce) <= MAX_NONCE:
        raise BadRequest(f"an order has a nonce of 1 to {MAX_NONCE} characters", param="nonce")
    return Order(signature["by"], at, str(nonce), keys, request["priv"].get("host", ""))


def _of_body(request: Message) -> Message:
    body = request.get("body")
    kind = str(request.get("content-type", "")).partition(";")[0].strip().lower()
    if not isinstance(body, str | bytes) or not body:
        return {}
    if kind != "application/json":
        raise BadRequest("the body of an order is of the type application/json", param="body")
    said = json.decode(body.encode() if isinstance(body, str) else body)
    if not isinstance(said, dict):
        raise BadRequest("the body of an order is a JSON object", param="body")
    return said


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
