"""API keys in the node's store: only a hash of each, so that the store gives none away."""

from __future__ import annotations

import hashlib
import re
import secrets
import time

import msgspec

from ..errors import ConfigError
from ..store import Store
from .quotas import Quota

PREFIX = "hb-"
FOLDER = b"access/keys"
_NAME = re.compile(r"[\w.@+ -]{1,64}\Z")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored. Times are seconds since 1970, 0 for none.

    `id` is public and names the key in logs, receipts and on the command line.
    """

    id: str
    name: str
    made: int
    expires: int = 0
    revoked: int = 0
    requests: str = ""
    tokens: str = ""
    models: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether it is neither revoked nor past its time."""
        return not self.revoked and (not self.expires or time.time() < self.expires)


class KeyStore:
    """The keys in `store`, which other processes may write at the same time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self,
        name: str,
        *,
        requests: Quota | None = None,
        tokens: Quota | None = None,
        models: tuple[str, ...] = (),
        expires: int = 0,
    ) -> tuple[str, ApiKey]:
        """Make a key: the secret, which is not kept, and what is. Raises ConfigError."""
        if not _NAME.match(name):
            raise ConfigError(f"{name!r} is no name: 1 to 64 letters, digits, spaces and ._@+-")
        if any(key.name == name and key.works for key in self.all()):
            raise ConfigError(f"there is a key {name!r} already: revoke it, or take another name")
        secret = PREFIX + secrets.token_urlsafe(32)
        digest = _digest(secret)
        key = ApiKey(
            id=digest[:12],
            name=name,
            made=int(time.time()),
            expires=expires,
            requests=str(requests or ""),
            tokens=str(tokens or ""),
            models=models,
        )
        self._write(digest, key)
        return secret, key

    def find(self, secret: str) -> ApiKey | None:
        """The key of this secret, working or not."""
        return self._read(_digest(secret))

    def all(self) -> list[ApiKey]:
        """Every key, the oldest first."""
        found = [self._read(name.decode()) for name in self._store.list(FOLDER) or ()]
        return sorted((key for key in found if key is not None), key=lambda key: key.made)

    def revoke(self, named: str) -> ApiKey:
        """Have the key of this id or name work no more. Raises ConfigError where there is none."""
        for name in self._store.list(FOLDER) or ():
            key = self._read(name.decode())
            if key is not None and key.works and named in (key.id, key.name):
                revoked = msgspec.structs.replace(key, revoked=int(time.time()))
                self._write(name.decode(), revoked)
                return revoked
        raise ConfigError(f"no key that works has the id or name {named!r}")

    def _read(self, digest: str) -> ApiKey | None:
        data = self._store.read(FOLDER + b"/" + digest.encode())
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=ApiKey)
        except msgspec.DecodeError:
            return None

    def _write(self, digest: str, key: ApiKey) -> None:
        self._store.write(FOLDER + b"/" + digest.encode(), msgspec.msgpack.encode(key))


def _digest(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
