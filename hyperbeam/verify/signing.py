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
_SMALL_ORDER = frozenset(
    {
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    }
)
"""Encodings of y without the sign of x. Source: RFC 8032, section 5.1; Chalkias and others 2020."""


def signed_input(context: bytes, data: bytes) -> bytes:
    """What is really signed when `data` is signed as a `context`."""
    return context + b"\0" + data


def is_weak(key: bytes) -> bool:
    """Whether it is a point of small order, for which anybody can sign anything."""
    return key[:31].hex() + f"{key[31] & 0x7F:02x}" in _SMALL_ORDER if len(key) == 32 else True


def check(key: bytes, context: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) over `data` in `context` is by the public key (32 bytes)."""
    if is_weak(key):
        return False
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
