"""Certificate chains, leaf first, up to a root that the verifier already has.

Stricter than a general path validation: ECDSA P-384 with SHA-384 everywhere, no
certificate twice, no critical extension that is not understood.
Source: RFC 5280 section 6; nv-local-gpu-verifier 2.7 (the chain's own root is replaced).
"""

from __future__ import annotations

import functools
import hashlib
import re
from datetime import datetime
from importlib import resources
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning

from ..checks import Malformed
from .refused import Refused

MAX_CERTIFICATES = 10

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_UNDERSTOOD = frozenset({x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid})
_DICE = "2.23.133.5.4."
"""Extensions that tell of firmware and change nothing about who may issue what."""
_UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    CryptographyDeprecationWarning,
)
Kind = TypeVar("Kind", bound=x509.ExtensionType)


@functools.cache
def device_root() -> x509.Certificate:
    """NVIDIA Device Identity CA."""
    return _pinned("device_root.pem")


@functools.cache
def rim_root() -> x509.Certificate:
    """NVIDIA CoRIM signing Root CA."""
    return _pinned("rim_root.pem")


def _pinned(name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(
        (resources.files(__package__) / "certs" / name).read_bytes()
    )


def read_pem(data: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM file, 1 to MAX_CERTIFICATES. Raises Malformed."""
    if data.count(b"-----BEGIN") > MAX_CERTIFICATES:
        raise Malformed(f"over {MAX_CERTIFICATES} certificates", "chain-too-long")
    blocks = _PEM.findall(data)
    if not blocks or _PEM.sub(b"", data).strip(b" \t\r\n\0"):
        raise Malformed("the certificate chain is not PEM certificates", "chain-malformed")
    return [read(block) for block in blocks]


def read(data: bytes) -> x509.Certificate:
    """One certificate, PEM or DER. Raises Malformed for what cannot be read to its end."""
    try:
        pem = data.startswith(b"-----")
        load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
        certificate = load(data)
        list(certificate.extensions)
        certificate.public_key()
        certificate.subject.rfc4514_string()
        certificate.issuer.rfc4514_string()
        certificate.not_valid_after_utc - certificate.not_valid_before_utc
    except _UNREADABLE:
        raise Malformed("a certificate cannot be read", "chain-malformed") from None
    return certificate


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER, in lower-case hex."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def complete(chain: list[x509.Certificate], root: x509.Certificate) -> list[x509.Certificate]:
    """The chain with `root` in the place of its own root, or above its last certificate."""
    own = len(chain) > 1 and chain[-1].subject == chain[-1].issuer
    return [*(chain[:-1] if own else chain), root]


def check(chain: list[x509.Certificate]) -> None:
    """Check a chain that ends with a trusted root, all but the dates. Raises Refused."""
    if len(chain) < 2:
        raise Refused("too-short", "the chain has no certificate but its root")
    if len({fingerprint(certificate) for certificate in chain}) != len(chain):
        raise Refused("repeated-certificate", "the chain has a certificate twice")
    for certificate in chain:
        _check_algorithm(certificate)
    for depth, certificate in enumerate(chain):
        _check_extensions(certificate, depth)
    last = len(chain) - 2
    for depth in range(last, -1, -1):
        _check_issued(chain[depth], chain[depth + 1], depth == last)


def check_dates(chain: list[x509.Certificate], at: datetime) -> None:
    """Raises Refused unless each certificate is valid at `at`."""
    for certificate in chain:
        if at > certificate.not_valid_after_utc:
            when = certificate.not_valid_after_utc.date()
            raise Refused("expired", f"the certificate of {name(certificate)} ended on {when}")
        if at < certificate.not_valid_before_utc:
            when = certificate.not_valid_before_utc.date()
            raise Refused("not-yet-valid", f"that of {name(certificate)} begins on {when}")


def ends(chain: list[x509.Certificate]) -> datetime:
    """When the first certificate of the chain ends."""
    return min(certificate.not_valid_after_utc for certificate in chain)


def name(certificate: x509.Certificate) -> str:
    """The subject's common name, or "" where it has none."""
    found = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value)[:100] if found else ""


def key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The certificate's P-384 key. Raises Refused for any other."""
    public = certificate.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP384R1):
        return public
    raise Refused("algorithm", f"the key of {name(certificate)} is not ECDSA P-384")


def extension(certificate: x509.Certificate, kind: type[Kind]) -> Kind | None:
    """The certificate's extension of a kind, or None."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _check_algorithm(certificate: x509.Certificate) -> None:
    key(certificate)
    if certificate.signature_algorithm_oid != x509.SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        raise Refused("algorithm", f"{name(certificate)} is not signed by ECDSA with SHA-384")
    if certificate.version is not x509.Version.v3:
        raise Refused("algorithm", f"{name(certificate)} is not an X.509 v3 certificate")


def _check_extensions(certificate: x509.Certificate, depth: int) -> None:
    """`depth`: 0 for the leaf, which makes `depth - 1` the intermediates below."""
    for found in certificate.extensions:
        oid = found.oid.dotted_string
        if found.critical and found.oid not in _UNDERSTOOD and not oid.startswith(_DICE):
            detail = f"{name(certificate)} has the unknown critical extension {oid}"
            raise Refused("critical-extension", detail)
    constraints = extension(certificate, x509.BasicConstraints)
    usage = extension(certificate, x509.KeyUsage)
    authority = constraints is not None and constraints.ca
    if depth == 0:
        if authority or usage is None or not usage.digital_signature or usage.key_cert_sign:
            raise Refused("key-usage", f"{name(certificate)} is not a certificate to sign with")
        return
    if not authority:
        raise Refused("not-an-authority", f"{name(certificate)} may not issue certificates")
    if usage is None or not usage.key_cert_sign:
        raise Refused("key-usage", f"{name(certificate)} may not sign certificates")
    limit = constraints.path_length if constraints is not None else None
    if limit is not None and depth - 1 > limit:
        raise Refused("path-length", f"{name(certificate)} may have {limit} authorities below it")


def _check_issued(certificate: x509.Certificate, issuer: x509.Certificate, top: bool) -> None:
    if certificate.issuer != issuer.subject or not _identifiers_agree(certificate, issuer):
        reason = "root-not-trusted" if top else "issuer-mismatch"
        raise Refused(reason, f"{name(certificate)} was not issued by {name(issuer)}")
    try:
        key(issuer).verify(
            certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(SHA384())
        )
    except (InvalidSignature, ValueError):
        reason = "root-not-trusted" if top else "signature-invalid"
        detail = f"{name(certificate)} is not signed by the key of {name(issuer)}"
        raise Refused(reason, detail) from None


def _identifiers_agree(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    wanted = extension(certificate, x509.AuthorityKeyIdentifier)
    known = extension(issuer, x509.SubjectKeyIdentifier)
    if wanted is None or known is None or wanted.key_identifier is None:
        return True
    return wanted.key_identifier == known.digest
