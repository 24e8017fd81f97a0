"""X.509 certificates of the profile that NVIDIA's have, under roots made in memory.

Every subject says SIMULATED. Source of the profile: the chains of the published H100 samples.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

ORGANIZATION = "SIMULATED"
BEGINS = datetime(2020, 10, 17, tzinfo=UTC)
FOREVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

_DEVICE_INFO = x509.ObjectIdentifier("1.3.6.1.4.1.412.274.1")
_COMPOSITE_DEVICE_ID = x509.ObjectIdentifier("2.23.133.5.4.1")
_TCB_INFO = x509.ObjectIdentifier("2.23.133.5.4.1.1")
_SHA384 = bytes.fromhex("0609608648016503040202")

Extension = tuple[x509.ExtensionType, bool]
"""An extension and whether it is critical."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def public(self) -> bytes:
        """The SubjectPublicKeyInfo in DER."""
        return self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def subject(name: str, serial: str = "") -> x509.Name:
    """A subject like those of NVIDIA's devices; `name` should say SIMULATED."""
    parts = [x509.NameAttribute(NameOID.SERIAL_NUMBER, serial)] if serial else []
    return x509.Name(
        [
            *parts,
            x509.NameAttribute(NameOID.COUNTRY_NAME, "US"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def issue(
    name: x509.Name,
    issuer: Issued | None,
    extensions: Sequence[Extension],
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    serial: int | None = None,
    begins: datetime = BEGINS,
    ends: datetime = FOREVER,
) -> Issued:
    """A certificate signed by `issuer`, or by itself where that is None."""
    key = key or ec.generate_private_key(ec.SECP384R1())
    above = issuer.key if issuer is not None else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer is not None else name)
        .public_key(key.public_key())
        .serial_number(serial or secrets.randbits(126) + 1)
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    identifiers: tuple[Extension, ...] = (
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(above.public_key()), False),
    )
    for extension, critical in (*extensions, *identifiers):
        builder = builder.add_extension(extension, critical)
    return Issued(builder.sign(above, SHA384()), key)


def authority(
    *, path_length: int | None = None, lists: bool = True, ocsp_url: str = ""
) -> list[Extension]:
    """What lets a certificate issue others. `lists`: it may sign revocation lists too."""
    usage = x509.KeyUsage(False, False, False, False, False, True, lists, False, False)
    return [(x509.BasicConstraints(True, path_length), True), (usage, True), *_access(ocsp_url)]


def signer(*, constrained: bool = False, ocsp_url: str = "") -> list[Extension]:
    """What lets a certificate sign and not issue; `constrained` says the latter twice."""
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    constraints = [(x509.BasicConstraints(False, None), True)] if constrained else []
    return [*constraints, (usage, True), *_access(ocsp_url)]


def responder(issuer: Issued) -> Issued:
    """A certificate to sign OCSP answers for `issuer` (RFC 6960 4.2.2.2)."""
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING])
    return issue(
        subject("SIMULATED OCSP Responder"),
        issuer,
        [*signer(), (usage, False), (x509.OCSPNoCheck(), False)],
    )


def device_info(chip: str, number: str) -> Extension:
    """The subject's alternative name of a GPU's leaf (DMTF DSP0274, device info)."""
    text = f"SIMULATED:{chip}:{number}".encode()
    return x509.SubjectAlternativeName([x509.OtherName(_DEVICE_INFO, _der(0x0C, text))]), False


def composite_device_id(device: Issued, fwid: bytes) -> Extension:
    """Hopper's firmware id: the device's public key, then the digest of its firmware."""
    value = _der(0x30, _der(0x02, b"\1") + device.public + _fwid(fwid))
    return x509.UnrecognizedExtension(_COMPOSITE_DEVICE_ID, value), False


def tcb_info(chip: str, fwid: bytes) -> Extension:
    """Blackwell's firmware id, in TCG DICE's TcbInfo."""
    fields = (
        _der(0x80, b"SIMULATED"),
        _der(0x81, chip.encode()),
        _der(0x82, b"1"),
        _der(0x83, b"\1"),
        _der(0x84, b"\0"),
        _der(0x85, b"\0"),
        _der(0xA6, _fwid(fwid)),
        _der(0x87, b"\0" * 5),
        _der(0x88, b"\0" * 4),
        _der(0x89, b"\0"),
    )
    return x509.UnrecognizedExtension(_TCB_INFO, _der(0x30, b"".join(fields))), False


def leaf_key() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A GPU's signing key and its identifier, 20 bytes that are its serial number too."""
    while True:
        key = ec.generate_private_key(ec.SECP384R1())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest
        if 0 < identifier[0] < 0x80:  # a serial number is positive and at most 20 bytes
            return key, identifier


def _access(ocsp_url: str) -> list[Extension]:
    if not ocsp_url:
        return []
    place = x509.UniformResourceIdentifier(ocsp_url)
    described = x509.AccessDescription(AuthorityInformationAccessOID.OCSP, place)
    return [(x509.AuthorityInformationAccess([described]), False)]


def _fwid(fwid: bytes) -> bytes:
    return _der(0x30, _SHA384 + _der(0x04, fwid))


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    head = bytes([length]) if length < 128 else b"\x81" + bytes([length])
    return bytes([tag]) + head + content
