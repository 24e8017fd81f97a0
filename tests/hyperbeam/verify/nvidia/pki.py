"""A throw-away PKI in NVIDIA's wire format, with every part open to change."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from lxml import etree

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
FWID = bytes(range(48))
SHA384_OID = bytes.fromhex("0609608648016503040202")
DS = "http://www.w3.org/2000/09/xmldsig#"

Extension = tuple[x509.ExtensionType, bool]


def usage(*, sign: bool = False, issue: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(sign, False, False, False, False, issue, False, False, False)


def authority(path_length: int | None = None) -> list[Extension]:
    return [(x509.BasicConstraints(True, path_length), True), (usage(issue=True), True)]


def signer() -> list[Extension]:
    return [(usage(sign=True), True)]


@dataclass
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def issue(
    name: str,
    issuer: Issued | None,
    extensions: Sequence[Extension],
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    begins: datetime = NOW - timedelta(days=1),
    ends: datetime = NOW + timedelta(days=30),
    algorithm: SHA256 | SHA384 | SHA512 | None = None,
    issuer_name: str | None = None,
    serial: int | None = None,
) -> Issued:
    """A certificate signed by `issuer`, or by itself where that is None."""
    key = key or ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    parent = issuer.certificate.subject if issuer else subject
    if issuer_name is not None:
        parent = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(parent)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(issuer.key if issuer else key, algorithm or SHA384())
    return Issued(signed, key)


def tlv(tag: int, content: bytes) -> bytes:
    length = len(content)
    head = bytes([length]) if length < 128 else b"\x82" + length.to_bytes(2)
    return bytes([tag]) + head + content


def fwid_sequence(fwid: bytes) -> bytes:
    return tlv(0x30, SHA384_OID + tlv(0x04, fwid))


def hopper_extension(fwid: bytes = FWID) -> Extension:
    value = tlv(0x30, tlv(0x02, b"\1") + tlv(0x30, b"") + fwid_sequence(fwid))
    oid = x509.ObjectIdentifier("2.23.133.5.4.1")
    return x509.UnrecognizedExtension(oid, value), False


def tcb_info(fwid: bytes = FWID) -> bytes:
    fields = (tlv(0x80, b"NVIDIA"), tlv(0x81, b"GB100"), tlv(0x82, b"1"), tlv(0x83, b"\1"))
    fwids = tlv(0xA6, fwid_sequence(fwid) + fwid_sequence(b"\xff" * 48))
    return tlv(0x30, b"".join(fields) + fwids + tlv(0x87, b"\0\0"))


def blackwell_extension(fwid: bytes = FWID) -> Extension:
    value = tcb_info(fwid)
    return x509.UnrecognizedExtension(x509.ObjectIdentifier("2.23.133.5.4.1.1"), value), False


def field_(kind: int, value: bytes) -> bytes:
    return kind.to_bytes(2, "little") + len(value).to_bytes(2, "little") + value


def signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(SHA384())))
    return r.to_bytes(48) + s.to_bytes(48)


def measured(index: int) -> bytes:
    """What block `index` (from 1) of a made report measures."""
    return hashlib.sha384(b"measurement %d" % index).digest()


def report(
    key: ec.EllipticCurvePrivateKey,
    nonce: bytes,
    opaque: Mapping[int, bytes],
    measurements: Mapping[int, bytes] | None = None,
) -> bytes:
    values = measurements or {index: measured(index) for index in range(1, 65)}
    record = b"".join(
        bytes([index, 1])
        + (len(value) + 3).to_bytes(2, "little")
        + b"\1"
        + len(value).to_bytes(2, "little")
        + value
        for index, value in values.items()
    )
    fields = b"".join(field_(kind, value) for kind, value in opaque.items())
    body = b"\x11\xe0\x01\xff" + nonce + b"\0" + b"\x11\x60\0\0" + bytes([len(values)])
    body += len(record).to_bytes(3, "little") + record + bytes(32)
    body += len(fields).to_bytes(2, "little") + fields
    return body + signature(key, body)


def rim(
    version: str,
    golden: Mapping[int, Sequence[bytes]],
    chain: Sequence[Issued],
    *,
    product: str = "GH100",
    change: Callable[[etree._Element], None] | None = None,
) -> bytes:
    """A signed RIM; `golden`: index from 0 to allowed values. `change` comes before signing."""
    swid = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
    hashes = "http://www.w3.org/2001/04/xmlenc#sha384"
    root = etree.Element(f"{{{swid}}}SoftwareIdentity", nsmap={None: swid, "ns2": hashes})
    meta = etree.SubElement(root, f"{{{swid}}}Meta")
    meta.set("colloquialVersion", version)
    meta.set("product", product)
    payload = etree.SubElement(root, f"{{{swid}}}Payload")
    for index, values in golden.items():
        resource = etree.SubElement(payload, f"{{{swid}}}Resource", type="Measurement")
        resource.attrib.update(
            {
                "index": str(index),
                "active": "True",
                "alternatives": str(len(values)),
                "size": "48",
                **{f"{{{hashes}}}Hash{n}": value.hex() for n, value in enumerate(values)},
            }
        )
    if change is not None:
        change(root)
    digest = hashlib.sha384(etree.tostring(root, method="c14n")).digest()
    c14n = "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"
    more = "http://www.w3.org/2001/04/xmldsig-more"
    certificates = "".join(
        f"<X509Certificate>{base64.b64encode(one.certificate.public_bytes(Encoding.DER)).decode()}"
        "</X509Certificate>"
        for one in chain
    )
    element = etree.fromstring(
        f'<Signature xmlns="{DS}"><SignedInfo><CanonicalizationMethod Algorithm="{c14n}"/>'
        f'<SignatureMethod Algorithm="{more}#ecdsa-sha384"/><Reference URI=""><Transforms>'
        f'<Transform Algorithm="{DS}enveloped-signature"/><Transform Algorithm="{c14n}"/>'
        f'</Transforms><DigestMethod Algorithm="{more}#sha384"/><DigestValue>'
        f"{base64.b64encode(digest).decode()}</DigestValue></Reference></SignedInfo>"
        f"<SignatureValue/><KeyInfo><X509Data>{certificates}</X509Data></KeyInfo></Signature>"
    )
    root.append(element)
    info, value = element[0], element[1]
    signed = etree.tostring(info, method="c14n")
    value.text = base64.b64encode(signature(chain[0].key, signed)).decode()
    return bytes(etree.tostring(root))


@dataclass
class World:
    """A device root with a RIM root below it, and what one kind of GPU brings."""

    arch: str = "HOPPER"
    chip: str = "GH100"
    driver: str = "550.90.07"
    mode: int | None = None
    root: Issued = field(init=False)
    middle: Issued = field(init=False)
    rim_root: Issued = field(init=False)
    rim_signer: Issued = field(init=False)
    keys: dict[int, tuple[Issued, Issued]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = issue("Root", None, authority())
        self.middle = issue("Middle", self.root, authority())
        self.rim_root = issue("RIM Root", self.root, authority())
        self.rim_signer = issue("RIM Signer", self.rim_root, signer())

    @property
    def trust(self) -> str:
        der = self.root.certificate.public_bytes(Encoding.DER)
        return "simulated:" + hashlib.sha256(der).hexdigest()

    def gpu(self, number: int = 0) -> tuple[Issued, Issued]:
        """Leaf and device certificate of GPU `number`."""
        if number not in self.keys:
            device = issue(f"{self.chip} A01 GSP BROM {number}", self.middle, authority())
            extension = hopper_extension() if self.arch == "HOPPER" else blackwell_extension()
            leaf = issue(f"{self.chip} A01 GSP FMC LF", device, [*signer(), extension])
            self.keys[number] = leaf, device
        return self.keys[number]

    def opaque(self) -> dict[int, bytes]:
        fields = {
            6: bytes.fromhex("009f009601000000"),
            15: b"882\0",
            17: b"1010\0",
            18: b"0200\0",
            3: self.driver.encode() + b"\0",
            11: b"\xaa",
            20: FWID,
        }
        if self.arch == "BLACKWELL":
            fields |= {34: b"\1", 35: self.chip.encode() + b"\0\0"}
        if self.mode is not None:
            fields[36] = bytes([self.mode])
        return fields

    def chain(self, number: int = 0) -> bytes:
        leaf, device = self.gpu(number)
        return leaf.pem + device.pem + self.middle.pem + self.root.pem

    def entry(
        self,
        nonce: bytes,
        number: int = 0,
        *,
        opaque: Mapping[int, bytes | None] | None = None,
        measurements: Mapping[int, bytes] | None = None,
    ) -> dict[str, Any]:
        """GPU `number`'s evidence; a field of `opaque` that is None is left out."""
        changed = {**self.opaque(), **(opaque or {})}
        fields = {kind: value for kind, value in changed.items() if value is not None}
        made = report(self.gpu(number)[0].key, nonce, fields, measurements)
        return {
            "arch": self.arch,
            "nonce": nonce.hex(),
            "evidence": base64.b64encode(made).decode(),
            "certificate": base64.b64encode(self.chain(number)).decode(),
        }

    def driver_rim(self, **changes: Any) -> bytes:
        golden = changes.pop("golden", {n: [measured(n + 1)] for n in range(20, 40)})
        made = {"version": self.driver, "golden": golden, "product": self.chip, **changes}
        return rim(chain=made.pop("chain", [self.rim_signer, self.rim_root]), **made)

    def vbios_rim(self, **changes: Any) -> bytes:
        golden = changes.pop("golden", {n: [bytes(48), measured(n + 1)] for n in range(8)})
        made = {"version": "96.00.9f.00.01", "golden": golden, "product": self.chip, **changes}
        return rim(chain=made.pop("chain", [self.rim_signer, self.rim_root]), **made)

    @property
    def driver_id(self) -> str:
        if self.arch == "HOPPER":
            return f"NV_GPU_DRIVER_GH100_{self.driver}"
        return f"NV_GPU_CC_DRIVER_{self.chip}_{self.driver}"

    vbios_id = "NV_GPU_VBIOS_1010_0200_882_96009F0001"

    def issued(self) -> list[Issued]:
        """All certificates that may be asked for, with those that issue them."""
        devices = [device for _, device in self.keys.values()]
        return [self.root, self.middle, self.rim_root, self.rim_signer, *devices]


