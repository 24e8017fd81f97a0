"""Telling what somebody saved: an answer, a stream, evidence, a receipt, a log proof, ..."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from . import answer, token
from .checks import Malformed
from .reading import read_json

Kind = Literal[
    "answer",
    "stream",
    "attestation",
    "challenge",
    "evidence",
    "receipt",
    "keyset",
    "inclusion",
    "consistency",
    "checkpoint",
]
KINDS: tuple[str, ...] = get_args(Kind)
UNREADABLE = "document-unreadable"
_BY_V: dict[str, Kind] = {
    "hyperbeam.receipt/1": "receipt",
    "hyperbeam.keyset/1": "keyset",
    "hyperbeam.inclusion/1": "inclusion",
    "hyperbeam.consistency/1": "consistency",
}
_TOKEN = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}\Z")
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?(?:[\r\n]*)(?:data|event|id|retry)?:")
_CHECKPOINT = b"hyperbeam/receipts/"


@dataclass(frozen=True, slots=True)
class Document:
    """`data`: the document's bytes; `value`: what they say, where that is one JSON value."""

    kind: Kind
    data: bytes
    value: Any = None


def read(document: bytes | str | dict[str, Any] | list[Any], kind: str | None = None) -> Document:
    """Read a document and tell its kind, unless `kind` says it.

    Raises Malformed `document-unreadable`, `document-unknown`, `document-kind` (it is none of
    the `kind` that was asked for), `kind-unknown` (there is no such kind).
    """
    if kind is not None:
        check_kind(kind)
    data = _bytes(document)
    if len(data) > answer.MAX_BYTES:
        raise Malformed(f"the document is over {answer.MAX_BYTES >> 20} MiB", UNREADABLE)
    found = _stream_or_text(data) or _json(data)
    if kind is not None and found.kind != kind:
        raise Malformed(f"the document is of kind {found.kind}, not {kind}", "document-kind")
    return found


def check_kind(kind: str) -> None:
    """Raises Malformed `kind-unknown` for a word that is no kind of document."""
    if kind not in KINDS:
        detail = f"{kind!r} is no kind of document; it is one of {', '.join(KINDS)}"
        raise Malformed(detail, "kind-unknown")


def _bytes(document: bytes | str | dict[str, Any] | list[Any]) -> bytes:
    if isinstance(document, bytes):
        return document
    try:
        if isinstance(document, str):
            return document.encode()
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"the document is not JSON: {error}", UNREADABLE) from None


def _stream_or_text(data: bytes) -> Document | None:
    if data.startswith(_CHECKPOINT):
        return Document("checkpoint", data)
    if _STREAM.match(data):
        return Document("stream", data)
    text = data.strip()
    if len(text) <= token.MAX_CHARACTERS and text.isascii() and _TOKEN.match(text.decode()):
        return Document("evidence", data, {"token": text.decode()})
    return None


def _json(data: bytes) -> Document:
    if not data.strip():
        raise Malformed("the document is empty", UNREADABLE)
    value = read_json(data, "the document", UNREADABLE, answer.MAX_ITEMS)
    if isinstance(value, str):
        return Document("evidence", data, {"token": value})
    if isinstance(value, list):
        return Document("evidence", data, {"evidences": value})
    if isinstance(value, dict):
        kind = _kind(value)
        if kind is not None:
            return Document(kind, data, value)
        if isinstance(value.get("error"), dict | str):
            raise Malformed("the document is an error reply, not an answer", "document-unknown")
    raise Malformed(
        "the document is no answer, stream, attestation, evidence, receipt, key set or log proof",
        "document-unknown",
    )


def _kind(value: dict[str, Any]) -> Kind | None:
    version = value.get("v")
    if isinstance(version, str) and version in _BY_V:
        return _BY_V[version]
    if "attestation" in value or "choices" in value:
        return "answer"
    if "raw" in value and "signature" in value:
        return "attestation"
    if "challenge" in value:
        return "challenge"
    if "evidences" in value or "token" in value:
        return "evidence"
    if "data" in value and "object" in value:
        return "answer"
    return None
