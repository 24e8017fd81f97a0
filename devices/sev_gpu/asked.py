"""What is posted to `verify`, read: every shape that clients send, as one document.

The list of evidence itself; `{"evidences": [...]}` or `{"token": base64 of that list's JSON}`
with or without `nonce`; the token alone, as text; a whole attestation (with `raw`), alone or as
`attestation` of an object; the reply of `generate` (with `challenge`). The objects may also hold
`policy` and `keyset`. An answer or a stream that has an attestation, every byte as it came.
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
from hyperbeam.verify import token
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.reading import read_json

MAX_BODY = 16 * 1024 * 1024
MAX_ITEMS = 100_000
_NONCE = re.compile(r"[0-9a-fA-F]{64}\Z")
_TOKEN = re.compile(rb"\s*[A-Za-z0-9+/]{16,}={0,2}\s*\Z")
_REPORT_NONCE = slice(4, 36)
_STREAM = re.compile(rb"\s*(data|event|id|retry)?:")
_OURS = ("policy", "keyset")


@dataclass(frozen=True, slots=True)
class Asked:
    """A document that does not contradict itself, of a `kind` that `hyperbeam.verify` knows.

    `nonce`: the one that the caller says it chose. `keyset`, `policy`: as posted, or None.
    """

    kind: str
    document: dict[str, Any] | bytes
    nonce: str | None = None
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
            error="nonce-malformed",
            param=param,
        )
    return value.lower()


def read(body: bytes, nonce: str | None) -> Asked:
    """The question in `body`; `nonce` is that of the query or a header.

    Raises BadRequest for what is none of the shapes, Conflict, TooLarge, and Malformed for
    a token or batch that is none.
    """
    if len(body) > MAX_BODY:
        raise TooLarge(f"over {MAX_BODY // 2**20} MiB; evidence is far smaller")
    if _STREAM.match(body):
        return Asked("stream", body, nonce)
    value = _value(body)
    if isinstance(value, str):
        value = {"token": value}
    if isinstance(value, list):
        value = {"evidences": value}
    if not isinstance(value, dict):
        raise BadRequest(
            "post the list of evidence, an attestation, an answer that has one, or an object with "
            "`evidences` or `token`"
        )
    rest = {name: item for name, item in value.items() if name not in _OURS}
    if "attestation" in rest and len(rest) > 1:
        return _answer(body, value, nonce)
    if "attestation" in rest:
        rest = _attestation(rest["attestation"])
    kind, own = _read(rest, nonce)
    return Asked(kind, rest, own, value.get("keyset"), value.get("policy"))


def _answer(body: bytes, value: dict[str, Any], nonce: str | None) -> Asked:
    extra = next((name for name in _OURS if name in value), None)
    if extra is not None:
        raise BadRequest(
            f"an answer is verified as it came, without a `{extra}` in it; post an object with "
            f"its `attestation` and `{extra}`",
            param=extra,
        )
    return Asked("answer", body, nonce)


def _attestation(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or "raw" not in value:
        raise BadRequest(
            "`attestation` is the whole object that an answer has, with `raw`", param="attestation"
        )
    return dict(value)


def _value(body: bytes) -> Any:
    if not body.strip():
        return []
    if _TOKEN.match(body):
        return body.strip().decode("ascii")
    try:
        return read_json(body, "the body", "invalid_json", MAX_ITEMS)
    except Malformed as error:
        raise BadRequest(error.detail, error=error.reason) from None


def _read(value: dict[str, Any], nonce: str | None) -> tuple[str, str | None]:
    """The document's kind, and the caller's nonce."""
    if value.get("nonce") is not None:
        value["nonce"] = read_nonce(value["nonce"])
    said: str | None = value.get("nonce")
    evidences = _evidences(value)
    if value.get("raw") is not None:
        if "challenge" in value:
            raise Conflict("there are both `raw` and `challenge`: one nonce stands for one of them")
        _check_raw(value["raw"], said, value.get("batch"))
        _check_inner(evidences, said)
        return "attestation", nonce
    if value.get("batch") is not None:
        raise Conflict("there is a `batch` and no `raw` to be in it")
    if value.get("challenge") is not None:
        _check_challenge(value["challenge"], said)
        _check_inner(evidences, said)
        return "challenge", nonce
    if nonce is not None and said is not None and nonce != said:
        raise BadRequest("the body and the query name two different nonces", param="nonce")
    for name in [name for name in value if name not in ("evidences", "token")]:
        del value[name]
    if said is None and nonce is not None and isinstance(evidences, list):
        value.pop("token", None)
        value["evidences"] = [_without_echo(entry) for entry in evidences]
    return "evidence", nonce or said


def _without_echo(entry: Any) -> Any:
    """`entry` without a nonce that only repeats its report's, which is checked by itself."""
    if not isinstance(entry, dict) or not isinstance(entry.get("nonce"), str):
        return entry
    if entry["nonce"].lower() != _report_nonce(entry.get("evidence")):
        return entry
    return {name: item for name, item in entry.items() if name != "nonce"}


def _evidences(value: dict[str, Any]) -> Any:
    """The list of evidence; a null beside the other one says nothing."""
    for name in ("token", "evidences"):
        if name in value and value[name] is None:
            del value[name]
    if "token" not in value:
        if "evidences" not in value and not {"raw", "challenge"} & value.keys():
            raise BadRequest(
                "the object has neither `attestation`, as an answer to a request with `tee` has, "
                "nor `evidences` nor `token`",
                param="evidences",
            )
        return value.get("evidences")
    decoded = token.decode(value["token"])
    if value.get("evidences", decoded) != decoded:
        raise Conflict("`token` holds other evidence than `evidences`")
    return decoded


def _check_raw(raw: Any, nonce: str | None, batch: Any) -> None:
    if not isinstance(raw, str):
        raise BadRequest("`raw` is the statement as one text", param="raw")
    if nonce is None:
        raise BadRequest("an attestation with `raw` has a `nonce`", param="nonce")
    if batch is None:
        if _sha256(raw) != nonce:
            raise Conflict("`nonce` is not the SHA-256 of `raw`")
    elif not batches.verify(batches.parse(batch), raw, nonce):
        raise Conflict("`raw` is not in the `batch` whose nonce this is")


def _check_challenge(challenge: Any, nonce: str | None) -> None:
    if not isinstance(challenge, str):
        raise BadRequest("`challenge` is the canonical JSON as one text", param="challenge")
    if nonce is None or _sha256(challenge) != nonce:
        raise Conflict("`nonce` is not the SHA-256 of `challenge`")


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
    return hashlib.sha256(text.encode()).hexdigest()
