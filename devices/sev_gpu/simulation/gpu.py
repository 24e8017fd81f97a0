"""One GPU that does not exist: its certificates, what it measures and what it says of itself."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from . import certificates as certs
from . import report
from .certificates import FOREVER, Issued

FEATURES = {"SPT": 0, "MPT": 1, "PPCIE": 2}
PROJECT, PROJECT_SKU, CHIP_SKU = "SIM0", "0200", "882"
"""The project, which NVIDIA numbers, says that it is simulated."""
FWID_FIELD, PROTECTED_FIELD, FEATURE_FIELD = 20, 21, 36

DRIVER_VALUES = (7, *range(21, 41))
VBIOS_VALUES = (*range(7), *range(8, 13))
"""Golden indices that the genuine manifests of an H100 use; SPDM block is index + 1."""

_ALTERNATIVES = {12: 4, 23: 2, 24: 2, 35: 2}
"""Golden indices with several values, as the genuine manifests have them."""
_ON, _OFF = b"\xaa", b"\x55"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is the same for all GPUs of an architecture."""

    arch: str
    chip: str
    vbios: str
    modes: tuple[str, ...]

    def golden(self, indices: Iterable[int], version: str) -> dict[int, list[bytes]]:
        """Golden index to the digests that firmware `version` may give; devices give the last."""
        return {
            index: [
                _digest(f"{self.chip} {version} measurement {index}.{number}")
                for number in range(_ALTERNATIVES.get(index, 1))
            ]
            for index in indices
        }

    def driver_rim_id(self, driver: str) -> str:
        """The name of the driver's manifest in a manifest service."""
        middle = "DRIVER" if self.arch == "HOPPER" else "CC_DRIVER"
        return f"NV_GPU_{middle}_{self.chip}_{driver}"

    def vbios_rim_id(self) -> str:
        """The name of the VBIOS's manifest in a manifest service."""
        version = self.vbios.replace(".", "")
        return f"NV_GPU_VBIOS_{PROJECT}_{PROJECT_SKU}_{CHIP_SKU}_{version}"


KINDS = {
    "HOPPER": Kind("HOPPER", "GH100", "96.00.00.00.01", ("SPT", "PPCIE")),
    "BLACKWELL": Kind("BLACKWELL", "GB100", "97.00.00.00.01", ("SPT", "MPT", "PPCIE")),
}


@dataclass(slots=True)
class SimulatedGpu:
    """Signs what stands in it at the time: a test changes a field and has other evidence.

    `chain`: leaf first, root last. `measurements`: SPDM block (from 1) to digest.
    `opaque`: report field id to value.
    """

    arch: str
    chain: list[Issued]
    measurements: dict[int, bytes]
    opaque: dict[int, bytes] = field(default_factory=dict)

    @property
    def pem(self) -> bytes:
        """The chain as the driver gives it."""
        return b"".join(one.pem for one in self.chain)

    def report(self, nonce: bytes) -> bytes:
        """A report over `nonce`, signed with the leaf's key."""
        return report.build(self.chain[0].key, nonce, self.measurements, self.opaque)

    def evidence(self, nonce: bytes) -> dict[str, str]:
        """One entry of a list of evidence."""
        return {
            "arch": self.arch,
            "nonce": nonce.hex(),
            "evidence": base64.b64encode(self.report(nonce)).decode(),
            "certificate": base64.b64encode(self.pem).decode(),
        }


def make(
    kind: Kind,
    above: list[Issued],
    driver: str,
    mode: str,
    *,
    ends: datetime = FOREVER,
    ocsp_url: str = "",
) -> SimulatedGpu:
    """A GPU whose certificates come from `above` (provisioner first, root last).

    Raises ValueError for a mode that the architecture does not have.
    """
    if mode not in kind.modes:
        raise ValueError(f"a {kind.chip} has no mode {mode}")
    fwid = _digest(f"{kind.chip} firmware")
    measurements = {index: bytes(report.DIGEST_BYTES) for index in range(1, report.BLOCKS + 1)}
    for indices, version in ((DRIVER_VALUES, driver), (VBIOS_VALUES, kind.vbios)):
        for index, values in kind.golden(indices, version).items():
            measurements[index + 1] = values[-1]
    return SimulatedGpu(
        arch=kind.arch,
        chain=[*_own_chain(kind, above[0], fwid, ends, ocsp_url), *above],
        measurements=measurements,
        opaque=_opaque(kind, driver, mode, fwid),
    )


def _own_chain(
    kind: Kind, provisioner: Issued, fwid: bytes, ends: datetime, ocsp_url: str
) -> list[Issued]:
    number = f"{secrets.randbits(71) | 1 << 70:018X}"
    device = certs.issue(
        certs.subject(f"SIMULATED {kind.chip} A01 GSP BROM", number),
        provisioner,
        certs.authority(lists=False, ocsp_url=ocsp_url),
        serial=int(number, 16),
        ends=ends,
    )
    key, identifier = certs.leaf_key()
    leaf = certs.issue(
        certs.subject(f"SIMULATED {kind.chip} A01 GSP FMC LF", identifier.hex().upper()),
        device,
        [
            *certs.signer(),
            certs.device_info(kind.chip, secrets.token_hex(8).upper()),
            certs.composite_device_id(device, fwid)
            if kind.arch == "HOPPER"
            else certs.tcb_info(kind.chip, fwid),
        ],
        key=key,
        serial=int.from_bytes(identifier),
        ends=ends,
    )
    return [leaf, device]


def _opaque(kind: Kind, driver: str, mode: str, fwid: bytes) -> dict[int, bytes]:
    active = {index + 1 for index in (*DRIVER_VALUES, *VBIOS_VALUES)}
    counts = b"".join(
        int(block in active).to_bytes(4, "little") for block in range(1, report.BLOCKS + 1)
    )
    fields = {
        6: _vbios(kind.vbios),
        14: bytes.fromhex("b1030000"),
        15: CHIP_SKU.encode().ljust(9, b"\0"),
        16: b"0".ljust(5, b"\0"),
        17: PROJECT.encode() + b"\0",
        18: PROJECT_SKU.encode() + b"\0",
        19: bytes(2),
        3: driver.encode() + b"\0",
        4: bytes.fromhex("8001000000000000"),
        12: counts,
        13: bytes.fromhex("00c00100"),
        11: _OFF,
        FWID_FIELD: fwid,
        PROTECTED_FIELD: _ON if mode == "PPCIE" else _OFF,
    }
    if kind.arch != "HOPPER":
        fields[34] = (1).to_bytes(4, "little")
        fields[35] = kind.chip.encode() + b"\0"
        fields[FEATURE_FIELD] = FEATURES[mode].to_bytes(4, "little")
    return fields


def _digest(what: str) -> bytes:
    return hashlib.sha384(f"SIMULATED {what}".encode()).digest()


def _vbios(version: str) -> bytes:
    """`96.00.5E.00.01` in the report's order of bytes."""
    parts = bytes.fromhex(version.replace(".", ""))
    return parts[3::-1] + parts[4:] + bytes(3)
