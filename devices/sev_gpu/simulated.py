"""Evidence of GPUs that do not exist, signed under roots made for this process."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
from typing import Any
from urllib.parse import unquote

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

    def fetch(self, url: str, body: bytes | None, content_type: str) -> bytes:
        """What NVIDIA's two services would say of these GPUs; asks no network.

        Raises FileNotFoundError for a manifest that there is none of.
        """
        if body is not None:
            return self.simulator.ocsp(body)
        id = unquote(url.rpartition("/")[2])
        rim = self._rims.get(id)
        if rim is None:
            raise FileNotFoundError(id)
        digest = hashlib.sha256(rim).hexdigest()
        reply = {"id": id, "rim": base64.b64encode(rim).decode(), "sha256": digest}
        return json.dumps(reply).encode()

    @functools.cached_property
    def _rims(self) -> dict[str, bytes]:
        return self.simulator.rims()

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
