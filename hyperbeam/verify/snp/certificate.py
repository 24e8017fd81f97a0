"""AMD's certificates: read without a stumble over the VCEK's serial number, which is 0.

RFC 5280 forbids that serial, and the X.509 library warns of it and will refuse it. It is
given a copy with another serial; signatures are checked over the certificate's own bytes.
Source: AMD VCEK Certificate and KDS Interface Specification (57230), tables 8 and 9.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA384

from ..checks import Malformed
from .report import Tcb
from .roots import Product

MAX_CERTIFICATES = 16
MAX_SIZE = 16 * 1024

_AMD = "1.3.6.1.4.1.3704.1."
_PRODUCT_NAME, _HARDWARE_ID, _CSP_ID = _AMD + "2", _AMD + "4", _AMD + "5"
_LEVELS = {
    "bootloader": _AMD + "3.1",
    "tee": _AMD + "3.2",
    "snp": _AMD + "3.3",
    "microcode": _AMD + "3.8",
    "fmc": _AMD + "3.9",
}
_HARDWARE_ID_SIZES = (64, 8)
_SEQUENCE, _INTEGER, _OCTETS, _IA5, _VERSION = 0x30, 0x02, 0x04, 0x16, 0xA0
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_UNDERSTOOD = frozenset({x509.BasicConstraints.oid, x509.KeyUsage.oid})


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of AMD's kind. `der`, `tbs`: its own bytes, whole and as they are signed.

    `parsed` is what the library makes of it, with a serial of 1 in the place of 0.
    """

    der: bytes
    tbs: bytes
    parsed: x509.Certificate

    @property
    def name(self) -> str:
        """The subject's common name, "" where it has none."""
        return _common_name(self.parsed.subject)

    @property
    def issuer(self) -> str:
        """The issuer's common name, "" where it has none."""
        return _common_name(self.parsed.issuer)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the DER, in lower-case hex."""
        return hashlib.sha256(self.der).hexdigest()

    def key(self) -> ec.EllipticCurvePublicKey | None:
        """The P-384 key that signs reports; None for any other."""
        public = self.parsed.public_key()
        if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP384R1):
            return public
        return None

    def signed_by(self, issuer: Certificate) -> bool:
        """Whether `issuer`'s RSA key made the signature: RSASSA-PSS, SHA-384, a salt of 48."""
        public = issuer.parsed.public_key()
        if not isinstance(public, rsa.RSAPublicKey):
            return False
        scheme = padding.PSS(mgf=padding.MGF1(SHA384()), salt_length=48)
        try:
            public.verify(self.parsed.signature, self.tbs, scheme, SHA384())
        except (InvalidSignature, ValueError):
            return False
        return True

    def may_issue(self) -> bool:
        """Whether it is an authority's, with no critical extension that is not understood."""
        try:
            constraints = self.parsed.extensions.get_extension_for_class(x509.BasicConstraints)
        except x509.ExtensionNotFound:
            return False
        usage = [found for found in self.parsed.extensions if found.oid == x509.KeyUsage.oid]
        signs = all(found.value.key_cert_sign for found in usage)
        return constraints.value.ca and signs and self.is_understood()

    def is_understood(self) -> bool:
        """Whether every critical extension is one that is looked at here."""
        found = self.parsed.extensions
        return all(each.oid in _UNDERSTOOD for each in found if each.critical)

    def tcb(self, product: Product) -> Tcb | None:
        """The patch levels that the key is for; None where one is not said."""
        levels = {name: _integer(self._extension(oid)) for name, oid in _LEVELS.items()}
        if product != "Turin":
            levels["fmc"] = 0
        if any(level is None for level in levels.values()):
            return None
        return Tcb(**{name: level for name, level in levels.items() if level is not None})

    def hardware_id(self) -> bytes:
        """The chip that the key belongs to: 64 bytes, 8 of a Turin; b"" where none is named."""
        value = self._extension(_HARDWARE_ID)
        if len(value) in _HARDWARE_ID_SIZES:
            return value
        content = _content(value, _OCTETS)
        return content if len(content) in _HARDWARE_ID_SIZES else b""

    def product_name(self) -> str:
        """As in `Milan-B0` or `Turin`."""
        return _ascii(_content(self._extension(_PRODUCT_NAME), _IA5))

    def provider(self) -> str:
        """Whose VLEK it is: the cloud provider's name in AMD's list."""
        return _ascii(_content(self._extension(_CSP_ID), _IA5))

    def _extension(self, oid: str) -> bytes:
        for found in self.parsed.extensions:
            if found.oid.dotted_string == oid and isinstance(
                found.value, x509.UnrecognizedExtension
            ):
                return found.value.value
        return b""


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
    try:
        tbs, serial = _locate(der)
        number = der[serial]
        if not number or number[0] & 0x80:
            raise ValueError("a negative serial number")
        readable = bytearray(der)
        if not any(number):
            readable[serial.stop - 1] = 1
        parsed = x509.load_der_x509_certificate(bytes(readable))
        if parsed.signature_algorithm_oid != x509.SignatureAlgorithmOID.RSASSA_PSS:
            raise ValueError("another signature algorithm")
        list(parsed.extensions)
        parsed.public_key()
        _common_name(parsed.subject), _common_name(parsed.issuer)
        parsed.not_valid_after_utc - parsed.not_valid_before_utc
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, OverflowError):
        raise Malformed(
            "a certificate is not one of AMD's kind, or is broken", "certificates-malformed"
        ) from None
    return Certificate(der, der[tbs], parsed)


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


def _locate(der: bytes) -> tuple[slice, slice]:
    """Where the signed part stands (with its head), and the content of the serial number."""
    whole = _element(der, 0, _SEQUENCE)
    if whole.stop != len(der):
        raise ValueError("bytes after the certificate")
    signed = _element(der, whole.start, _SEQUENCE)
    at = signed.start
    if der[at : at + 1] == bytes([_VERSION]):
        at = _element(der, at, _VERSION).stop
    return slice(whole.start, signed.stop), _element(der, at, _INTEGER)


def _element(data: bytes, at: int, tag: int) -> slice:
    """The content of the DER element at `at`. Raises ValueError where there is none of `tag`."""
    if len(data) < at + 2 or data[at] != tag:
        raise ValueError("another element was expected")
    length, start = data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 0 < count <= 3:
            raise ValueError("a length that is not definite, or too large")
        length = int.from_bytes(data[start : start + count])
        start += count
    if start + length > len(data):
        raise ValueError("an element is longer than what holds it")
    return slice(start, start + length)


def _content(value: bytes, tag: int) -> bytes:
    """The content of `value`, one element of `tag`; b"" where it is not that."""
    try:
        inner = _element(value, 0, tag)
    except ValueError:
        return b""
    return value[inner] if inner.stop == len(value) else b""


def _integer(value: bytes) -> int | None:
    content = _content(value, _INTEGER)
    number = int.from_bytes(content, signed=True)
    return number if content and 0 <= number <= 0xFF else None


def _ascii(value: bytes) -> str:
    text = value[:64].decode("ascii", "replace")
    return text if text.isprintable() else ""


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value)[:100] if found else ""
