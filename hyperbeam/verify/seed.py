"""Seeds that a node makes from the request, so that the same request gives the same answer."""

from __future__ import annotations

import hashlib

CONTEXT = b"hyperbeam.seed/1\0"


def derive(body: bytes, nonce: str | None) -> int:
    """The seed of a request that names none: 31 bits of its own bytes.

    The first 31 bits of SHA-256("hyperbeam.seed/1" || 0x00 || nonce || SHA-256(body)), the
    client's nonce as its 64 ASCII characters, nothing where there is none.
    """
    digest = hashlib.sha256(CONTEXT + (nonce or "").encode() + hashlib.sha256(body).digest())
    return int.from_bytes(digest.digest()[:4], "big") >> 1
