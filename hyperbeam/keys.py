"""Key sets: the keys that sign answers, receipts and the log, vouched for by the identity.

Their private halves live in the node's processes only, the log key's in one of them. A key set
says with which settings, GPUs and code the node runs: when one changes there is a new set
before the change counts.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .declared import canonical
from .errors import Unavailable
from .home import write_whole
from .identity import Identity, PublicIdentity
from .message import without
from .verify import jcs, signing
from .verify.checks import Malformed

DAY = 24 * 60 * 60 * 1000
LIFE = 7 * DAY
RENEW = DAY
"""Milliseconds before its end at which a key set gives way to the next."""
SLACK = 60 * 1000
"""Milliseconds that a key set is valid before it is made, for clocks that are behind."""
KEEP_FOR = 366 * DAY
KEEP_COUNT = 2000
_NAME = re.compile(r"[0-9a-f]{64}\Z")

log = logging.getLogger("hyperbeam.keys")


class LiveKeySet:
    """A key set that this process can sign with.

    `message` is its public part with the identity's `signature`, `name` the SHA-256 of its
    canonical JSON without that, in hex. `config` is the digest of the node's settings, `node`
    its address. `not_before`, `not_after`: ms since 1970. Public keys are 32 bytes.
    """

    def __init__(
        self,
        message: dict[str, Any],
        receipt_key: Ed25519PrivateKey,
        log_key: Ed25519PrivateKey | None = None,
    ) -> None:
        self._receipt_key = receipt_key
        self._log_key = log_key
        self.message = message
        self.name = jcs.digest(without(message, ("signature",)))
        self.receipt_public = bytes.fromhex(message["receipt_keys"][0]["key"])
        self.log_public = bytes.fromhex(message["log_keys"][0]["key"])
        self.receipt_key_id: str = message["receipt_keys"][0]["id"]
        self.log_key_id: str = message["log_keys"][0]["id"]
        self.not_before: int = message["not_before"]
        self.not_after: int = message["not_after"]
        self.node: str = message["node"]
        self.config: str = message["config"]

    @classmethod
    def make(cls, identity: Identity, now: int, stated: dict[str, Any]) -> Self:
        """New keys, and `identity`'s word that they are this node's."""
        receipt_key, log_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        not_before = now - SLACK
        unsigned = {
            "v": "hyperbeam.keyset/1",
            "node": identity.address,
            "identity": {"alg": "ed25519", "key": identity.public.hex()},
            "not_before": not_before,
            "not_after": not_before + LIFE,
            **stated,
            "receipt_keys": [_public(receipt_key.public_key().public_bytes_raw())],
            "log_keys": [_public(log_key.public_key().public_bytes_raw())],
            "tls_spki": [],
            "e2ee_keys": [],
        }
        signature = identity.sign(signing.KEYSET, jcs.encode(unsigned)).hex()
        return cls({**unsigned, "signature": signature}, receipt_key, log_key)

    @classmethod
    def adopt(cls, handed: dict[str, Any]) -> Self:
        """What another process of the node gave out by `handed`: it signs no log."""
        key = Ed25519PrivateKey.from_private_bytes(handed["receipt_key"])
        return cls(handed["message"], key)

    def handed(self) -> dict[str, Any]:
        """This key set for a worker, private receipt key included: for its channel only."""
        return {"message": self.message, "receipt_key": self._receipt_key.private_bytes_raw()}

    def sign_answer(self, raw: bytes) -> dict[str, str]:
        """The signature over a statement: `{"key_id", "value": hex}`."""
        signature = self._receipt_key.sign(signing.signed_input(signing.ANSWER, raw))
        return {"key_id": self.receipt_key_id, "value": signature.hex()}

    def sign_receipt(self, data: bytes) -> tuple[str, str]:
        """The key's id and the signature, in hex, over a receipt's canonical JSON."""
        signature = self._receipt_key.sign(signing.signed_input(signing.RECEIPT, data))
        return self.receipt_key_id, signature.hex()

    def sign_log(self, data: bytes) -> bytes:
        """The 64 bytes of the log key's signature over `data` itself, as C2SP notes have it.

        RuntimeError in a process that has no log key.
        """
        if self._log_key is None:
            raise RuntimeError("only the process that writes the log signs it")
        return self._log_key.sign(data)


class Keys:
    """The node's identity and its key sets: `current` to sign with, older ones by name.

    Public parts are kept in `home`/keysets. Works between `open` and the node's end, from
    any thread. What is stated before the first `current` goes into that; later statements
    make a new key set before they return, if they change anything. `changed` is called with
    each key set that takes the place of another, before it counts.
    """

    def __init__(self, home: Path) -> None:
        self.changed: Callable[[LiveKeySet], None] | None = None
        self._home = home
        self._folder = home / "keysets"
        self._identity: Identity | None = None
        self._lock = threading.RLock()
        self._live: LiveKeySet | None = None
        self._prepared: LiveKeySet | None = None
        self._previous: str | None = None
        self._node: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._gpu: dict[str, Any] | None = None
        self._code: str | None = None
        self._unwritten: dict[str, dict[str, Any]] = {}

    def open(self) -> None:
        """Load or make the identity. Raises ConfigError."""
        self._identity = Identity.load(self._home)
        if self._identity.new and self._files():
            log.warning(
                "the identity key of this home was gone: the node has a new one and is %s now",
                self._identity.address,
            )
        self._previous = self._last_of(self._identity.address)
        self._live = None

    @property
    def identity(self) -> Identity:
        """Who this node is. RuntimeError before it has started."""
        if self._identity is None:
            raise RuntimeError("the node has no identity before it starts")
        return self._identity

    @property
    def current(self) -> LiveKeySet:
        """The key set to sign with now: never one that is about to end."""
        live = self._live
        now = _now()
        if live is not None and live.not_before <= now < live.not_after - RENEW:
            return live
        with self._lock:
            if self._live is live:
                self._use(self._make(now, self._content(self._node)))
            assert self._live is not None
            return self._live

    def prepare(self, facts: dict[str, Any]) -> LiveKeySet:
        """The key set for a node of these `facts`, which takes effect when `set_node` states them.

        The current one where they change nothing.
        """
        with self._lock:
            current, stated = self.current, self._content(canonical(facts))
            if _states(current, stated):
                return current
            self._prepared = self._make(_now(), stated)
            return self._prepared

    def set_node(self, facts: dict[str, Any]) -> None:
        """State the node's own settings, routes and devices (`declared.facts`)."""
        with self._lock:
            self._node = canonical(facts)
            self._stated()

    def declare(self, part: str, value: Any) -> None:
        """State the settings of one part, such as a backend's flags; None takes them back."""
        with self._lock:
            self._parts.pop(part, None)
            if value is not None:
                self._parts[part] = canonical(value)
            self._stated()

    def set_gpu(self, gpu: dict[str, Any] | None) -> None:
        """State which GPUs sign and how they are set: `{cc, devtools, ueids}`."""
        with self._lock:
            self._gpu = None if gpu is None else canonical(gpu)
            self._stated()

    def set_code(self, code: str | None) -> None:
        """State the digest of the code that runs here."""
        with self._lock:
            self._code = code
            self._stated()

    def find(self, name: str) -> dict[str, Any] | None:
        """The public part of the key set `name`, of this or an earlier run; None: not known."""
        live = self._live
        if live is not None and live.name == name:
            return live.message
        if not _NAME.match(name):
            return None
        return self._unwritten.get(name) or self._read(self._folder / f"{name}.json")

    def _content(self, node: dict[str, Any]) -> dict[str, Any]:
        config = {**node, "parts": self._parts}
        return {"config": jcs.digest(config), "code": self._code, "gpu": self._gpu}

    def _stated(self) -> None:
        live = self._live
        if live is None:
            return
        stated = self._content(self._node)
        if not _states(live, stated):
            prepared, self._prepared = self._prepared, None
            if prepared is None or not _states(prepared, stated):
                prepared = self._make(_now(), stated)
            self._use(prepared)

    def _use(self, live: LiveKeySet) -> None:
        if self.changed is not None:
            self.changed(live)
        self._live = live

    def _make(self, now: int, content: dict[str, Any]) -> LiveKeySet:
        live = LiveKeySet.make(self.identity, now, {"previous": self._previous, **content})
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._folder / f"{live.name}.json", jcs.encode(live.message))
            self._prune(now)
        except OSError as error:
            log.error(
                "key set %s cannot be kept in %s, so answers signed by it cannot be checked "
                "after this run: %s",
                live.name[:16],
                self._folder,
                error.strerror,
            )
            self._unwritten[live.name] = live.message
        self._previous = live.name
        log.info("key set %s", live.name[:16])
        return live

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            message = jcs.parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except (OSError, Malformed) as error:
            log.warning("a key set cannot be read: %s", error)
            return None
        if jcs.digest(without(message, ("signature",))) != path.stem:
            log.warning("%s does not hold the key set of its name", path)
            return None
        return message

    def _files(self) -> list[Path]:
        """Files of key sets, the newest first."""
        found = [path for path in self._folder.glob("*.json") if _NAME.match(path.stem)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def _last_of(self, node: str) -> str | None:
        for path in self._files():
            message = self._read(path)
            if message is not None and message["node"] == node:
                return path.stem
        return None

    def _prune(self, now: int) -> None:
        for number, path in enumerate(self._files()):
            if number >= KEEP_COUNT or path.stat().st_mtime_ns < (now - KEEP_FOR) * 1_000_000:
                path.unlink(missing_ok=True)


class AdoptedKeys(Keys):
    """The key sets of a worker: made by the supervisor, which also states what goes into them.

    Statements of the devices of this process count for nothing: the same devices make them in
    the supervisor.
    """

    def open(self) -> None:
        """Nothing is to be opened: the identity's key is the supervisor's alone."""

    def adopt(self, live: LiveKeySet) -> None:
        """Sign with `live` from now on."""
        if self._identity is None:
            self._identity = PublicIdentity(bytes.fromhex(live.message["identity"]["key"]))
        self._live = live

    @property
    def current(self) -> LiveKeySet:
        """The key set to sign with now. Raises Unavailable where the supervisor is late with it."""
        live = self._live
        if live is None or _now() >= live.not_after:
            raise Unavailable("the node's keys are being renewed; try again", error="restarting")
        return live

    def _stated(self) -> None:
        pass


def _states(live: LiveKeySet, stated: dict[str, Any]) -> bool:
    return jcs.encode(stated) == jcs.encode({name: live.message[name] for name in stated})


def _public(key: bytes) -> dict[str, str]:
    return {"id": signing.key_id(key), "alg": "ed25519", "key": key.hex()}


def _now() -> int:
    return time.time_ns() // 1_000_000
