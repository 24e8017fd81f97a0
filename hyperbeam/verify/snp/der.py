"""As much of DER as AMD's certificates need, read strictly. Raises ValueError throughout.

Source: ITU-T X.690; RFC 5280 section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BOOLEAN, INTEGER, BIT_STRING, OCTETS, OID = 0x01, 0x02, 0x03, 0x04, 0x06
SEQUENCE, SET, IA5 = 0x30, 0x31, 0x16
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_UNIQUE_IDS = (0x81, 0x82, 0xA1, 0xA2)
_V3 = b"\x02\x01\x02"
_TRUE = b"\xff"
_COMMON_NAME = bytes.fromhex("550403")


@dataclass(frozen=True, slots=True)
class Extension:
    """`value` is what stands in the extension's OCTET STRING."""

    critical: bool
    value: bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """`tbs`: the signed part with its head. `serial`: where that number's content stands.
    `algorithm`: the OID's content of the signature's algorithm.

    `issuer` and `subject` are names in DER, `extensions` by their OID's content.
    """

    tbs: bytes
    serial: slice
    algorithm: bytes
    issuer: bytes
    subject: bytes
    extensions: dict[bytes, Extension]


def certificate(der: bytes) -> Parts:
    """Take an X.509 v3 certificate apart."""
    whole = element(der, 0, SEQUENCE)
    if whole.stop != len(der):
        raise ValueError("bytes after the certificate")
    signed = element(der, whole.start, SEQUENCE)
    version = element(der, signed.start, _VERSION)
    if der[version] != _V3:
        raise ValueError("it is not of version 3")
    serial = element(der, version.stop, INTEGER)
    algorithm = element(der, serial.stop, SEQUENCE)
    issuer = element(der, algorithm.stop, SEQUENCE)
    validity = element(der, issuer.stop, SEQUENCE)
    subject = element(der, validity.stop, SEQUENCE)
    key = element(der, subject.stop, SEQUENCE)
    if der[element(der, signed.stop, SEQUENCE)] != der[algorithm]:
        raise ValueError("two signature algorithms")
    return Parts(
        tbs=der[whole.start : signed.stop],
        serial=serial,
        algorithm=der[element(der, algorithm.start, OID)],
        issuer=der[issuer],
        subject=der[subject],
        extensions=_extensions(der[key.stop : signed.stop]),
    )


def common_name(name: bytes) -> str:
    """The common name in a DER name; "" where there is not exactly one that can be shown."""
    found = []
    for tag, relative in elements(name):
        for inner, attribute in elements(relative) if tag == SET else ():
            parts = list(elements(attribute)) if inner == SEQUENCE else []
            if len(parts) == 2 and parts[0] == (OID, _COMMON_NAME):
                found.append(parts[1][1])
    text = found[0][:100].decode("utf-8", "replace") if len(found) == 1 else ""
    return text if text.isprintable() else ""


def only(value: bytes, tag: int) -> bytes:
    """The content of `value`, which is one element of `tag`; b"" where it is not."""
    try:
        inner = element(value, 0, tag)
    except ValueError:
        return b""
    return value[inner] if inner.stop == len(value) else b""


def integer(value: bytes) -> int | None:
    """The number in one INTEGER; None where there is none."""
    content = only(value, INTEGER)
    return int.from_bytes(content, signed=True) if content else None


def is_authority(value: bytes) -> bool:
    """Whether basic constraints say that certificates may be issued."""
    return only(value, SEQUENCE)[:3] == bytes([BOOLEAN, 1]) + _TRUE


def may_sign_certificates(value: bytes) -> bool:
    """Whether a key usage has keyCertSign, its sixth bit."""
    bits = only(value, BIT_STRING)
    return len(bits) >= 2 and bool(bits[1] & 0b100)


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in `data`."""
    at = 0
    while at < len(data):
        content = element(data, at, data[at])
        yield data[at], data[content]
        at = content.stop


def element(data: bytes, at: int, tag: int) -> slice:
    """Where the content of the element at `at` stands, which has to be of `tag`."""
    if len(data) < at + 2 or data[at] != tag:
        raise ValueError("another element was expected")
    length, start = data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 0 < count <= 3:
            raise ValueError("a length that is not definite, or too large")
        length = int.from_bytes(data[start : start + count])
        start += count
    if start + length > len(data):
        raise ValueError("an element is longer than what holds it")
    return slice(start, start + length)


def _extensions(rest: bytes) -> dict[bytes, Extension]:
    found: dict[bytes, Extension] = {}
    for tag, content in elements(rest):
        if tag in _UNIQUE_IDS:
            continue
        if tag != _EXTENSIONS:
            raise ValueError("an unknown part")
        for inner, extension in elements(only(content, SEQUENCE)):
            parts = list(elements(extension)) if inner == SEQUENCE else []
            tags = [part for part, _ in parts]
            if tags not in ([OID, OCTETS], [OID, BOOLEAN, OCTETS]):
                raise ValueError("an extension of another shape")
            name = parts[0][1]
            if name in found:
                raise ValueError("an extension twice")
            critical = len(parts) == 3 and parts[1][1] == _TRUE
            found[name] = Extension(critical, parts[-1][1])
    return found
