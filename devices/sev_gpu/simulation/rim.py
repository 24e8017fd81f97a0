"""Signed reference manifests (RIMs) of the shape of NVIDIA's, for firmware that does not exist.

Source: ISO/IEC 19770-2 (SWID tags), W3C XMLDSig Core 1.1; the published samples.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

from .certificates import Issued
from .report import BLOCKS, DIGEST_BYTES, raw_signature

_SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
_SHA384 = "http://www.w3.org/2001/04/xmlenc#sha384"
_TCG = (
    "https://trustedcomputinggroup.org/resource/"
    "tcg-reference-integrity-manifest-rim-information-model/"
)
_DS = "http://www.w3.org/2000/09/xmldsig#"
_C14N = "http://www.w3.org/2006/12/xml-c14n11"
_MORE = "http://www.w3.org/2001/04/xmldsig-more"
_MAKER = "SIMULATED"


def build(
    version: str, product: str, golden: Mapping[int, Sequence[bytes]], chain: Sequence[Issued]
) -> bytes:
    """A manifest of `golden` (index from 0 to the digests allowed there), signed by `chain[0]`.

    `version`: of the driver or VBIOS. `product`: the chip. `chain`: signer first, root last.
    """
    return sign(document(version, product, golden), chain)


def document(version: str, product: str, golden: Mapping[int, Sequence[bytes]]) -> str:
    """The manifest without its signature."""
    tag = hashlib.sha384(f"{_MAKER} {product} {version}".encode()).hexdigest()
    resources = "\n".join(
        _resource(index, golden.get(index, [bytes(DIGEST_BYTES)]), index in golden)
        for index in range(BLOCKS)
    )
    return f"""\
<SoftwareIdentity xmlns="{_SWID}" xmlns:ns0="{_SWID}" xmlns:ns2="{_SHA384}" corpus="false" \
name={quoteattr(f"{_MAKER} {product}")} patch="false" supplemental="false" tagId="{tag}" \
version="1.0" tagVersion="0">
    <ns0:Entity name="{_MAKER}" role="softwareCreator tagCreator"/>
    <ns0:Meta xmlns:ns1="{_TCG}" colloquialVersion={quoteattr(version)} edition="GPU" \
product={quoteattr(product)} revision="r1" PayloadType="direct" ns1:BindingSpec="RIMIM" \
ns1:BindingSpecVersion="1.01" ns1:PlatformManufacturerId="5703" \
ns1:PlatformManufacturerStr="{_MAKER}" ns1:PlatformModel={quoteattr(product)} \
ns1:FirmwareManufacturer="{_MAKER}" ns1:FirmwareManufacturerId="5703"/>
    <ns0:Payload xmlns:SHA384="{_SHA384}">
{resources}
    </ns0:Payload>
</SoftwareIdentity>"""


def sign(unsigned: str, chain: Sequence[Issued]) -> bytes:
    """`unsigned` with an enveloped signature by `chain[0]` as the last child of its root."""
    from lxml import etree

    root = etree.fromstring(unsigned)
    digest = hashlib.sha384(etree.tostring(root, method="c14n")).digest()
    signature = etree.fromstring(_signature(digest, chain))
    root.append(signature)
    info, value = signature[0], signature[1]
    signed = etree.tostring(info, method="c14n", with_tail=False)
    value.text = base64.b64encode(raw_signature(chain[0].key, signed)).decode()
    return bytes(etree.tostring(root))


def _resource(index: int, values: Sequence[bytes], active: bool) -> str:
    hashes = " ".join(f'ns2:Hash{at}="{value.hex()}"' for at, value in enumerate(values))
    return (
        f'        <ns0:Resource type="Measurement" index="{index}" active="{active}" '
        f'alternatives="{len(values)}" {hashes} name="Measurement_{index}" '
        f'size="{DIGEST_BYTES}"/>'
    )


def _signature(digest: bytes, chain: Sequence[Issued]) -> str:
    certificates = "".join(
        f"<ds:X509Certificate>{base64.encodebytes(one.der).decode()}</ds:X509Certificate>"
        for one in chain
    )
    return (
        f'<ds:Signature xmlns:ds="{_DS}"><ds:SignedInfo>'
        f'<ds:CanonicalizationMethod Algorithm="{_C14N}"/>'
        f'<ds:SignatureMethod Algorithm="{_MORE}#ecdsa-sha384"/>'
        '<ds:Reference URI=""><ds:Transforms>'
        f'<ds:Transform Algorithm="{_DS}enveloped-signature"/>'
        f'<ds:Transform Algorithm="{_C14N}"/></ds:Transforms>'
        f'<ds:DigestMethod Algorithm="{_MORE}#sha384"/>'
        f"<ds:DigestValue>{base64.b64encode(digest).decode()}</ds:DigestValue>"
        "</ds:Reference></ds:SignedInfo><ds:SignatureValue></ds:SignatureValue>"
        f"<ds:KeyInfo><ds:X509Data>{certificates}</ds:X509Data></ds:KeyInfo></ds:Signature>"
    )
