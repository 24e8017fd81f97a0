"""The attestation report of an NVIDIA GPU: an SPDM 1.1 GET_MEASUREMENTS exchange, signed.

Request of 37 bytes, then the response: measurement blocks, the GPU's nonce, opaque fields,
and an ECDSA P-384 signature (r || s, big-endian) over everything before it.
Source: DMTF DSP0274 1.1; the opaque fields as nv-local-gpu-verifier 2.7 reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from ..checks import Malformed

SIGNATURE_BYTES = 96
REQUEST_BYTES = 37
DRIVER_VERSION, VBIOS_VERSION, NVDEC0 = 3, 6, 11
CHIP_SKU, PROJECT, PROJECT_SKU, FWID = 15, 17, 18, 20
COUNTS, PPCIE, SWITCHES, CHIP, FEATURE = 12, 21, 22, 35, 36
ENABLED, DISABLED = 0xAA, 0x55
MODES = ("SPT", "MPT", "PPCIE")

_ITEM_BYTES = {COUNTS: 4, SWITCHES: 8}
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was read, not yet believed.

    `measurements`: SPDM block index to value. `driver` like `550.90.07`, `vbios` like
    `96.00.9F.00.01`. `fwid`: 48 bytes, or b"" where the GPU reports none. `chip`: as
    `GB100`, or "" (Hopper names none). `mode`: one of MODES. `video_decoder`: whether
    NVDEC0 is on, which is when block 36 (golden value 35) means anything.
    """

    nonce: bytes
    measurements: Mapping[int, bytes]
    opaque: Mapping[int, bytes]
    driver: str
    vbios: str
    project: str
    project_sku: str
    chip_sku: str
    chip: str
    fwid: bytes
    mode: str
    video_decoder: bool
    signed: bytes
    signature: bytes

    def signed_by(self, key: ec.EllipticCurvePublicKey) -> bool:
        """Whether `key` made the signature over `signed`."""
        half = SIGNATURE_BYTES // 2
        r, s = (int.from_bytes(part) for part in (self.signature[:half], self.signature[half:]))
        try:
            key.verify(encode_dss_signature(r, s), self.signed, ec.ECDSA(SHA384()))
        except (InvalidSignature, ValueError):
            return False
        return True


class _Reader:
    """Takes bytes in order; what runs out is a truncated report."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int, what: str) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise Malformed(f"the report ends within {what}", "report-truncated")
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self, count: int, what: str) -> int:
        return int.from_bytes(self.take(count, what), "little")

    def left(self) -> int:
        return len(self._data) - self._at


def parse(data: bytes) -> Report:
    """Read a report. Raises Malformed for anything that is not exactly one."""
    reader = _Reader(data)
    request = reader.take(REQUEST_BYTES, "the request")
    if request[:4] != b"\x11\xe0\x01\xff":
        _bad("it does not start with an SPDM 1.1 request for all signed measurements", "request")
    header = reader.take(4, "the response's header")
    if header[:2] != b"\x11\x60":
        _bad("the response is not SPDM 1.1 MEASUREMENTS", "response")
    if request[36] > 7 or header[3] & 0x0F != request[36]:
        _bad("request and response name different certificate slots", "slot")
    blocks = reader.number(1, "the response's header")
    record = reader.take(reader.number(3, "the measurement record"), "the measurement record")
    measurements = _measurements(record, blocks)
    reader.take(32, "the GPU's nonce")
    opaque = _opaque(reader.take(reader.number(2, "the opaque data"), "the opaque data"))
    signature = reader.take(SIGNATURE_BYTES, "the signature")
    if reader.left():
        _bad(f"{reader.left()} bytes follow the signature", "length")
    return Report(
        nonce=request[4:36],
        measurements=measurements,
        opaque=opaque,
        driver=_text(opaque, DRIVER_VERSION, _VERSION, "driver version"),
        vbios=_vbios(opaque.get(VBIOS_VERSION, b"")),
        project=_text(opaque, PROJECT, _NAME, "project"),
        project_sku=_text(opaque, PROJECT_SKU, _NAME, "project SKU"),
        chip_sku=_text(opaque, CHIP_SKU, _NAME, "chip SKU"),
        chip=_text(opaque, CHIP, _NAME, "chip").upper() if CHIP in opaque else "",
        fwid=_fwid(opaque.get(FWID, b"")),
        mode=_mode(opaque),
        video_decoder=_switch(opaque, NVDEC0, "NVDEC0 status"),
        signed=data[:-SIGNATURE_BYTES],
        signature=signature,
    )


def _bad(detail: str, part: str) -> NoReturn:
    raise Malformed(f"the report cannot be read: {detail}", f"report-{part}")


def _measurements(record: bytes, blocks: int) -> dict[int, bytes]:
    if not blocks:
        _bad("it has no measurement", "measurements")
    reader = _Reader(record)
    found: dict[int, bytes] = {}
    for _ in range(blocks):
        index, specification = reader.take(2, "a measurement block")
        block = reader.take(reader.number(2, "a measurement block"), "a measurement block")
        if specification != 1 or len(block) < 3:
            _bad(f"block {index} is no DMTF measurement", "measurements")
        value = block[3:]
        if not index or index in found:
            _bad(f"block index {index} is zero or stands twice", "measurements")
        if not value or int.from_bytes(block[1:3], "little") != len(value):
            _bad(f"block {index} does not have the length it names", "measurements")
        found[index] = value
    if reader.left():
        _bad("bytes follow the last measurement block", "measurements")
    return found


def _opaque(data: bytes) -> dict[int, bytes]:
    reader = _Reader(data)
    found: dict[int, bytes] = {}
    while reader.left():
        kind = reader.number(2, "an opaque field")
        value = reader.take(reader.number(2, "an opaque field"), "an opaque field")
        if kind in found or len(value) % _ITEM_BYTES.get(kind, 1):
            _bad(f"opaque field {kind} stands twice or has half an item", "opaque")
        found[kind] = value
    return found


def _text(opaque: Mapping[int, bytes], kind: int, shape: re.Pattern[str], what: str) -> str:
    value = opaque.get(kind, b"").split(b"\0")[0].strip(b" ")
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    if len(text) > 64 or not shape.match(text):
        _bad(f"the {what} is missing or not one", "opaque")
    return text


def _vbios(value: bytes) -> str:
    if len(value) != 8:
        _bad("the VBIOS version is missing or not 8 bytes", "opaque")
    return ".".join(f"{part:02X}" for part in (*value[3::-1], value[4]))


def _fwid(value: bytes) -> bytes:
    if value and len(value) != 48:
        _bad("the firmware id is not 48 bytes", "opaque")
    return value


def _switch(opaque: Mapping[int, bytes], kind: int, what: str) -> bool:
    value = opaque.get(kind, b"").rstrip(b"\0")
    if not value:
        return kind == NVDEC0
    if value not in (bytes([ENABLED]), bytes([DISABLED])):
        _bad(f"the {what} is neither on nor off", "opaque")
    return value[0] == ENABLED


def _mode(opaque: Mapping[int, bytes]) -> str:
    protected = _switch(opaque, PPCIE, "protected PCIe status")
    if FEATURE not in opaque:
        return "PPCIE" if protected else "SPT"
    value = opaque[FEATURE]
    flag = int.from_bytes(value, "little")
    if not 0 < len(value) <= 8 or flag >= len(MODES):
        _bad("the feature flag is none that is known", "opaque")
    if protected and MODES[flag] != "PPCIE":
        _bad("the feature flag and the protected PCIe status disagree", "opaque")
    return MODES[flag]
