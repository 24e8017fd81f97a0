"""Evidence by nv-attestation-sdk, which runs in an interpreter of its own.

It pins old libraries, rewrites files in its working folder and keeps state between
calls: so it is never imported here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .collect import Evidence, tidy, unavailable
from .config import SevGpuConfig
from .nvattest import DRIVER, driver_problem, last_object, located
from .process import ask

_CHILD = Path(__file__).with_name("sdk_child.py")


class SdkCollector:
    """Runs sdk_child.py: `{"nonce": hex}` on its input, `{"evidences": [...]}` on its output."""

    name = "nv-attestation-sdk"

    def __init__(self, config: SevGpuConfig, driver: Path = DRIVER) -> None:
        self._python = config.sdk_python
        self._limit = config.timeout
        self._driver = driver
        self._explicit = config.backend == self.name

    async def available(self) -> str:
        """Why not: no interpreter is named, it does not exist, or there is no driver."""
        if not self._python:
            return (
                "set sev_gpu.sdk_python to the Python of an environment that has it: "
                "python3.12 -m venv sdk && sdk/bin/pip install nv-attestation-sdk"
            )
        if shutil.which(self._python) is None:
            return "sev_gpu.sdk_python names no program"
        return driver_problem(self._driver, self._explicit)

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """One report of every GPU. Raises Unavailable with the SDK's own message."""
        asked = json.dumps({"nonce": nonce.hex()}).encode()
        status, output, words = await ask(
            [located(self._python), "-I", str(_CHILD)], asked, name=self.name, limit=self._limit
        )
        answer = last_object(output)
        if answer is None:
            said = f": {words}" if words else ""
            raise unavailable(f"{self.name} ended with status {status} and no answer{said}")
        if "error" in answer:
            raise unavailable(f"{self.name}: {str(answer['error'])[:300]}")
        return tidy(answer.get("evidences"), nonce.hex(), self.name)

    async def info(self) -> dict[str, Any]:
        """Nothing: the SDK does not say it."""
        return {"gpus": [], "driver": None, "cc": None, "devtools": None}

    async def aclose(self) -> None:
        """Nothing is held between two calls."""
