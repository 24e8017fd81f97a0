"""What the hardware signs besides answers: challenges for remote callers, quotes for the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from . import jcs

CHALLENGE = "hyperbeam.challenge/1"
QUOTE = "hyperbeam.quote/1"
_SIGNATURE_BYTES = 96


def challenge(keyset: str, nonce: str) -> tuple[str, str]:
    """The canonical text for a caller's `nonce` (hex), and its SHA-256: the hardware's nonce."""
    raw = jcs.encode({"v": CHALLENGE, "keyset": keyset, "nonce": nonce})
    return raw.decode(), hashlib.sha256(raw).hexdigest()


def quote(keyset: str, nonce: str | None, gpu: str | None) -> bytes:
    """The 64 bytes of REPORT_DATA that bind a CPU report to key set, nonce and GPU evidence."""
    value = {"v": QUOTE, "keyset": keyset, "nonce": nonce, "gpu": gpu}
    return hashlib.sha256(jcs.encode(value)).digest() + bytes(32)


def gpu_digest(reports: Sequence[bytes]) -> str:
    """SHA-256 (hex) over the GPU reports in order, each as u32 length and bytes, unsigned.

    A report's last 96 bytes are its signature, which is malleable. Raises ValueError for a
    report that is no longer than that.
    """
    hashed = hashlib.sha256()
    for report in reports:
        if len(report) <= _SIGNATURE_BYTES:
            raise ValueError("a GPU report is shorter than its signature")
        signed = report[:-_SIGNATURE_BYTES]
        hashed.update(len(signed).to_bytes(4, "big") + signed)
    return hashed.hexdigest()
