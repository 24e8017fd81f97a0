"""What is posted to `verify`, read: every shape that clients send, as one question.

The list of evidence itself; `{"evidences": [...]}` or `{"token": base64 of that list's JSON}`
with or without `nonce`; the token alone, as text; a whole attestation (with `raw`); the reply
of `generate` (with `challenge`). The objects may also hold `policy` and `keyset`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from hyperbeam import BadRequest, TooLarge
from hyperbeam.verify import batch as batches
from hyperbeam.verify import challenge as challenges
from hyperbeam.verify import jcs
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.reading import read_json

MAX_BODY = 16 * 1024 * 1024
MAX_TOKEN = 4 * 1024 * 1024
MAX_ITEMS = 100_000
MAX_RAW = MAX_BODY
_NONCE = re.compile(r"[0-9a-fA-F]{64}\Z")
_BASE64 = re.compile(rb"[A-Za-z0-9+/\s]+=*\s*\Z")
_REPORT_NONCE = slice(4, 36)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that does not contradict itself.

    `nonce`: what the hardware has to have signed, None where nobody vouches for one.
    `caller`: the nonce that the caller says it chose. `raw`: the statement of a posted
    attestation, with its `signature`. `challenge`: the nonce in a posted challenge.
    `keyset`, `policy`: as posted, or None.
    """

    evidences: Any
    nonce: str | None = None
    caller: str | None = None
    raw: str | None = None
    signature: Any = None
    challenge: str | None = None
    keyset: Any = None
    policy: Any = None


class Conflict(BadRequest):
    """400: parts of what was posted contradict each other."""

    error = "evidence-conflict"


def read_nonce(value: Any, param: str = "nonce") -> str:
    """A nonce in lower-case hex. Raises BadRequest unless it is 64 hex characters."""
    if not isinstance(value, str) or not _NONCE.match(value):
        raise BadRequest(
            f"{param} has to be exactly 64 hexadecimal characters (32 bytes that you chose at "
            "random)",
            param=param,
        )
    return value.lower()


def read(body: bytes, nonce: str | None) -> Asked:
    """The question in `body`; `nonce` is that of the query or a header.

    Raises BadRequest for what is none of the shapes, Conflict, TooLarge, and Malformed for
    a token, batch or challenge that is none.
    """
    if len(body) > MAX_BODY:
        raise TooLarge(f"over {MAX_BODY // 2**20} MiB; evidence is far smaller")
    value = _value(body)
    if isinstance(value, str):
        value = {"token": value}
    if isinstance(value, list):
        return Asked(value, nonce, caller=nonce)
    if not isinstance(value, dict):
        raise BadRequest(
            "post the list of evidence, an attestation, or an object with `evidences` or `token`"
        )
    return _object(value, nonce)


def _value(body: bytes) -> Any:
    if not body.strip():
        return []
    if _BASE64.match(body):
        text = body.decode("ascii")
        # true, null and 12 are base64 as well as JSON; no token is that short.
        return text if len(text.strip()) > 16 else read_json(body, "the body", "invalid-json")
    try:
        return read_json(body, "the body", "invalid-json", MAX_ITEMS)
    except Malformed as error:
        raise BadRequest(error.detail, error="invalid_json") from None


def _object(value: dict[str, Any], nonce: str | None) -> Asked:
    said = value.get("nonce")
    said = None if said is None else read_nonce(said)
    evidences = _evidences(value)
    rest = {"keyset": value.get("keyset"), "policy": value.get("policy")}
    raw, challenge = value.get("raw"), value.get("challenge")
    if raw is not None:
        if challenge is not None:
            raise Conflict("there are both `raw` and `challenge`: one nonce stands for one of them")
        _check_raw(raw, said, value.get("batch"))
        _check_inner(evidences, said)
        return Asked(
            evidences, said, caller=nonce, raw=raw, signature=value.get("signature"), **rest
        )
    if value.get("batch") is not None:
        raise Conflict("there is a `batch` and no `raw` to be in it")
    if challenge is not None:
        inner = _challenged(challenge, said)
        _check_inner(evidences, said)
        vouched = said if nonce is not None else None
        return Asked(evidences, vouched, caller=nonce, challenge=inner, **rest)
    if nonce is not None and said is not None and nonce != said:
        raise BadRequest("the body and the query name two different nonces", param="nonce")
    own = nonce or said
    return Asked(evidences, own, caller=own, **rest)


