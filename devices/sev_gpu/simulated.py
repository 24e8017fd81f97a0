"""Evidence of GPUs that do not exist, signed under roots made for this process."""

from __future__ import annotations

import asyncio
from typing import Any

from .collect import Evidence
from .config import SevGpuConfig
from .simulate import Simulator


class SimulatedCollector:
    """For development: the exact shape of the real thing, under a root that nobody trusts."""

    name = "simulated"

    def __init__(self, config: SevGpuConfig) -> None:
        self.simulator = Simulator(gpus=config.simulated_gpus)
        self.simulated_root: str = self.simulator.fingerprint
        self._delay = config.simulated_delay_ms / 1000

    async def available(self) -> str:
        """Always."""
        return ""

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """Reports that take as long as the config says."""
        await asyncio.sleep(self._delay)
        return await asyncio.to_thread(self.simulator.evidence, nonce)

    async def info(self) -> dict[str, Any]:
        """GPUs that say they are simulated, and the fingerprint of their root."""
        gpus = [{"index": index, "name": "SIMULATED GPU"} for index in range(self.simulator.gpus)]
        return {
            "gpus": gpus,
            "driver": None,
            "cc": None,
            "devtools": None,
            "root": f"simulated:{self.simulated_root}",
        }

    async def aclose(self) -> None:
        """Nothing is held."""
