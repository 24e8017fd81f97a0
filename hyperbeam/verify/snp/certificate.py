"""AMD's certificates: read without a stumble over the VCEK's serial number, which is 0.

RFC 5280 forbids that serial, and the X.509 library warns of it and will refuse it. It is
given a copy with another serial, for the key and the dates only: signatures are checked over
the certificate's own bytes, names and extensions are read from them.
Source: AMD VCEK Certificate and KDS Interface Specification (57230), tables 8 and 9.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA384

from ..checks import Malformed
from .der import (
    IA5,
    OCTETS,
    Extension,
    certificate,
    common_name,
    integer,
    is_authority,
    may_sign_certificates,
    only,
)
from .report import Tcb
from .roots import Product

MAX_CERTIFICATES = 16
MAX_SIZE = 16 * 1024

_AMD = bytes.fromhex("2b060104019c7801")
_PRODUCT_NAME, _HARDWARE_ID, _PROVIDER = _AMD + b"\x02", _AMD + b"\x04", _AMD + b"\x05"
_LEVELS = {
    "bootloader": _AMD + b"\x03\x01",
    "tee": _AMD + b"\x03\x02",
    "snp": _AMD + b"\x03\x03",
    "microcode": _AMD + b"\x03\x08",
    "fmc": _AMD + b"\x03\x09",
}
"""OIDs 1.3.6.1.4.1.3704.1.x, as they are encoded."""
_RSASSA_PSS = bytes.fromhex("2a864886f70d01010a")
_CONSTRAINTS, _USAGE = bytes.fromhex("551d13"), bytes.fromhex("551d0f")
_HARDWARE_ID_SIZES = (64, 8)
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of AMD's kind. `der`: its own bytes. `tbs`: those that are signed.

    `subject` and `issuer` are names in DER. `key`: its public key; `signature`: its issuer's.
    """

    der: bytes
    tbs: bytes
    subject: bytes
    issuer: bytes
    extensions: dict[bytes, Extension]
    begins: datetime
    ends: datetime
    key: Any
    signature: bytes

    @property
    def name(self) -> str:
        """The subject's common name, "" where it has none."""
        return common_name(self.subject)

    @property
    def issuer_name(self) -> str:
        """The issuer's common name, "" where it has none."""
        return common_name(self.issuer)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the DER, in lower-case hex."""
        return hashlib.sha256(self.der).hexdigest()

    def report_key(self) -> ec.EllipticCurvePublicKey | None:
        """The P-384 key that signs reports; None for any other."""
        key = self.key
        p384 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
        return key if p384 else None

    def signed_by(self, issuer: Certificate) -> bool:
        """Whether `issuer`'s RSA key made the signature: RSASSA-PSS, SHA-384, a salt of 48."""
        if not isinstance(issuer.key, rsa.RSAPublicKey):
            return False
        scheme = padding.PSS(mgf=padding.MGF1(SHA384()), salt_length=48)
        try:
            issuer.key.verify(self.signature, self.tbs, scheme, SHA384())
        except (InvalidSignature, ValueError):
            return False
        return True

    def may_issue(self) -> bool:
        """Whether it is an authority's, with no critical extension that is not understood."""
        usage = self.extensions.get(_USAGE)
        return (
            is_authority(self._extension(_CONSTRAINTS))
            and (usage is None or may_sign_certificates(usage.value))
            and self.is_understood()
        )

    def is_understood(self) -> bool:
        """Whether every critical extension is one that is looked at here."""
        critical = {oid for oid, extension in self.extensions.items() if extension.critical}
        return critical <= {_CONSTRAINTS, _USAGE}

    def tcb(self, product: Product) -> Tcb | None:
        """The patch levels that the key is for; None where one is not said."""
        levels = {}
        for name, oid in _LEVELS.items():
            level = integer(self._extension(oid))
            if name == "fmc" and product != "Turin":
                level = 0
            if level is None or not 0 <= level <= 0xFF:
                return None
            levels[name] = level
        return Tcb(**levels)

    def hardware_id(self) -> bytes:
        """The chip that the key belongs to: 64 bytes, 8 of a Turin; b"" where none is named."""
        value = self._extension(_HARDWARE_ID)
        if len(value) in _HARDWARE_ID_SIZES:
            return value
        content = only(value, OCTETS)
        return content if len(content) in _HARDWARE_ID_SIZES else b""

    def product_name(self) -> str:
        """As in `Milan-B0` or `Turin`."""
        return _ascii(only(self._extension(_PRODUCT_NAME), IA5))

    def provider(self) -> str:
        """Whose VLEK it is: the cloud provider's name in AMD's list."""
        return _ascii(only(self._extension(_PROVIDER), IA5))

    def _extension(self, oid: bytes) -> bytes:
        found = self.extensions.get(oid)
        return b"" if found is None else found.value


def read_all(items: Iterable[bytes]) -> list[Certificate]:
    """The certificates in `items`, each DER or PEM of one or several; repeats are left out.

    Raises Malformed `certificates-malformed` or `certificates-too-many`.
    """
    found: dict[bytes, Certificate] = {}
    for item in items:
        for der in _split(item):
            if der in found:
                continue
            if len(found) == MAX_CERTIFICATES:
                raise Malformed(f"over {MAX_CERTIFICATES} certificates", "certificates-too-many")
            found[der] = read(der)
    return list(found.values())


def read(der: bytes) -> Certificate:
    """One DER certificate, signed with RSASSA-PSS as all of AMD's are. Raises Malformed."""
    from cryptography import x509

    try:
        parts = certificate(der)
        number = der[parts.serial]
        if not number or number[0] & 0x80:
            raise ValueError("a negative serial number")
        readable = bytearray(der)
        if not any(number):
            readable[parts.serial.stop - 1] = 1
        # Before the library sees it: it warns of flaws in other algorithms.
        if parts.algorithm != _RSASSA_PSS:
            raise ValueError("another signature algorithm")
        parsed = x509.load_der_x509_certificate(bytes(readable))
        common_name(parts.subject), common_name(parts.issuer)
        return Certificate(
            der=der,
            tbs=parts.tbs,
            subject=parts.subject,
            issuer=parts.issuer,
            extensions=parts.extensions,
            begins=parsed.not_valid_before_utc,
            ends=parsed.not_valid_after_utc,
            key=parsed.public_key(),
            signature=parsed.signature,
        )
    except (ValueError, TypeError, OverflowError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise Malformed(
            "a certificate is not one of AMD's kind, or is broken", "certificates-malformed"
        ) from None


def _split(item: bytes) -> list[bytes]:
    if not item.lstrip().startswith(b"-----"):
        if len(item) > MAX_SIZE:
            raise Malformed(f"a certificate is over {MAX_SIZE} bytes", "certificates-malformed")
        return [item]
    if len(item) > 2 * MAX_SIZE * MAX_CERTIFICATES:
        raise Malformed("a PEM text is too long", "certificates-malformed")
    blocks = _PEM.findall(item)
    if not blocks or _PEM.sub(b"", item).strip(b" \t\r\n\0"):
        raise Malformed("what begins as PEM is not certificates", "certificates-malformed")
    if len(blocks) > MAX_CERTIFICATES:
        raise Malformed(f"over {MAX_CERTIFICATES} certificates", "certificates-too-many")
    try:
        return [base64.b64decode(b"".join(block.split()), validate=True) for block in blocks]
    except binascii.Error:
        raise Malformed("a PEM certificate is not base64", "certificates-malformed") from None


def _ascii(value: bytes) -> str:
    text = value[:64].decode("ascii", "replace")
    return text if text.isprintable() else ""
