"""The attestation report of an AMD SEV-SNP guest, taken apart.

Source: AMD SEV-SNP Firmware ABI (56860) 1.58, ATTESTATION_REPORT; versions 2 to 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..checks import Malformed
from .roots import Product, product_of_cpu

SIZE = 0x4A0
SIGNED = 0x2A0
REPORT_DATA_SIZE = 64
VERSIONS = range(2, 6)

Key = Literal["vcek", "vlek"]

_KEYS: dict[int, Key] = {0: "vcek", 1: "vlek"}
_ECDSA_P384_SHA384 = 1
_NUMBER = 72
_HAS_CPU = 3
_SMT, _MIGRATE_MA, _DEBUG, _SINGLE_SOCKET = 1 << 16, 1 << 18, 1 << 19, 1 << 20


@dataclass(frozen=True, slots=True)
class Tcb:
    """Security patch levels, 0 to 255 each. `fmc` is Turin's alone, 0 elsewhere."""

    bootloader: int
    tee: int
    snp: int
    microcode: int
    fmc: int = 0

    @classmethod
    def read(cls, raw: bytes, product: Product) -> Tcb:
        """From the 8 bytes of a TCB_VERSION, whose layout is the product line's."""
        if product == "Turin":
            return cls(raw[1], raw[2], raw[3], raw[7], raw[0])
        return cls(raw[0], raw[1], raw[6], raw[7])

    def as_dict(self) -> dict[str, int]:
        """The levels by name."""
        return {
            "fmc": self.fmc,
            "bootloader": self.bootloader,
            "tee": self.tee,
            "snp": self.snp,
            "microcode": self.microcode,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A report's fields under their names in the ABI; `policy` is the guest's own.

    `*_tcb` are 8 raw bytes (`Tcb.read`). `cpu`: CPUID family and model, from version 3 on.
    `key`: which key signed. `signed`: the bytes under the signature `r`, `s`.
    """

    version: int
    guest_svn: int
    policy: int
    family_id: bytes
    image_id: bytes
    vmpl: int
    platform_info: int
    has_author_key: bool
    key: Key
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    report_id: bytes
    report_id_ma: bytes
    chip_id: bytes
    cpu: tuple[int, int] | None
    current_tcb: bytes
    reported_tcb: bytes
    committed_tcb: bytes
    launch_tcb: bytes
    signed: bytes
    r: int
    s: int

    @property
    def debug(self) -> bool:
        """Whether the host may read and write the guest's memory."""
        return bool(self.policy & _DEBUG)

    @property
    def migration(self) -> bool:
        """Whether a migration agent may take the guest to another machine."""
        return bool(self.policy & _MIGRATE_MA)

    @property
    def smt(self) -> bool:
        """Whether the guest may run where hyper-threading is on."""
        return bool(self.policy & _SMT)

    @property
    def single_socket(self) -> bool:
        """Whether the guest runs on one socket only."""
        return bool(self.policy & _SINGLE_SOCKET)

    @property
    def product(self) -> Product | None:
        """The product line that the report names, if it names one."""
        return None if self.cpu is None else product_of_cpu(*self.cpu)


def parse(data: bytes) -> Report:
    """Take a report apart. Raises Malformed: `report-size`, `report-version`,
    `report-algorithm`, `report-key`, `report-malformed`."""
    if len(data) != SIZE:
        raise Malformed(f"a report has {SIZE} bytes, not {len(data)}", "report-size")
    version = _number(data, 0x00, 4)
    if version not in VERSIONS:
        raise Malformed(f"reports of version {version} are not known here", "report-version")
    algorithm = _number(data, 0x34, 4)
    if algorithm != _ECDSA_P384_SHA384:
        raise Malformed(
            f"the report is signed by algorithm {algorithm}, not by ECDSA P-384 (1)",
            "report-algorithm",
        )
    flags = _number(data, 0x48, 4)
    key = _KEYS.get(flags >> 2 & 0b111)
    if key is None:
        raise Malformed("the report is signed by neither VCEK nor VLEK", "report-key")
    r, s = (_number(data, at, _NUMBER) for at in (SIGNED, SIGNED + _NUMBER))
    if any(data[SIGNED + 2 * _NUMBER :]) or max(r, s).bit_length() > 384:
        raise Malformed("the report's signature has more than two numbers", "report-malformed")
    cpu = (data[0x188], data[0x189]) if version >= _HAS_CPU else None
    return Report(
        version=version,
        guest_svn=_number(data, 0x04, 4),
        policy=_number(data, 0x08, 8),
        family_id=data[0x10:0x20],
        image_id=data[0x20:0x30],
        vmpl=_number(data, 0x30, 4),
        platform_info=_number(data, 0x40, 8),
        has_author_key=bool(flags & 1),
        key=key,
        report_data=data[0x50:0x90],
        measurement=data[0x90:0xC0],
        host_data=data[0xC0:0xE0],
        id_key_digest=data[0xE0:0x110],
        author_key_digest=data[0x110:0x140],
        report_id=data[0x140:0x160],
        report_id_ma=data[0x160:0x180],
        chip_id=data[0x1A0:0x1E0],
        cpu=cpu,
        current_tcb=data[0x38:0x40],
        reported_tcb=data[0x180:0x188],
        committed_tcb=data[0x1E0:0x1E8],
        launch_tcb=data[0x1F0:0x1F8],
        signed=data[:SIGNED],
        r=r,
        s=s,
    )


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
