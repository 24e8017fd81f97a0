"""Attestation reports byte by byte as an H100 (driver 550.90.07) writes them.

Source: DMTF DSP0274 1.1 (GET_MEASUREMENTS); the published samples for order, lengths and
padding of the opaque fields.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

BLOCKS = 64
DIGEST_BYTES = 48

_REQUEST = bytes.fromhex("11e001ff")
_RESPONSE = bytes.fromhex("11600000")


def build(
    key: ec.EllipticCurvePrivateKey,
    nonce: bytes,
    measurements: Mapping[int, bytes],
    opaque: Mapping[int, bytes],
) -> bytes:
    """A signed report over `nonce` (32 bytes).

    `measurements`: SPDM block (from 1) to its digest. `opaque`: field id to value, in the
    order in which they stand in the report.
    """
    record = b"".join(_block(index, value) for index, value in measurements.items())
    fields = b"".join(_field(kind, value) for kind, value in opaque.items())
    request = _REQUEST + nonce + b"\0"
    response = b"".join(
        (
            _RESPONSE,
            bytes([len(measurements)]),
            len(record).to_bytes(3, "little"),
            record,
            secrets.token_bytes(32),
            len(fields).to_bytes(2, "little"),
            fields,
        )
    )
    return request + response + raw_signature(key, request + response)


def raw_signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """ECDSA P-384 with SHA-384 as r || s, 96 bytes big-endian."""
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(SHA384())))
    return r.to_bytes(48) + s.to_bytes(48)


def _block(index: int, value: bytes) -> bytes:
    size = len(value).to_bytes(2, "little")
    whole = (len(value) + 3).to_bytes(2, "little")
    return bytes([index, 1]) + whole + b"\1" + size + value


def _field(kind: int, value: bytes) -> bytes:
    return kind.to_bytes(2, "little") + len(value).to_bytes(2, "little") + value
