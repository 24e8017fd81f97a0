"""Key sets: the keys that a node signs with for a while, signed by its identity key.

Shape: {v, node, identity: {alg, key}, not_before, not_after, previous, config, code,
gpu: {cc, devtools, ueids} or null, receipt_keys: [{id, alg, key}], log_keys: [...],
tls_spki: [hex], e2ee_keys: [], signature}. Times in ms, keys and digests in hex.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import jcs, shape, signing
from .checks import Malformed
from .reading import read_object

V = "hyperbeam.keyset/1"
MALFORMED = "keyset-malformed"
BAD_SIGNATURE = "keyset-signature"
LIFE_MS = 7 * 24 * 3600 * 1000
"""The longest that a key set may live."""

_KEY = shape.record(id=shape.key_id, alg=shape.constant("ed25519"), key=shape.hexadecimal(32))
_SHAPE = shape.record(
    v=shape.constant(V),
    node=shape.address,
    identity=shape.record(alg=shape.constant("ed25519"), key=shape.hexadecimal(32)),
    not_before=shape.natural,
    not_after=shape.natural,
    previous=shape.optional(shape.digest),
    config=shape.digest,
    code=shape.optional(shape.text()),
    gpu=shape.optional(
        shape.record(cc=shape.boolean, devtools=shape.boolean, ueids=shape.listing(shape.text(128)))
    ),
    receipt_keys=shape.listing(_KEY, 1),
    log_keys=shape.listing(_KEY),
    tls_spki=shape.listing(shape.digest),
    e2ee_keys=shape.listing(shape.anything, most=0),
    signature=shape.signature,
)


@dataclass(frozen=True, slots=True)
class KeySet:
    """A key set whose identity signature holds. `name`: SHA-256 of its JCS, unsigned, in hex."""

    message: dict[str, Any]
    name: str

    @classmethod
    def parse(cls, value: dict[str, Any] | str | bytes) -> KeySet:
        """Read and check a key set; a text need not be canonical (replies may be formatted).

        Raises Malformed `keyset-malformed` for another shape, a life over 7 days, a node or
        key id that is not its key's; `keyset-signature` where the identity did not sign it.
        """
        if not isinstance(value, dict):
            value = read_object(value, "the key set", MALFORMED)
        shape.check(value, _SHAPE, "the key set", MALFORMED)
        _check_life(value)
        identity = bytes.fromhex(value["identity"]["key"])
        if signing.address(identity) != value["node"]:
            raise Malformed("the key set's node is not its identity key's address", MALFORMED)
        for key in value["receipt_keys"] + value["log_keys"]:
            public = bytes.fromhex(key["key"])
            if key["id"] != signing.key_id(public):
                raise Malformed(f"the key set's key {key['id']} has another's id", MALFORMED)
            if signing.is_weak(public):
                raise Malformed(f"anybody can sign by the key {key['id']}", MALFORMED)
        try:
            data = unsigned(value)
        except ValueError as error:
            raise Malformed(f"the key set: {error}", MALFORMED) from None
        if not signing.check(identity, signing.KEYSET, data, bytes.fromhex(value["signature"])):
            raise Malformed(
                "the key set is not signed by its identity key, or was changed", BAD_SIGNATURE
            )
        return cls(value, name(value))

    @property
    def node(self) -> str:
        """The node's address."""
        address: str = self.message["node"]
        return address

    def receipt_key(self, id: str) -> bytes | None:
        """The public key (32 bytes) that signs answers and receipts under `id`."""
        return self._find("receipt_keys", id)

    def log_key(self, id: str) -> bytes | None:
        """The public key (32 bytes) that signs the log's heads under `id`."""
        return self._find("log_keys", id)

    def lives_at(self, time: int) -> bool:
        """Whether the key set was in force at `time` (ms)."""
        starts: int = self.message["not_before"]
        ends: int = self.message["not_after"]
        return starts <= time <= ends

    def _find(self, kind: str, id: str) -> bytes | None:
        for key in self.message[kind]:
            if key["id"] == id:
                return bytes.fromhex(key["key"])
        return None


def unsigned(message: dict[str, Any]) -> bytes:
    """What the identity key signs: the JCS without `signature`."""
    return jcs.encode({key: value for key, value in message.items() if key != "signature"})


def name(message: dict[str, Any]) -> str:
    """A key set's name: SHA-256 of its JCS without `signature`, in hex."""
    return jcs.digest({key: value for key, value in message.items() if key != "signature"})


def _check_life(value: dict[str, Any]) -> None:
    life = value["not_after"] - value["not_before"]
    if not 0 < life <= LIFE_MS:
        raise Malformed("the key set's life is not within 7 days", MALFORMED)
