"""Evidence by nv-attestation-sdk, which runs in an interpreter of its own.

It pins old libraries, rewrites files in its working folder and keeps state between
calls: so it is never imported here.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from .collect import Evidence, tidy, unavailable
from .config import SevGpuConfig
from .nvattest import DRIVER, driver_problem, located
from .output import words
from .process import Ended, Trial, ask

_CHILD = Path(__file__).with_name("sdk_child.py")

log = logging.getLogger("hyperbeam.sev_gpu")


class SdkCollector:
    """Runs sdk_child.py: one JSON object on its input, one on its output.

    `{"nonce": hex}` gives `{"evidences": [...]}`; `{"probe": true}` gives `{"found": bool}`.
    """

    name = "nv-attestation-sdk"

    def __init__(self, config: SevGpuConfig, driver: Path = DRIVER) -> None:
        self._python = config.sdk_python
        self._limit = config.timeout
        self._driver = driver
        self._explicit = config.backend == self.name
        self._trial = Trial(self._try)

    async def available(self) -> str:
        """Why not: no interpreter is named, it does not run, has no SDK, or there is no driver."""
        if not self._python:
            return (
                "set sev_gpu.sdk_python to the Python of an environment that has it: "
                "python3.12 -m venv sdk && sdk/bin/pip install nv-attestation-sdk"
            )
        if shutil.which(self._python) is None:
            return "sev_gpu.sdk_python names no program"
        return driver_problem(self._driver, self._explicit) or await self._trial.problem()

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """One report of every GPU. Raises Unavailable; the SDK's own words go to the log."""
        ended = await self._ask({"nonce": nonce.hex()}, self._limit)
        if ended.answer is None:
            log.warning("%s ended with status %d: %s", self.name, ended.status, ended.words)
            raise unavailable(
                f"{self.name} ended with status {ended.status} and no answer; see the node's log"
            )
        if "error" in ended.answer:
            log.warning("%s: %s", self.name, words(str(ended.answer["error"])))
            raise unavailable(f"{self.name} raised an error; see the node's log")
        return tidy(ended.answer.get("evidences"), nonce.hex(), self.name)

    async def info(self) -> dict[str, Any]:
        """Nothing: the SDK does not say it."""
        return {"gpus": [], "driver": None, "cc": None, "devtools": None}

    async def aclose(self) -> None:
        """Nothing is held between two calls."""

    async def _ask(self, asked: dict[str, Any], limit: float) -> Ended:
        command = [located(self._python), "-I", str(_CHILD)]
        return await ask(command, json.dumps(asked).encode(), name=self.name, limit=limit)

    async def _try(self, limit: float) -> str:
        ended = await self._ask({"probe": True}, limit)
        if ended.answer is None:
            log.warning("sev_gpu.sdk_python ended with status %d: %s", ended.status, ended.words)
            return f"sev_gpu.sdk_python is no Python that runs: it ended with {ended.status}"
        if ended.answer.get("found") is not True:
            return "sev_gpu.sdk_python has no nv-attestation-sdk: install it in its environment"
        return ""
