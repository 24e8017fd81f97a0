"""XML that is signed as NVIDIA signs its RIMs, and no other: read safely, then checked.

One enveloped signature over the whole document: Reference URI="", c14n 1.0 or 1.1 (equal
where no `xml:` attribute stands), SHA-384, ECDSA P-384.
Source: W3C XMLDSig Core 1.1, RFC 6931 (algorithm names), RFC 4050 (r || s).
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import re

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from lxml import etree

from ..checks import Malformed
from . import chain as chains
from .refused import Refused

MAX_ITEMS = 20_000
DS = "{http://www.w3.org/2000/09/xmldsig#}"

_C14N = ("http://www.w3.org/TR/2001/REC-xml-c14n-20010315", "http://www.w3.org/2006/12/xml-c14n11")
_ENVELOPED = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"
_ECDSA_SHA384 = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384"
_SHA384 = "http://www.w3.org/2001/04/xmldsig-more#sha384"
_XML = "{http://www.w3.org/XML/1998/namespace}"
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")
_R_S = 96


class SignedXml:
    """A document with exactly one signature, a child of its root. Raises Malformed.

    `root` is the element that the signature covers, and the one to read from.
    `chain`: the certificates that came with it, the signer's first.
    """

    def __init__(self, data: bytes) -> None:
        self.root = _parse(data)
        signatures = [e for e in self.root.iter() if etree.QName(e).localname == "Signature"]
        if len(signatures) != 1 or signatures[0].getparent() is not self.root:
            raise _malformed("it has not exactly one signature at its top")
        self._signature = signatures[0]
        info, value, key_info = _children(
            self._signature, "SignedInfo", "SignatureValue", "KeyInfo"
        )
        self._info = info
        self._value = _bytes(value)
        method, algorithm, reference = _children(
            info, "CanonicalizationMethod", "SignatureMethod", "Reference"
        )
        _algorithm(method, *_C14N)
        _algorithm(algorithm, _ECDSA_SHA384)
        self._digest = _read_reference(reference)
        self.chain = _read_chain(key_info)

    def check(self) -> None:
        """Raises Refused unless the first certificate's key signed the whole document."""
        if hashlib.sha384(self._signed_bytes()).digest() != self._digest:
            raise Refused("digest-mismatch", "the document was changed after it was signed")
        r, s = (int.from_bytes(part) for part in (self._value[:48], self._value[48:]))
        try:
            if len(self._value) != _R_S:
                raise ValueError
            chains.key(self.chain[0]).verify(
                encode_dss_signature(r, s), _canonical(self._info), ec.ECDSA(SHA384())
            )
        except (InvalidSignature, ValueError):
            raise Refused("signature-invalid", "its signature is not its signer's") from None

    def _signed_bytes(self) -> bytes:
        """The document without the signature, which leaves the text after it in place."""
        root = copy.deepcopy(self.root)
        signature = root[self.root.index(self._signature)]
        before, tail = signature.getprevious(), signature.tail or ""
        root.remove(signature)
        if before is not None:
            before.tail = (before.tail or "") + tail
        else:
            root.text = (root.text or "") + tail
        return _canonical(root)


def _malformed(detail: str) -> Malformed:
    return Malformed(f"the document cannot be read: {detail}", "malformed")


def _parse(data: bytes) -> etree._Element:
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise _malformed("it has a document type or entities")
    if data.count(b"<") > MAX_ITEMS or data.count(b"=") > MAX_ITEMS:
        raise _malformed(f"it has over {MAX_ITEMS} elements or attributes")
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
    )
    try:
        data.decode("utf-8")
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError, LookupError):
        raise _malformed("it is not XML in UTF-8") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise _malformed("it has a document type")
    if root.getprevious() is not None or root.getnext() is not None:
        raise _malformed("something stands beside its root")
    for element in root.iter():
        if not isinstance(element.tag, str):
            raise _malformed("it has processing instructions or entities")
        if any(str(name).startswith(_XML) for name in element.attrib):
            raise _malformed("it has `xml:` attributes")
    return root


def _canonical(element: etree._Element) -> bytes:
    try:
        return bytes(etree.tostring(element, method="c14n", with_comments=False, with_tail=False))
    except etree.LxmlError:
        raise _malformed("it has no canonical form") from None


def _children(parent: etree._Element, *names: str) -> list[etree._Element]:
    found = list(parent)
    if [child.tag for child in found] != [DS + name for name in names]:
        raise _malformed(f"{etree.QName(parent).localname} does not hold {', '.join(names)}")
    return found


def _algorithm(element: etree._Element, *allowed: str) -> None:
    if element.get("Algorithm") not in allowed or len(element):
        raise _malformed(f"the algorithm of {etree.QName(element).localname} is not allowed")


def _read_reference(reference: etree._Element) -> bytes:
    if dict(reference.attrib) != {"URI": ""}:
        raise _malformed("the signature is not over the whole document")
    transforms, method, value = _children(reference, "Transforms", "DigestMethod", "DigestValue")
    steps = list(transforms)
    if not 1 <= len(steps) <= 2 or any(step.tag != DS + "Transform" for step in steps):
        raise _malformed("the signature's transforms are not allowed")
    _algorithm(steps[0], _ENVELOPED)
    if len(steps) == 2:
        _algorithm(steps[1], *_C14N)
    _algorithm(method, _SHA384)
    return _bytes(value)


def _read_chain(key_info: etree._Element) -> list[x509.Certificate]:
    (data,) = _children(key_info, "X509Data")
    found = list(data)
    if not 1 <= len(found) <= chains.MAX_CERTIFICATES:
        raise _malformed("it has no certificates or too many")
    if any(element.tag != DS + "X509Certificate" for element in found):
        raise _malformed("X509Data has more than certificates")
    return [chains.read(_bytes(element)) for element in found]


def _bytes(element: etree._Element) -> bytes:
    text = element.text or ""
    if len(element) or not _BASE64.match(text):
        raise _malformed(f"{etree.QName(element).localname} is not base64")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise _malformed(f"{etree.QName(element).localname} is not base64") from None
