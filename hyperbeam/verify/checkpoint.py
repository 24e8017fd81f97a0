"""Heads of logs as signed notes, and witnesses' cosignatures on them.

A head is three lines: the log's origin, its size, its root in base64. After an empty line
stand signatures, each `— <name> <base64 of 4 bytes of key id, then the signature>`.
Source: C2SP tlog-checkpoint, signed-note, tlog-cosignature (cosignature/v1).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .checks import Malformed

ED25519 = 1
COSIGNATURE = 4
"""Kinds of signatures: a log's own, and a witness's with its time."""
MALFORMED = "checkpoint-malformed"
KEY_MALFORMED = "verifier-key-malformed"
MAX_CHARACTERS = 1 << 16
MAX_SIGNATURES = 64
MAX_TIME = 2**63 - 1

_SIZE = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_KEY_ID = re.compile(r"[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log's head: `size` leaves with the `root` of 32 bytes."""

    origin: str
    size: int
    root: bytes

    def body(self) -> bytes:
        """The three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{_encode(self.root)}\n".encode()


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature of a note: the key's name and 4-byte id, and what it gave."""

    name: str
    key_id: bytes
    value: bytes

    def line(self) -> str:
        """The signature as a note has it, with its end of line."""
        return f"— {self.name} {_encode(self.key_id + self.value)}\n"


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A head with the signatures that came with it, none of them checked."""

    checkpoint: Checkpoint
    signatures: tuple[Signature, ...]

    def text(self) -> str:
        """The signed note."""
        lines = "".join(signature.line() for signature in self.signatures)
        return f"{self.checkpoint.body().decode()}\n{lines}"


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A key by which notes are checked: its name, its kind and 32 bytes of Ed25519."""

    name: str
    kind: int
    key: bytes

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read `<name>+<key id>+<base64 of kind and key>`.

        Raises Malformed `verifier-key-malformed`.
        """
        name, _, rest = text.partition("+")
        said, _, encoded = rest.partition("+")
        try:
            data = _decode(encoded)
        except ValueError:
            data = b""
        if not (_is_name(name) and _KEY_ID.match(said) and len(data) == 33):
            raise Malformed(
                f"{text[:200]!r} is no verifier key: it is <name>+<8 hex characters>+<base64>",
                KEY_MALFORMED,
            )
        found = cls(name, data[0], data[1:])
        if found.kind not in (ED25519, COSIGNATURE):
            raise Malformed(
                f"the verifier key of {name} has kind {found.kind}; this program knows "
                f"{ED25519} (Ed25519) and {COSIGNATURE} (cosignature/v1)",
                KEY_MALFORMED,
            )
        if found.id.hex() != said:
            raise Malformed(f"the key id in the verifier key of {name} is wrong", KEY_MALFORMED)
        return found

    @property
    def id(self) -> bytes:
        """The first 4 bytes of SHA-256 over name, line end, kind and key."""
        data = self.name.encode() + b"\n" + bytes([self.kind]) + self.key
        return hashlib.sha256(data).digest()[:4]

    def text(self) -> str:
        """The key as `parse` reads it."""
        return f"{self.name}+{self.id.hex()}+{_encode(bytes([self.kind]) + self.key)}"


def parse(text: str | bytes) -> SignedCheckpoint:
    """Read a signed note of a head, with or without signatures that anybody knows.

    Raises Malformed `checkpoint-malformed`, also for extension lines, which no log here has.
    """
    text = _text(text)
    body, found, signed = text.partition("\n\n")
    lines = body.split("\n")
    if not found or len(lines) != 3:
        raise _malformed("it is origin, size and root on a line each, then an empty line")
    origin, size, root = lines
    if not origin:
        raise _malformed("it has no origin")
    if not _SIZE.match(size) or int(size) > MAX_TIME:
        raise _malformed("its second line is not a size")
    try:
        data = _decode(root)
    except ValueError:
        data = b""
    if len(data) != 32:
        raise _malformed("its third line is not a hash in base64")
    if int(size) == 0 and data != hashlib.sha256().digest():
        raise _malformed("the root of an empty log is the hash of nothing")
    return SignedCheckpoint(Checkpoint(origin, int(size), data), parse_signatures(signed))


def parse_signatures(text: str | bytes) -> tuple[Signature, ...]:
    """Read the signature lines of a note. Raises Malformed `checkpoint-malformed`."""
    lines = _text(text).split("\n")
    if len(lines) < 2 or lines.pop():
        raise _malformed("it has no signature, or its last line has no end")
    if len(lines) > MAX_SIGNATURES:
        raise _malformed(f"it has over {MAX_SIGNATURES} signatures")
    return tuple(_signature(line) for line in lines)


def signature_line(name: str, key: bytes, signature: bytes) -> str:
    """The line of a log's own signature (64 bytes over `body()`), by its public key."""
    return Signature(name, VerifierKey(name, ED25519, key).id, signature).line()