def delegate(issuer: Issued, **changes: Any) -> Issued:
    """A certificate to sign OCSP answers with."""
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING])
    extensions = changes.pop("extensions", [*signer(), (purpose, False)])
    return issue("OCSP Signer", issuer, extensions, **changes)


def answer(
    request: bytes,
    issued: Sequence[Issued],
    *,
    status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
    reason: x509.ReasonFlags | None = None,
    begins: datetime = NOW - timedelta(minutes=1),
    ends: datetime | None = NOW + timedelta(hours=1),
    nonce: bytes | None = None,
    signer: Callable[[Issued], Issued] | None = None,
    about: Issued | None = None,
    with_nonce: bool = True,
) -> bytes:
    """The OCSP answer to `request` about one of `issued`."""
    asked = ocsp.load_der_ocsp_request(request)
    found = {one.certificate.serial_number: one for one in issued}[asked.serial_number]
    above = next(o for o in issued if o.certificate.subject == found.certificate.issuer)
    who = signer(above) if signer else above
    revoked = status is ocsp.OCSPCertStatus.REVOKED
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            cert=(about or found).certificate,
            issuer=above.certificate,
            algorithm=SHA384(),
            cert_status=status,
            this_update=begins,
            next_update=ends,
            revocation_time=NOW - timedelta(days=1) if revoked else None,
            revocation_reason=reason,
        )
        .responder_id(ocsp.OCSPResponderEncoding.HASH, who.certificate)
    )
    if who is not above:
        builder = builder.certificates([who.certificate])
    if with_nonce:
        sent = asked.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
        builder = builder.add_extension(x509.OCSPNonce(nonce or sent), False)
    return builder.sign(who.key, SHA384()).public_bytes(Encoding.DER)
