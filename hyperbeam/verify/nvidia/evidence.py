"""GPU evidence as clients send it: a list with one entry for each GPU.

`{"arch": "HOPPER"|"BLACKWELL", "nonce": hex, "evidence": base64 of the report,
"certificate": base64 of the PEM chain, leaf first}`; other keys count for nothing.
Source: the shape that NVIDIA's remote attestation service and `nvattest` take.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any

from ..checks import Malformed

MAX_GPUS = 16
MAX_REPORT = 64 * 1024
MAX_CHAIN = 64 * 1024

_HEX = re.compile(r"[0-9a-f]{64}\Z")
_WORD = re.compile(r"[A-Z0-9_]{1,32}\Z")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One GPU's evidence: `nonce` in lower-case hex or "", `report` and PEM `chain` as bytes."""

    arch: str
    nonce: str
    report: bytes
    chain: bytes


def read(value: Any) -> list[Evidence]:
    """The entries of `value`, a list of 1 to MAX_GPUS.

    Sizes are checked before anything is decoded. Raises Malformed.
    """
    if not isinstance(value, list):
        raise Malformed("evidence is a list with one entry for each GPU", "evidence-not-a-list")
    if not value:
        raise Malformed("the list of evidence is empty", "evidence-empty")
    if len(value) > MAX_GPUS:
        raise Malformed(f"{len(value)} GPUs; at most {MAX_GPUS} are taken", "too-many-gpus")
    return [_entry(entry, index) for index, entry in enumerate(value)]


def read_nonce(value: Any, what: str = "the nonce") -> str:
    """The nonce in lower-case hex. Raises Malformed unless it is 64 hex characters."""
    text = value.lower() if isinstance(value, str) and len(value) == 64 else ""
    if not _HEX.match(text):
        raise Malformed(f"{what} is not 64 hex characters", "nonce-malformed")
    return text


def _entry(entry: Any, index: int) -> Evidence:
    where = f"evidence {index}"
    if not isinstance(entry, dict):
        raise Malformed(f"{where} is not an object", "evidence-malformed")
    arch = entry.get("arch")
    arch = arch.upper() if isinstance(arch, str) and len(arch) <= 32 else ""
    if not _WORD.match(arch):
        raise Malformed(f"{where} does not name its architecture in `arch`", "evidence-malformed")
    nonce = entry.get("nonce")
    return Evidence(
        arch=arch,
        nonce="" if nonce is None else read_nonce(nonce, f"{where}: the nonce"),
        report=_decode(entry.get("evidence"), MAX_REPORT, f"{where}: `evidence`"),
        chain=_decode(entry.get("certificate"), MAX_CHAIN, f"{where}: `certificate`"),
    )


def _decode(text: Any, limit: int, what: str) -> bytes:
    if not isinstance(text, str) or not text:
        raise Malformed(f"{what} is not base64 text", "evidence-malformed")
    if len(text) > (limit + 2) // 3 * 4:
        raise Malformed(f"{what} is over {limit} bytes", "evidence-too-large")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed(f"{what} is not base64", "evidence-malformed") from None
    if len(data) > limit:
        raise Malformed(f"{what} is over {limit} bytes", "evidence-too-large")
    return data
