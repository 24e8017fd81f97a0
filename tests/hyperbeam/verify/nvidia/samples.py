"""The genuine samples, and evidence made of them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "fixtures" / "nvidia"
RIMS = FOLDER / "rims"
PROD_RIMS = FOLDER / "rims-prod"
THEN = datetime(2024, 6, 1, tzinfo=UTC)
NONCE = "4cff7f5380ead8fad8ec2c531c110aca4302a88f603792801a8ca29ee151af2e"
NONCE_2 = "931d8dd0add203ac3d8b4fbde75e115278eefcdceac5b87671a748f32364dfcb"
REPORT = bytes.fromhex((FOLDER / "hopper-545.00" / "attestationReport.txt").read_text())
REPORT_2 = bytes.fromhex((FOLDER / "hopper-550.90.07" / "hopperAttestationReport.txt").read_text())
CHAIN = (FOLDER / "hopper-545.00" / "gpuAkCertChain.txt").read_bytes()
CHAIN_2 = (FOLDER / "hopper-550.90.07" / "hopperCertChain.txt").read_bytes()
DRIVER_RIM = (RIMS / "Driver_RIM_test_no_gpu.swidtag").read_bytes()
VBIOS_RIM = (RIMS / "1010_0200_882_96005E0001_test_no_gpu.swidtag").read_bytes()


def entry(
    report: bytes = REPORT, chain: bytes = CHAIN, nonce: str = NONCE, arch: str = "HOPPER"
) -> dict[str, Any]:
    """One GPU's evidence as clients send it."""
    return {
        "arch": arch,
        "nonce": nonce,
        "evidence": base64.b64encode(report).decode(),
        "certificate": base64.b64encode(chain).decode(),
    }


def flipped(data: bytes, offset: int, bit: int = 0) -> bytes:
    """`data` with one bit changed."""
    changed = bytearray(data)
    changed[offset] ^= 1 << bit
    return bytes(changed)
