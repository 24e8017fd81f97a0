"""A processor that exists in this process only: keys, certificates and reports of AMD's shape."""

from __future__ import annotations

import functools
import hashlib
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding

AMD = "1.3.6.1.4.1.3704.1."
NOW = datetime(2026, 6, 1, tzinfo=UTC)
CPU = {"Milan": (0x19, 0x01), "Genoa": (0x19, 0x11), "Turin": (0x1A, 0x02)}
PSS = padding.PSS(mgf=padding.MGF1(SHA384()), salt_length=48)
LEVELS = {"bootloader": 4, "tee": 1, "snp": 22, "microcode": 213}
MEASUREMENT = hashlib.sha384(b"an image").digest()


@functools.cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """One key for each name: making them is slow."""
    return rsa.generate_private_key(65537, 2048)


@functools.cache
def chip_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


@functools.cache
def root(product: str) -> bytes:
    """One root for each product: a signature is another one each time it is made."""
    name = f"ARK-{product}"
    return certificate(name, name, rsa_key("root"), rsa_key("root").public_key(), ca=True)


@dataclass
class Processor:
    """`product`, `key` (vcek, vlek) and `levels` say what certificates and reports are like."""

    product: str = "Milan"
    key: str = "vcek"
    levels: dict[str, int] = field(default_factory=lambda: dict(LEVELS))
    name: str = "chip"
    days: tuple[int, int] = (-30, 300)
    """Days from NOW at which the leaf's certificate begins and ends."""
    extensions: dict[str, bytes | None] = field(default_factory=dict)
    """The leaf's extensions under AMD's arc that are unlike the rest; None leaves one out."""
    issuer_extensions: dict[str, Any] = field(default_factory=dict)

    @property
    def chip_id(self) -> bytes:
        full = hashlib.sha512(self.name.encode()).digest()
        return full[:8].ljust(64, b"\0") if self.product == "Turin" else full

    @property
    def trust(self) -> str:
        return "simulated:" + hashlib.sha256(self.root()).hexdigest()

    def root(self) -> bytes:
        return root(self.product)

    def issuer(self) -> bytes:
        name = {"vcek": f"SEV-{self.product}", "vlek": f"SEV-VLEK-{self.product}"}[self.key]
        public = rsa_key("issuer").public_key()
        options = {"ca": True, **self.issuer_extensions}
        return certificate(name, f"ARK-{self.product}", rsa_key("root"), public, **options)

    def leaf(self) -> bytes:
        issuer = {"vcek": f"SEV-{self.product}", "vlek": f"SEV-VLEK-{self.product}"}[self.key]
        found = {f"3.{number}": integer(level) for number, level in self._numbered().items()}
        found["1"] = integer(1)
        found["2"] = ia5(f"{self.product}-B0" if self.key == "vcek" else self.product)
        if self.key == "vcek":
            found["4"] = self.chip_id[:8] if self.product == "Turin" else self.chip_id
        else:
            found["5"] = ia5("A provider")
        said = {**found, **self.extensions}
        own = {AMD + name: value for name, value in said.items() if value is not None}
        return certificate(
            f"SEV-{self.key.upper()}",
            issuer,
            rsa_key("issuer"),
            chip_key(self.name).public_key(),
            days=self.days,
            own=own,
            serial=0,
        )

    def certificates(self) -> list[bytes]:
        return [self.leaf(), self.issuer(), self.root()]

    def tcb(self, **levels: int) -> bytes:
        said = {**self.levels, **levels}
        if self.product == "Turin":
            order = ("fmc", "bootloader", "tee", "snp", "", "", "", "microcode")
        else:
            order = ("bootloader", "tee", "", "", "", "", "snp", "microcode")
        return bytes(said.get(name, 0) for name in order)

    def report(self, report_data: bytes = bytes(64), **fields: Any) -> bytes:
        """A signed report. `fields`: those of `Report` that are unlike the defaults."""
        said = {**self._fields(), "report_data": report_data, **fields}
        data = bytearray(0x4A0)
        for name, (at, layout) in LAYOUT.items():
            struct.pack_into(layout, data, at, said[name])
        data[0x188:0x18A] = bytes(said["cpu"] or (0, 0))
        return sign(data, chip_key(self.name))

    def _numbered(self) -> dict[int, int]:
        numbers = {"bootloader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
        said = {number: self.levels.get(name, 0) for name, number in numbers.items()}
        if self.product != "Turin":
            del said[9]
        return said

    def _fields(self) -> dict[str, Any]:
        return {
            "version": 5,
            "guest_svn": 3,
            "policy": 0x30000,
            "vmpl": 0,
            "algorithm": 1,
            "flags": {"vcek": 0, "vlek": 1}[self.key] << 2,
            "platform_info": 1,
            "measurement": MEASUREMENT,
            "host_data": bytes(32),
            "id_key_digest": bytes(48),
            "author_key_digest": bytes(48),
            "report_id_ma": b"\xff" * 32,
            "chip_id": self.chip_id,
            "cpu": CPU[self.product],
            **{
                f"{name}_tcb": self.tcb() for name in ("current", "reported", "committed", "launch")
            },
        }


LAYOUT = {
    "version": (0x00, "<I"),
    "guest_svn": (0x04, "<I"),
    "policy": (0x08, "<Q"),
    "vmpl": (0x30, "<I"),
    "algorithm": (0x34, "<I"),
    "current_tcb": (0x38, "8s"),
    "platform_info": (0x40, "<Q"),
    "flags": (0x48, "<I"),
    "report_data": (0x50, "64s"),
    "measurement": (0x90, "48s"),
    "host_data": (0xC0, "32s"),
    "id_key_digest": (0xE0, "48s"),
    "author_key_digest": (0x110, "48s"),
    "report_id_ma": (0x160, "32s"),
    "reported_tcb": (0x180, "8s"),
    "chip_id": (0x1A0, "64s"),
    "committed_tcb": (0x1E0, "8s"),
    "launch_tcb": (0x1F0, "8s"),
}


def sign(data: bytes | bytearray, key: ec.EllipticCurvePrivateKey) -> bytes:
    """`data` with a new signature in its last 512 bytes."""
    signed = bytes(data[:0x2A0])
    numbers = decode_dss_signature(key.sign(signed, ec.ECDSA(SHA384())))
    return signed + b"".join(n.to_bytes(72, "little") for n in numbers) + bytes(368)


def certificate(
    subject: str,
    issuer: str,
    signer: rsa.RSAPrivateKey,
    public: Any,
    *,
    ca: bool | None = None,
    cert_sign: bool = True,
    critical: str = "",
    days: tuple[int, int] = (-300, 3000),
    own: dict[str, bytes] | None = None,
    serial: int = 7,
) -> bytes:
    """The DER of a certificate signed with RSASSA-PSS. A serial of 0 is written as AMD does."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(public)
        .serial_number(serial or 1)
        .not_valid_before(NOW + timedelta(days[0]))
        .not_valid_after(NOW + timedelta(days[1]))
    )
    for oid, value in (own or {}).items():
        unrecognized = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)
        builder = builder.add_extension(unrecognized, critical=False)
    if critical:
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier(critical), b"\x05\0")
        builder = builder.add_extension(unknown, critical=True)
    if ca is not None:
        constraints = x509.BasicConstraints(ca=ca, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
        usage = x509.KeyUsage(
            digital_signature=not cert_sign,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=cert_sign,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    made = builder.sign(signer, SHA384(), rsa_padding=PSS)
    der = made.public_bytes(Encoding.DER)
    if serial:
        return der
    # version [0] and serial are the first two elements: 5 and 3 bytes after the head.
    signed = made.tbs_certificate_bytes
    at = signed.index(bytes.fromhex("a003020102020101")) + 7
    zero = signed[:at] + b"\0" + signed[at + 1 :]
    signature = signer.sign(zero, PSS, SHA384())
    return der.replace(signed, zero).replace(made.signature, signature)


def integer(value: int) -> bytes:
    """An INTEGER in DER."""
    content = value.to_bytes(2 if value > 127 else 1)
    return bytes([2, len(content)]) + content


def ia5(text: str) -> bytes:
    """An IA5String in DER."""
    return bytes([0x16, len(text)]) + text.encode()


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "SIMULATED"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, common),
        ]
    )