def _evidences(value: dict[str, Any]) -> Any:
    token, evidences = value.get("token"), value.get("evidences")
    if token is None and evidences is None:
        if "raw" in value or "challenge" in value:
            return []
        raise BadRequest("the object has neither `evidences` nor `token`", param="evidences")
    if token is None:
        return evidences
    decoded = _decoded(token)
    if evidences is not None and decoded != evidences:
        raise Conflict("`token` holds other evidence than `evidences`")
    return decoded


def _decoded(token: Any) -> Any:
    if not isinstance(token, str):
        raise Malformed("the token is not a text", "token-malformed")
    if len(token) > MAX_TOKEN:
        raise Malformed(f"the token is over {MAX_TOKEN // 2**20} MiB", "token-malformed")
    try:
        data = base64.b64decode("".join(token.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("the token is not base64", "token-malformed") from None
    return read_json(data, "the token", "token-malformed", MAX_ITEMS)


def _check_raw(raw: Any, nonce: str | None, batch: Any) -> None:
    if not isinstance(raw, str) or len(raw) > MAX_RAW:
        raise BadRequest("`raw` is the statement as one text", param="raw")
    if nonce is None:
        raise BadRequest("an attestation with `raw` has a `nonce`", param="nonce")
    if batch is not None:
        if not batches.verify(batches.parse(batch), raw, nonce):
            raise Conflict("`raw` is not in the `batch` whose nonce this is")
    elif _sha256(raw) != nonce:
        raise Conflict("`nonce` is not the SHA-256 of `raw`")


def _challenged(challenge: Any, nonce: str | None) -> str:
    if not isinstance(challenge, str):
        raise BadRequest("`challenge` is the canonical JSON as one text", param="challenge")
    if nonce is None or _sha256(challenge) != nonce:
        raise Conflict("`nonce` is not the SHA-256 of `challenge`")
    found = jcs.parse(challenge, "the challenge")
    keyset, inner = found.get("keyset"), found.get("nonce")
    if not isinstance(keyset, str) or not isinstance(inner, str):
        raise Malformed("the challenge has no keyset or no nonce", "challenge-malformed")
    if challenges.challenge(keyset, inner) != (challenge, nonce):
        raise Malformed("the challenge has an unknown kind or key", "challenge-malformed")
    return read_nonce(inner, "the challenge's nonce")


def _check_inner(evidences: Any, nonce: str | None) -> None:
    """Nonces inside the evidence, in its JSON and in the reports, are the one that it is for."""
    for index, entry in enumerate(evidences if isinstance(evidences, list) else ()):
        if not isinstance(entry, dict):
            continue
        inner = entry.get("nonce")
        if inner is not None and (not isinstance(inner, str) or inner.lower() != nonce):
            raise Conflict(f"evidence {index} names another nonce than the object it is in")
        signed = _report_nonce(entry.get("evidence"))
        if signed is not None and signed != nonce:
            raise Conflict(f"evidence {index} holds a report over another nonce")


def _report_nonce(text: Any) -> str | None:
    """The nonce at its place in a report, None where there is no report to look into."""
    if not isinstance(text, str):
        return None
    try:
        head = base64.b64decode(text[:64], validate=True)
    except (binascii.Error, ValueError):
        return None
    return head[_REPORT_NONCE].hex() if len(head) >= _REPORT_NONCE.stop else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
