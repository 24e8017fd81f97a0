"""The node's own key: who it is to everybody else. It signs key sets.

Source: RFC 8032 (Ed25519), RFC 5958 (PKCS #8).
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .errors import ConfigError
from .home import write_whole
from .signers import Ed25519Signer, Signer
from .verify import signing

FILE = "identity.key"
_OTHERS = 0o077


class Identity:
    """An Ed25519 key. `public` are its 32 bytes, `address` their SHA-256 in base64url.

    `new`: made just now, so that it cannot have signed anything before.
    """

    __slots__ = ("_key", "address", "new", "public")

    def __init__(self, key: Ed25519PrivateKey, *, new: bool = False) -> None:
        self._key = key
        self.new = new
        self.public = key.public_key().public_bytes_raw()
        self.address = signing.address(self.public)

    @classmethod
    def load(cls, home: Path) -> Identity:
        """The key in `home`/identity.key, made if there is none. The home must be locked.

        Raises ConfigError for a file that others may read, that is no Ed25519 key, or that
        cannot be read or written.
        """
        path = home / FILE
        try:
            new = not os.path.lexists(path)
            if new:
                _make(path)
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                pem = file.read()
        except OSError as error:
            raise ConfigError(
                f"the node's key {path}: {error.strerror or error}; give this user a home folder "
                "that it may read and write"
            ) from None
        if mode & _OTHERS:
            raise ConfigError(
                f"the node's key {path} is open to other users: `chmod 600 {path}`, and if they "
                "may have read it, move it away so that the node makes another"
            )
        return cls(_read(path, pem), new=new)

    @property
    def committer(self) -> Signer:
        """The key as it commits messages: what that signs begins with a quote, so with no
        context of `sign`."""
        return Ed25519Signer(self._key)

    def sign(self, context: bytes, data: bytes) -> bytes:
        """The 64 bytes of the signature over `context`, a zero byte and `data`."""
        return self._key.sign(signing.signed_input(context, data))


class PublicIdentity(Identity):
    """The public half of an identity, in a process that is not to sign with it."""

    __slots__ = ()

    def __init__(self, public: bytes) -> None:
        self.new = False
        self.public = public
        self.address = signing.address(public)

    @property
    def committer(self) -> Signer:
        """RuntimeError: the key is in another process."""
        raise RuntimeError("the identity key is the supervisor's alone")

    def sign(self, context: bytes, data: bytes) -> bytes:
        """RuntimeError: the key is in another process."""
        raise RuntimeError("the identity key is the supervisor's alone")


def _make(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_whole(path, pem)


def _read(path: Path, pem: bytes) -> Ed25519PrivateKey:
    hint = "restore it from a backup, or move it away so that the node makes another"
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError:
        raise ConfigError(
            f"the node's key {path} has a password: `openssl pkey` writes it without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"the node's key {path} is no private key in PEM: {hint}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"the node's key {path} is not an Ed25519 key: {hint}")
    return key
