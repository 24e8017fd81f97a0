"""The signature of a report: ECDSA P-384 with SHA-384 over its first 672 bytes."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from .certificate import Certificate
from .report import Report


def is_signed_by(report: Report, leaf: Certificate) -> bool:
    """Whether the key of `leaf` signed `report`."""
    key = leaf.report_key()
    if key is None:
        return False
    try:
        key.verify(encode_dss_signature(report.r, report.s), report.signed, ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True
