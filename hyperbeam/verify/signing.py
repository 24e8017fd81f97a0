"""Ed25519 signatures, each over `context || 0x00 || bytes`: none passes as one of another kind.

Source: RFC 8032.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ANSWER = b"hyperbeam.answer/1"
RECEIPT = b"hyperbeam.receipt/1"
KEYSET = b"hyperbeam.keyset/1"


def signed_input(context: bytes, data: bytes) -> bytes:
    """What is really signed when `data` is signed as a `context`."""
    return context + b"\0" + data


def check(key: bytes, context: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) over `data` in `context` is by the public key (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed_input(context, data))
    except (InvalidSignature, ValueError):
        return False
    return True


def key_id(key: bytes) -> str:
    """The name of a key inside a key set: the first 16 hex characters of its SHA-256."""
    return hashlib.sha256(key).hexdigest()[:16]


def address(key: bytes) -> str:
    """The name of the node with this identity key: base64url SHA-256, 43 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(key).digest()).rstrip(b"=").decode()
