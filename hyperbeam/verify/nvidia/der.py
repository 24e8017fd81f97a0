"""The firmware id (FWID) in a GPU's leaf certificate: two DICE extensions in DER.

Source: TCG DICE Attestation Architecture, sections on CompositeDeviceID and TcbInfo.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509

COMPOSITE_DEVICE_ID = x509.ObjectIdentifier("2.23.133.5.4.1")
TCB_INFO = x509.ObjectIdentifier("2.23.133.5.4.1.1")

_SEQUENCE, _FWIDS = 0x30, 0xA6
_SHA384 = bytes.fromhex("0609608648016503040202")
_SHA384_DIGEST = _SHA384 + b"\x04\x30"
_FWID = len(_SHA384_DIGEST) + 48


def firmware_id(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> bytes:
    """The 48 bytes of the (first) FWID in the extension `oid`, or b"" where there is none."""
    try:
        found = certificate.extensions.get_extension_for_oid(oid).value
    except x509.ExtensionNotFound:
        return b""
    if not isinstance(found, x509.UnrecognizedExtension):
        return b""
    try:
        return first_of_tcb_info(found.value) if oid == TCB_INFO else _digest(found.value[-_FWID:])
    except ValueError:
        return b""


def _digest(value: bytes) -> bytes:
    if not value.startswith(_SHA384_DIGEST) or len(value) != _FWID:
        return b""
    return value[len(_SHA384_DIGEST) :]


def first_of_tcb_info(value: bytes) -> bytes:
    """The first FWID in a DiceTcbInfo. Raises ValueError for what is no DER."""
    outer = list(_elements(value))
    if len(outer) != 1 or outer[0][0] != _SEQUENCE:
        return b""
    for tag, content in _elements(outer[0][1]):
        if tag == _FWIDS:
            first_tag, first = next(_elements(content), (0, b""))
            return _digest(first) if first_tag == _SEQUENCE else b""
    return b""


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER element in `data`. Raises ValueError where they do not fit."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("an element ends within its head")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            if not 0 < count <= 3 or at + count > len(data):
                raise ValueError("an element has no definite length")
            length = int.from_bytes(data[at : at + count])
            at += count
        if at + length > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[at : at + length]
        at += length
