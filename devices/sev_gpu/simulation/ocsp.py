"""Answers to who asks whether a simulated certificate was revoked (RFC 6960, RFC 9654)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import ocsp

from . import certificates as certs
from .certificates import Issued

LIFE = timedelta(hours=24)

Status = Literal["good", "revoked", "hold", "unknown"]

_STATUSES = {
    "good": ocsp.OCSPCertStatus.GOOD,
    "revoked": ocsp.OCSPCertStatus.REVOKED,
    "hold": ocsp.OCSPCertStatus.REVOKED,
    "unknown": ocsp.OCSPCertStatus.UNKNOWN,
}
_REASONS = {
    "revoked": x509.ReasonFlags.key_compromise,
    "hold": x509.ReasonFlags.certificate_hold,
}


def read(request: bytes) -> ocsp.OCSPRequest:
    """The request in DER. Raises ValueError where it is none."""
    return ocsp.load_der_ocsp_request(request)


def answer(
    request: bytes,
    issuers: Iterable[Issued],
    status: Status = "good",
    *,
    at: datetime | None = None,
    nonce: bytes | None = None,
    signer: Issued | None = None,
) -> bytes:
    """The answer in DER, by a responder that the certificate's issuer named.

    `at`: when it was made (it stands for LIFE), now where None. `nonce` and `signer` take the
    place of the request's nonce and of that responder. Who asks about another issuer is told
    `unauthorized`.
    """
    asked = read(request)
    at = at or datetime.now(UTC)
    issuer = next((one for one in issuers if _is_issuer(one, asked)), None)
    if issuer is None:
        return _unsuccessful(ocsp.OCSPResponseStatus.UNAUTHORIZED)
    revoked = status in _REASONS
    by = signer or certs.responder(issuer)
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response_by_hash(
            issuer_name_hash=asked.issuer_name_hash,
            issuer_key_hash=asked.issuer_key_hash,
            serial_number=asked.serial_number,
            algorithm=asked.hash_algorithm,
            cert_status=_STATUSES[status],
            this_update=at,
            next_update=at + LIFE,
            revocation_time=at if revoked else None,
            revocation_reason=_REASONS.get(status),
        )
        .responder_id(ocsp.OCSPResponderEncoding.HASH, by.certificate)
        .certificates([by.certificate])
    )
    given = nonce if nonce is not None else _nonce(asked)
    if given:
        builder = builder.add_extension(x509.OCSPNonce(given), critical=False)
    return builder.sign(by.key, SHA384()).public_bytes(Encoding.DER)


def _unsuccessful(status: ocsp.OCSPResponseStatus) -> bytes:
    return ocsp.OCSPResponseBuilder.build_unsuccessful(status).public_bytes(Encoding.DER)


def _nonce(request: ocsp.OCSPRequest) -> bytes:
    try:
        return request.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
    except x509.ExtensionNotFound:
        return b""


def _is_issuer(issuer: Issued, asked: ocsp.OCSPRequest) -> bool:
    point = issuer.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return hashlib.new(asked.hash_algorithm.name, point).digest() == asked.issuer_key_hash
