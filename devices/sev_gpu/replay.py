"""The published sample of a GPU's evidence, for tests: it answers to its own nonce only."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from hyperbeam import ConfigError

from .collect import Evidence, in_tests, never
from .config import TESTS_VARIABLE, SevGpuConfig

REPORT = "attestationReport.txt"
CHAIN = "gpuAkCertChain.txt"
_NONCE = slice(4, 36)


class ReplayCollector:
    """Reads a folder with a report (hex) and its certificates (PEM)."""

    name = "replay"

    def __init__(self, config: SevGpuConfig) -> None:
        if not in_tests():
            raise ConfigError(
                "sev_gpu.backend: replay gives out a published sample, which proves nothing; it "
                f"is for tests, where {TESTS_VARIABLE}=1 is in the environment"
            )
        folder = Path(config.replay)
        try:
            self._report = bytes.fromhex((folder / REPORT).read_text())
            self._chain = (folder / CHAIN).read_bytes()
        except (OSError, ValueError) as error:
            raise ConfigError(f"sev_gpu.replay: {folder}: {error}") from None

    async def available(self) -> str:
        """Always: it was read at the start."""
        return ""

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """The sample. Raises Unavailable for every nonce but the sample's."""
        if nonce != self._report[_NONCE]:
            raise never("replay has one nonce only, that of the sample")
        return [
            {
                "arch": "HOPPER",
                "nonce": nonce.hex(),
                "evidence": base64.b64encode(self._report).decode(),
                "certificate": base64.b64encode(self._chain).decode(),
            }
        ]

    async def info(self) -> dict[str, Any]:
        """One GPU that is not here."""
        gpu = {"index": 0, "name": "replayed sample"}
        return {"gpus": [gpu], "driver": None, "cc": None, "devtools": None}

    async def aclose(self) -> None:
        """Nothing is held."""