def verify(signed: SignedCheckpoint, key: VerifierKey) -> bool:
    """Whether `key`, a log's own, signed the head. One bad signature by it spoils the rest."""
    body = signed.checkpoint.body()
    found = _by(signed.signatures, key)
    return (
        key.kind == ED25519
        and bool(found)
        and all(_is_signed(key.key, body, each.value) for each in found)
    )


def cosigned(signed: SignedCheckpoint, witness: VerifierKey) -> int | None:
    """When `witness` cosigned the head, in s since 1970 (the latest); None: it did not, or
    one of its signatures is bad."""
    found = _by(signed.signatures, witness)
    times = [cosigned_at(signed.checkpoint, each, witness) for each in found]
    good = [time for time in times if time is not None]
    return max(good) if good and len(good) == len(times) else None


def cosigned_at(checkpoint: Checkpoint, signature: Signature, witness: VerifierKey) -> int | None:
    """The time (s) in a cosignature by `witness`; None where it is not one."""
    if witness.kind != COSIGNATURE or (signature.name, signature.key_id) != (
        witness.name,
        witness.id,
    ):
        return None
    time = int.from_bytes(signature.value[:8], "big")
    good = (
        len(signature.value) == 72
        and time <= MAX_TIME
        and _is_signed(witness.key, cosigned_message(checkpoint, time), signature.value[8:])
    )
    return time if good else None


def cosigned_message(checkpoint: Checkpoint, time: int) -> bytes:
    """What a witness signs at `time` (s since 1970)."""
    return f"cosignature/v1\ntime {time}\n".encode() + checkpoint.body()


def _by(signatures: tuple[Signature, ...], key: VerifierKey) -> list[Signature]:
    wanted = (key.name, key.id)
    return [each for each in signatures if (each.name, each.key_id) == wanted]


def _is_signed(key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _signature(line: str) -> Signature:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    try:
        data = _decode(encoded)
    except ValueError:
        data = b""
    if dash != "—" or not _is_name(name) or len(data) < 5:
        raise _malformed("a signature is an em dash, a name and base64, with a space between")
    return Signature(name, data[:4], data[4:])


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(each.isspace() for each in name)


def _text(text: str | bytes) -> str:
    if len(text) > MAX_CHARACTERS:
        raise _malformed(f"it is over {MAX_CHARACTERS} bytes")
    try:
        # A str may hold a lone surrogate, which no note can.
        text = (text.encode() if isinstance(text, str) else text).decode()
    except UnicodeError:
        raise _malformed("it is not UTF-8") from None
    if _CONTROL.search(text):
        raise _malformed("it has a control character")
    return text


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    """Standard base64 in its one canonical form. Raises ValueError."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
    if _encode(data) != text:
        raise ValueError("not canonical base64")
    return data


def _malformed(detail: str) -> Malformed:
    return Malformed(f"the checkpoint: {detail}", MALFORMED)
