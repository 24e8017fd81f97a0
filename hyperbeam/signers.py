"""Keys that sign HTTP messages: Ed25519, and RSA as Arweave's wallets have it.

Source: RFC 9421 3.3; RFC 8032; RFC 8017 (PSS); RFC 7518 6.3 (JWK).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .errors import ConfigError
from .verify.signing import is_weak

ED25519 = "ed25519"
RSA = "rsa-pss-sha512"
HMAC = "hmac-sha256"
_EXPONENT = 65537
_MODULUS = range(256, 1025)
"""Bytes: from 2048 to 8192 bits."""
_SALT = 64
_STANDARD = bytes.maketrans(b"-_", b"+/")
_PSS = padding.PSS(padding.MGF1(hashes.SHA512()), padding.PSS.AUTO)


class Signer(Protocol):
    """A private key. `alg`, `keyid` as `signature-input` names them; `address` in base64url."""

    alg: str
    keyid: str
    address: str

    def sign(self, data: bytes) -> bytes: ...


class PublicKey:
    """A key that a signature names. `address`: SHA-256 of its bytes in base64url."""

    def __init__(self, alg: str, key: bytes) -> None:
        self.alg = alg
        self.address = address_of(key)
        self._key = key

    @classmethod
    def of(cls, alg: str, keyid: str) -> PublicKey | None:
        """The key itself, where `keyid` is one in base64 or base64url, padded or not; None for any
        other way to name one.

        `alg` may be empty: the size of the key says which it is.
        """
        try:
            text = keyid.encode("ascii")
            text = text.translate(_STANDARD) + b"=" * (-len(text) % 4)
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        if alg in ("", ED25519) and len(key) == 32:
            return cls(ED25519, key)
        if alg in ("", RSA) and len(key) in _MODULUS and key[0] and key[-1] & 1:
            return cls(RSA, key)
        return None

    def holds(self, signature: bytes, data: bytes) -> bool:
        """Whether it has signed `data`."""
        try:
            if self.alg == ED25519:
                if is_weak(self._key):
                    return False
                Ed25519PublicKey.from_public_bytes(self._key).verify(signature, data)
            else:
                numbers = rsa.RSAPublicNumbers(_EXPONENT, int.from_bytes(self._key))
                numbers.public_key().verify(signature, data, _PSS, hashes.SHA512())
        except (InvalidSignature, ValueError):
            return False
        return True


class Ed25519Signer:
    """An Ed25519 key that signs HTTP messages."""

    alg = ED25519

    def __init__(self, key: Ed25519PrivateKey) -> None:
        public = key.public_key().public_bytes_raw()
        self._key = key
        self.keyid = base64.b64encode(public).decode()
        self.address = address_of(public)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


class RSASigner:
    """An RSA key from a JWK, such as a wallet file of Arweave."""

    alg = RSA

    def __init__(self, jwk: dict[str, Any]) -> None:
        """Raises ValueError for what is no RSA key with the exponent 65537."""
        try:
            n, e, d, p, q, dp, dq, qi = (
                _number(jwk[name]) for name in ("n", "e", "d", "p", "q", "dp", "dq", "qi")
            )
        except (KeyError, TypeError, binascii.Error):
            raise ValueError("it is no private RSA key as JWK") from None
        modulus = n.to_bytes((n.bit_length() + 7) // 8)
        if e != _EXPONENT or len(modulus) not in _MODULUS:
            raise ValueError("its exponent is not 65537, or it has not 2048 to 8192 bits")
        public = rsa.RSAPublicNumbers(e, n)
        self._key = rsa.RSAPrivateNumbers(p, q, d, dp, dq, qi, public).private_key()
        self.keyid = base64.b64encode(modulus).decode()
        self.address = address_of(modulus)

    def sign(self, data: bytes) -> bytes:
        pss = padding.PSS(padding.MGF1(hashes.SHA512()), _SALT)
        return self._key.sign(data, pss, hashes.SHA512())


def read_key(file: str) -> Signer:
    """The key in a file: an Arweave wallet (JWK), or an Ed25519 key in PEM. Raises ConfigError."""
    path = Path(file)
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"the key {path}: cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"the key {path} is open to other users: `chmod 600 {path}`")
    try:
        if data.lstrip()[:1] == b"{":
            return RSASigner(json.loads(data))
        key = serialization.load_pem_private_key(data, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"the key {path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"the key {path} is neither an Ed25519 key nor an Arweave wallet")
    return Ed25519Signer(key)


def address_of(key: bytes) -> str:
    """SHA-256 of a public key in base64url: 43 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(key).digest()).rstrip(b"=").decode()


def _number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
