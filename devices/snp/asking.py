"""What clients may post to snp@1.0/verify, read strictly."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from hyperbeam.verify import shape
from hyperbeam.verify.challenge import quote
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.reading import read_object
from hyperbeam.verify.snp import report as reports
from hyperbeam.verify.snp.certificate import MAX_CERTIFICATES, MAX_SIZE

MAX_BODY = 1024 * 1024
_KEYS = ("report", "certificates", "report_data", "quote", "policy")
_QUOTE = shape.record(
    keyset=shape.digest, nonce=shape.optional(shape.digest), gpu=shape.optional(shape.digest)
)
_REPORT_DATA = shape.hexadecimal(reports.REPORT_DATA_SIZE)
_CERTIFICATES = shape.listing(shape.text(2 * MAX_SIZE * MAX_CERTIFICATES), 0, MAX_CERTIFICATES)
_MALFORMED = "request-malformed"


@dataclass(frozen=True, slots=True)
class Asked:
    """`report_data`: what the caller expects, None where nothing is said. `policy`: or None."""

    report: bytes
    certificates: list[bytes]
    report_data: bytes | None
    policy: Any


def read(body: bytes) -> Asked:
    """Read a body. Raises Malformed: `request-malformed`, or `evidence-conflict` where
    `report_data` and `quote` do not agree."""
    if len(body) > MAX_BODY:
        raise Malformed(f"the body is over {MAX_BODY} bytes", _MALFORMED)
    value = read_object(body, "the body", _MALFORMED)
    for name in value:
        if name not in _KEYS:
            known = ", ".join(_KEYS)
            raise Malformed(f"the body has {name[:64]!r}; it takes {known}", _MALFORMED)
    if "report" not in value:
        raise Malformed("the body has no 'report': the report in base64", _MALFORMED)
    shape.check(value["report"], shape.text(4 * reports.SIZE), "report", _MALFORMED)
    certificates = value.get("certificates", [])
    shape.check(certificates, _CERTIFICATES, "certificates", _MALFORMED)
    return Asked(
        report=_base64(value["report"], "report"),
        certificates=[_certificate(item, number) for number, item in enumerate(certificates)],
        report_data=_expected(value),
        policy=value.get("policy"),
    )


def _expected(value: dict[str, Any]) -> bytes | None:
    said = value.get("report_data")
    bound = value.get("quote")
    if said is not None:
        shape.check(said, _REPORT_DATA, "report_data", _MALFORMED)
    if bound is not None:
        shape.check(bound, _QUOTE, "quote", _MALFORMED)
        made = quote(bound["keyset"], bound["nonce"], bound["gpu"])
        if said is not None and bytes.fromhex(said) != made:
            raise Malformed("report_data is not what the quote comes to", "evidence-conflict")
        return made
    return None if said is None else bytes.fromhex(said)


def _certificate(item: str, number: int) -> bytes:
    if item.lstrip().startswith("-----"):
        return item.encode("utf-8", "replace")
    return _base64(item, f"certificates[{number}]")


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed(f"{what} is not base64", _MALFORMED) from None
