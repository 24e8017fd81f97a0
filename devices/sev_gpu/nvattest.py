"""Evidence by NVIDIA's program `nvattest`, where the operator has installed it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from .collect import Evidence, tidy, unavailable
from .config import SevGpuConfig
from .output import words
from .process import Trial, ask

DRIVER = Path("/dev/nvidiactl")

log = logging.getLogger("hyperbeam.sev_gpu")


class NvattestCollector:
    """Asks `nvattest collect-evidence`. Its exit status has 8 bits only, so its JSON is read."""

    name = "nvattest"

    def __init__(self, config: SevGpuConfig, driver: Path = DRIVER) -> None:
        self._program = config.nvattest
        self._limit = config.timeout
        self._driver = driver
        self._explicit = config.backend == self.name
        self._trial = Trial(self._try)

    async def available(self) -> str:
        """Why not: no such program, no NVIDIA driver for it to ask, or it does not run."""
        if shutil.which(self._program) is None:
            return "there is no such program; install it, or say where it is in sev_gpu.nvattest"
        return driver_problem(self._driver, self._explicit) or await self._trial.problem()

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """One report of every GPU. Raises Unavailable; nvattest's own words go to the log."""
        program = located(self._program)
        wanted = ["-f", "json", "collect-evidence", "--device", "gpu", "--nonce", nonce.hex()]
        ended = await ask([program, *wanted], name=self.name, limit=self._limit)
        if ended.answer is None:
            log.warning("nvattest ended with status %d: %s", ended.status, ended.words)
            raise unavailable(
                f"nvattest ended with status {ended.status} and no JSON; see the node's log"
            )
        code = ended.answer.get("result_code")
        if code != 0:
            said = words(str(ended.answer.get("result_message") or ended.words))
            shown = str(code) if type(code) is int and abs(code) < 2**32 else "unknown"
            log.warning("nvattest failed with result %s: %s", shown, said)
            raise unavailable(f"nvattest failed with result {shown}; see the node's log")
        return tidy(ended.answer.get("evidences"), nonce.hex(), self.name)

    async def info(self) -> dict[str, Any]:
        """Nothing: the program does not say it."""
        return {"gpus": [], "driver": None, "cc": None, "devtools": None}

    async def aclose(self) -> None:
        """Nothing is held between two calls."""

    async def _try(self, limit: float) -> str:
        name = "nvattest version"
        ended = await ask([located(self._program), "version"], name=name, limit=limit)
        if ended.status == 0:
            return ""
        log.warning("%s ended with status %d: %s", name, ended.status, ended.words)
        return f"it does not work: {name} ended with status {ended.status}"


def located(program: str) -> str:
    """The absolute path of a program: it is run in another folder. Links stay as they are."""
    return str(Path(shutil.which(program) or program).absolute())


def driver_problem(driver: Path, explicit: bool) -> str:
    """Why no NVIDIA GPU can be asked; an operator who names the backend knows better."""
    if explicit or driver.exists():
        return ""
    return f"no NVIDIA driver is loaded ({driver} does not exist)"
