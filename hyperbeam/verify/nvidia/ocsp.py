"""Asking whether certificates were revoked, and believing only who may say so.

Source: RFC 6960 (OCSP), RFC 9654 (nonce); the certificates that NVIDIA's own verifier asks
for: not a GPU's leaf, which the GPU issued itself, nor roots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from . import chain as chains
from .cache import LONGEST
from .fetching import Fetcher, Question
from .policy import Ocsp
from .refused import Refused
from .resources import OCSP_SERVICE, Resources

ALLOWANCE = timedelta(minutes=5)
MAX_SIGNERS = 3
REQUEST_TYPE = "application/ocsp-request"
GOOD = "good"

Answer = Refused | None
"""None: good. Else why not: `certificate-revoked`, `certificate-hold`, or `ocsp-...`."""


@dataclass(frozen=True, slots=True)
class _Asked:
    certificate: x509.Certificate
    issuer: x509.Certificate
    request: ocsp.OCSPRequest
    nonce: bytes
    url: str


class Revocation:
    """Gets the status of certificates; each only once, all at the same time."""

    def __init__(self, policy: Ocsp, resources: Resources, now: datetime) -> None:
        self._policy = policy
        self._resources = resources
        self._now = now

    def ask(
        self, pairs: Sequence[tuple[x509.Certificate, x509.Certificate]], fetcher: Fetcher
    ) -> dict[str, Answer]:
        """The answer for each (certificate, issuer), by the certificate's fingerprint."""
        answers: dict[str, Answer] = {}
        asked: dict[str, _Asked] = {}
        for certificate, issuer in pairs:
            id = chains.fingerprint(certificate)
            if id in answers or id in asked:
                continue
            if self._policy == "cached" and self._known(certificate, issuer):
                answers[id] = None
            else:
                asked[id] = self._prepare(certificate, issuer)
        questions = [
            Question(one.url, one.request.public_bytes(Encoding.DER), REQUEST_TYPE)
            for one in asked.values()
        ]
        replies = fetcher.all(questions)
        for (id, one), reply in zip(asked.items(), replies, strict=True):
            answers[id] = self._judge(one, reply)
        return answers

    def _prepare(self, certificate: x509.Certificate, issuer: x509.Certificate) -> _Asked:
        nonce = os.urandom(32)
        request = (
            ocsp.OCSPRequestBuilder()
            .add_certificate(certificate, issuer, SHA384())
            .add_extension(x509.OCSPNonce(nonce), critical=False)
            .build()
        )
        url = self._resources.ocsp_url or _own_url(certificate) or OCSP_SERVICE
        return _Asked(certificate, issuer, request, nonce, url)

    def _judge(self, asked: _Asked, reply: bytes | Refused) -> Answer:
        if isinstance(reply, Refused):
            return Refused(f"ocsp-{reply.reason}", reply.detail)
        try:
            until = _check(asked, reply, self._now)
        except Refused as refused:
            self._resources.cache.drop(_key(asked.certificate, asked.issuer))
            return refused
        if until is not None:
            key = _key(asked.certificate, asked.issuer)
            self._resources.cache.put(key, GOOD, min(until, self._now + LONGEST))
        return None

    def _known(self, certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
        return bool(self._resources.cache.get(_key(certificate, issuer), self._now) == GOOD)


def _key(certificate: x509.Certificate, issuer: x509.Certificate) -> tuple[str, ...]:
    return ("ocsp", chains.fingerprint(certificate), chains.fingerprint(issuer))


def _own_url(certificate: x509.Certificate) -> str:
    access = chains.extension(certificate, x509.AuthorityInformationAccess)
    for description in access or ():
        place = description.access_location
        if description.access_method == AuthorityInformationAccessOID.OCSP and isinstance(
            place, x509.UniformResourceIdentifier
        ):
            return place.value if place.value.startswith(("http://", "https://")) else ""
    return ""


def _check(asked: _Asked, reply: bytes, now: datetime) -> datetime | None:
    """Until when a good answer stands, None for this once. Raises Refused for any other."""
    who = chains.name(asked.certificate)
    try:
        response = ocsp.load_der_ocsp_response(reply)
        if response.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            said = response.response_status.name.lower()
            raise Refused("ocsp-refused", f"the responder answered {said} for {who}")
        _check_certificate(asked, response)
        _check_signer(asked.issuer, response, now)
        _check_nonce(asked.nonce, response)
        until = _check_times(response, now)
        status, reason = response.certificate_status, response.revocation_reason
    except (ValueError, TypeError, x509.DuplicateExtension):
        raise Refused("ocsp-malformed", f"the answer for {who} cannot be read") from None
    if status is ocsp.OCSPCertStatus.GOOD:
        return until
    if status is not ocsp.OCSPCertStatus.REVOKED:
        raise Refused("ocsp-unknown", f"the responder does not know {who}")
    if reason is x509.ReasonFlags.certificate_hold:
        raise Refused("certificate-hold", f"{who} is revoked for now (certificate hold)")
    why = f" ({reason.value})" if reason is not None else ""
    raise Refused("certificate-revoked", f"{who} is revoked{why}")


def _check_certificate(asked: _Asked, response: ocsp.OCSPResponse) -> None:
    request = asked.request
    said = (response.serial_number, response.issuer_name_hash, response.issuer_key_hash)
    wanted = (request.serial_number, request.issuer_name_hash, request.issuer_key_hash)
    if said != wanted or not isinstance(response.hash_algorithm, SHA384):
        raise Refused("ocsp-wrong-certificate", "the answer is about another certificate")


def _check_signer(issuer: x509.Certificate, response: ocsp.OCSPResponse, now: datetime) -> None:
    """The issuer itself signed, or who it gave a certificate for that and nothing more."""
    if response.signature_algorithm_oid != x509.SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        raise Refused("ocsp-signer", "the answer is not signed by ECDSA with SHA-384")
    delegates = response.certificates
    if len(delegates) > MAX_SIGNERS:
        raise Refused("ocsp-signer", "the answer brings too many certificates")
    for signer in (issuer, *delegates):
        if not _is_named(signer, response) or not _signed(signer, response):
            continue
        if signer == issuer:
            return
        _check_delegate(signer, issuer, now)
        return
    raise Refused("ocsp-signer", "the answer is not signed by who it names")


def _is_named(signer: x509.Certificate, response: ocsp.OCSPResponse) -> bool:
    if response.responder_name is not None:
        return response.responder_name == signer.subject
    bits = x509.SubjectKeyIdentifier.from_public_key(chains.key(signer)).digest
    return response.responder_key_hash == bits


def _signed(signer: x509.Certificate, response: ocsp.OCSPResponse) -> bool:
    try:
        chains.key(signer).verify(
            response.signature, response.tbs_response_bytes, ec.ECDSA(SHA384())
        )
    except (InvalidSignature, Refused):
        return False
    return True


def _check_delegate(signer: x509.Certificate, issuer: x509.Certificate, now: datetime) -> None:
    usage = chains.extension(signer, x509.ExtendedKeyUsage)
    if usage is None or ExtendedKeyUsageOID.OCSP_SIGNING not in usage:
        raise Refused("ocsp-signer", f"{chains.name(signer)} may not sign OCSP answers")
    try:
        chains.check([signer, issuer])
        chains.check_dates([signer], now)
    except Refused as refused:
        raise Refused("ocsp-signer", refused.detail) from None


def _check_nonce(nonce: bytes, response: ocsp.OCSPResponse) -> None:
    try:
        found = response.extensions.get_extension_for_class(x509.OCSPNonce).value.nonce
    except x509.ExtensionNotFound:
        found = b""
    if found != nonce:
        raise Refused("ocsp-nonce-mismatch", "the answer is not to the question that was asked")


def _check_times(response: ocsp.OCSPResponse, now: datetime) -> datetime | None:
    begins, until = response.this_update_utc, response.next_update_utc
    if begins > now + ALLOWANCE:
        raise Refused("ocsp-stale", "the answer is from the future")
    if now > (until or begins + LONGEST) + ALLOWANCE:
        raise Refused("ocsp-stale", "the answer has ended")
    return until
