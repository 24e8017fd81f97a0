"""RIMs: NVIDIA's signed lists of golden measurements, one for a driver, one for a VBIOS.

Source: ISO/IEC 19770-2 (SWID tags), TCG Reference Integrity Manifest; the samples of
nv-local-gpu-verifier. Golden index i is SPDM block i + 1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from lxml import etree

from ..checks import Malformed
from . import chain as chains
from .report import Report
from .xmldsig import SignedXml

MAX_RIM = 4 * 1024 * 1024
MAX_ALTERNATIVES = 64

_SWID = "{http://standards.iso.org/iso/19770/-2/2015/schema.xsd}"
_HASH = "{http://www.w3.org/2001/04/xmlenc#sha384}Hash"
_NUMBER = re.compile(r"[0-9]{1,4}\Z")
_DIGEST = re.compile(r"[0-9a-fA-F]{96}\Z")
_VERSION = re.compile(r"[0-9A-Za-z.]{1,64}\Z")
_ACTIVE = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class Rim:
    """A RIM whose signature and chain hold; whether its dates do is asked at each use.

    `version`: the driver or VBIOS version it is for. `golden`: SPDM block index to the
    values allowed there. `chain` ends with the trusted root. `sha256`: of the file, hex.
    """

    version: str
    product: str
    golden: Mapping[int, frozenset[bytes]]
    chain: list[x509.Certificate]
    sha256: str


def driver_id(report: Report, arch: str) -> str:
    """The name of the driver's RIM in the RIM service."""
    if arch == "HOPPER":
        return f"NV_GPU_DRIVER_GH100_{report.driver}"
    return f"NV_GPU_CC_DRIVER_{report.chip or 'GB100'}_{report.driver}"


def vbios_id(report: Report) -> str:
    """The name of the VBIOS's RIM in the RIM service."""
    parts = (report.project, report.project_sku, report.chip_sku, report.vbios.replace(".", ""))
    return "NV_GPU_VBIOS_" + "_".join(parts).upper()


def version_of(data: bytes) -> str:
    """The version that an unchecked RIM file says it is for. Raises Malformed."""
    return _meta(SignedXml(data).root)[0]


def load(data: bytes, root: x509.Certificate) -> Rim:
    """Read and check a RIM but for its dates. Raises Malformed or Refused."""
    if len(data) > MAX_RIM:
        raise Malformed(f"the RIM is over {MAX_RIM} bytes", "malformed")
    document = SignedXml(data)
    chain = chains.complete(document.chain, root)
    chains.check(chain)
    document.check()
    version, product = _meta(document.root)
    return Rim(
        version=version,
        product=product,
        golden=_golden(document.root),
        chain=chain,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _bad(detail: str) -> Malformed:
    return Malformed(f"the RIM cannot be read: {detail}", "malformed")


def _only(root: etree._Element, name: str) -> etree._Element:
    found = [e for e in root.iter() if etree.QName(e).localname == name]
    if len(found) != 1 or found[0].tag != _SWID + name or found[0].getparent() is not root:
        raise _bad(f"it has not exactly one {name} below its root")
    return found[0]


def _meta(root: etree._Element) -> tuple[str, str]:
    tags = [e for e in root.iter() if etree.QName(e).localname == "SoftwareIdentity"]
    if tags != [root] or root.tag != _SWID + "SoftwareIdentity":
        raise _bad("it is not one SoftwareIdentity")
    meta = _only(root, "Meta")
    version = meta.get("colloquialVersion", "")
    if not _VERSION.match(version):
        raise _bad("it does not say which version it is for")
    return version, meta.get("product", "")[:64]


def _golden(root: etree._Element) -> dict[int, frozenset[bytes]]:
    found: dict[int, frozenset[bytes]] = {}
    seen: set[int] = set()
    for resource in _only(root, "Payload"):
        if resource.tag != _SWID + "Resource" or resource.get("type") != "Measurement":
            raise _bad("its payload has more than measurements")
        index = _number(resource, "index")
        if index in seen or index > 254:
            raise _bad(f"measurement {index} stands twice or is past 254")
        seen.add(index)
        values = _values(resource, index)
        active = _ACTIVE.get(resource.get("active", ""))
        if active is None:
            raise _bad(f"measurement {index} is neither active nor not")
        if active:
            found[index + 1] = values
    return found


def _values(resource: etree._Element, index: int) -> frozenset[bytes]:
    count = _number(resource, "alternatives")
    names = [f"{_HASH}{number}" for number in range(min(count, MAX_ALTERNATIVES))]
    found = {name for name in resource.attrib if str(name).startswith(_HASH)}
    if not 1 <= count <= MAX_ALTERNATIVES or found != set(names):
        raise _bad(f"measurement {index} has other values than it counts")
    values = [resource.attrib[name] for name in names]
    if _number(resource, "size") != 48 or not all(_DIGEST.match(value) for value in values):
        raise _bad(f"measurement {index} is not a SHA-384 digest")
    return frozenset(bytes.fromhex(value) for value in values)


def _number(resource: etree._Element, name: str) -> int:
    text = resource.get(name, "")
    if not _NUMBER.match(text):
        raise _bad(f"a measurement's {name} is not a number")
    return int(text)
