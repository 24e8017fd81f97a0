"""Evidence by NVIDIA's program `nvattest`, where the operator has installed it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .collect import Evidence, tidy, unavailable
from .config import SevGpuConfig
from .process import ask

DRIVER = Path("/dev/nvidiactl")


class NvattestCollector:
    """Asks `nvattest collect-evidence`. Its exit status has 8 bits only, so its JSON is read."""

    name = "nvattest"

    def __init__(self, config: SevGpuConfig, driver: Path = DRIVER) -> None:
        self._program = config.nvattest
        self._limit = config.timeout
        self._driver = driver
        self._explicit = config.backend == self.name

    async def available(self) -> str:
        """Why not: no such program, or no NVIDIA driver for it to ask."""
        if shutil.which(self._program) is None:
            return "there is no such program; install it, or say where it is in sev_gpu.nvattest"
        return driver_problem(self._driver, self._explicit)

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """One report of every GPU. Raises Unavailable with nvattest's own message."""
        program = located(self._program)
        wanted = ["-f", "json", "collect-evidence", "--device", "gpu", "--nonce", nonce.hex()]
        status, output, words = await ask([program, *wanted], name=self.name, limit=self._limit)
        answer = last_object(output)
        if answer is None:
            said = f": {words}" if words else ""
            raise unavailable(f"nvattest ended with status {status} and no JSON{said}")
        code = answer.get("result_code")
        if code != 0:
            said = str(answer.get("result_message") or words)[:300]
            raise unavailable(f"nvattest failed with result {code!r}: {said}")
        return tidy(answer.get("evidences"), nonce.hex(), self.name)

    async def info(self) -> dict[str, Any]:
        """Nothing: the program does not say it."""
        return {"gpus": [], "driver": None, "cc": None, "devtools": None}

    async def aclose(self) -> None:
        """Nothing is held between two calls."""


def located(program: str) -> str:
    """The absolute path of a program: it is run in another folder. Links stay as they are."""
    return str(Path(shutil.which(program) or program).absolute())


def driver_problem(driver: Path, explicit: bool) -> str:
    """Why no NVIDIA GPU can be asked; an operator who names the backend knows better."""
    if explicit or driver.exists():
        return ""
    return f"no NVIDIA driver is loaded ({driver} does not exist)"


def last_object(output: bytes) -> dict[str, Any] | None:
    """The JSON object that `output` ends with; lines of a log may stand before it."""
    text = output.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    start = 0
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("{"):
            try:
                value, end = decoder.raw_decode(text, start + line.index("{"))
            except (ValueError, RecursionError):
                value, end = None, 0
            if isinstance(value, dict) and not text[end:].strip():
                return value
        start += len(line)
    return None
