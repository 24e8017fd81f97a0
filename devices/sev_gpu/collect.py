"""What gives evidence: the protocol of the collectors, and which of them this node uses."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hyperbeam import Unavailable

from .config import TESTS_VARIABLE, SevGpuConfig

Evidence = dict[str, str]
"""`{"arch", "nonce": hex, "evidence": base64 report, "certificate": base64 PEM chain}`."""

REAL = ("nvml", "nvattest", "nv-attestation-sdk")
"""What `auto` tries, in this order."""
SOURCES = (*REAL, "simulated", "replay")
UNAVAILABLE = "attestation_unavailable"
RETRY_AFTER = 5
NO_RETRY = {"x-should-retry": "false"}
"""Read by OpenAI's SDKs, which else repeat every 5xx twice."""
MAX_EVIDENCE = 256 * 1024
"""Characters of one GPU's report or chain."""

log = logging.getLogger("hyperbeam.sev_gpu")


class Collector(Protocol):
    """One way to have the GPUs sign a nonce."""

    name: str

    async def available(self) -> str:
        """Why this node has no use of it; "" where it does.

        Raises Unavailable for trouble that may pass by itself.
        """

    async def collect(self, nonce: bytes) -> list[Evidence]:
        """Evidence over `nonce` (32 bytes), one entry a GPU. Raises Unavailable."""

    async def info(self) -> dict[str, Any]:
        """`{"gpus": [{"index", "name", ...}], "driver", "cc", "devtools"}`; None: not known."""

    async def aclose(self) -> None:
        """Let go of what it holds."""


def unavailable(detail: str, retry_after: int = RETRY_AFTER) -> Unavailable:
    """503: evidence cannot be had now; `detail` says of which GPU and why."""
    return Unavailable(detail, error=UNAVAILABLE, retry_after=retry_after)


def never(detail: str) -> Unavailable:
    """503 that stays until somebody changes this machine or its settings: no retry helps."""
    error = Unavailable(detail, error=UNAVAILABLE, headers=NO_RETRY)
    del error.headers["retry-after"]
    return error


def may_pass(error: Unavailable) -> bool:
    """Whether asking again may help."""
    return "retry-after" in error.headers


def make(config: SevGpuConfig) -> dict[str, Collector]:
    """The collectors that `config` allows, by name, in the order in which they are tried."""
    from .nvattest import NvattestCollector
    from .nvml import NvmlCollector
    from .sdk import SdkCollector

    if config.backend == "none":
        return {}
    if config.backend == "simulated":
        from .simulated import SimulatedCollector

        return {"simulated": SimulatedCollector(config)}
    if config.backend == "replay":
        from .replay import ReplayCollector

        return {"replay": ReplayCollector(config)}
    real: Sequence[Collector] = (
        NvmlCollector(config), NvattestCollector(config), SdkCollector(config),
    )  # fmt: skip
    return {one.name: one for one in real if config.backend in ("auto", one.name)}


class Choice:
    """The collector in use: the first that is available, kept once it was."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self.collectors = collectors
        self._used: Collector | None = None

    async def find(self) -> Collector:
        """The collector to use now. Raises Unavailable with every reason why there is none."""
        if self._used is not None:
            reason, passing = await _why_not(self._used)
            if reason:
                raise (unavailable if passing else never)(f"{self._used.name}: {reason}")
            return self._used
        reasons = []
        refuse = never
        for collector in self.collectors.values():
            reason, passing = await _why_not(collector)
            if passing:
                refuse = unavailable
            if not reason:
                self._used = collector
                log.info("evidence comes from %s", collector.name)
                return collector
            reasons.append(f"{collector.name}: {reason}")
        if not reasons:
            raise never("this node gives no evidence: sev_gpu.backend is none")
        raise refuse(f"this node can give no GPU evidence: {'; '.join(reasons)}")

    async def reasons(self) -> dict[str, str]:
        """Each collector with why it cannot be used; "" for one that can."""
        return {name: (await _why_not(one))[0] for name, one in self.collectors.items()}

    async def aclose(self) -> None:
        """Close all collectors."""
        for collector in self.collectors.values():
            await collector.aclose()


async def _why_not(collector: Collector) -> tuple[str, bool]:
    """Why it cannot be used, "" where it can, and whether that may pass by itself."""
    try:
        return await collector.available(), False
    except Unavailable as error:
        return error.detail, may_pass(error)


def in_tests() -> bool:
    """Whether the environment says that this process is a test's."""
    return os.environ.get(TESTS_VARIABLE) == "1"


def tidy(found: Any, nonce: str, source: str) -> list[Evidence]:
    """The entries of a tool's list in the exact shape that verifiers take.

    Raises Unavailable where it is no list of evidence for `nonce`.
    """
    if not isinstance(found, list) or not found:
        raise unavailable(f"{source} gave no evidence: there is no GPU in its list")
    entries = []
    for index, item in enumerate(found):
        if not isinstance(item, Mapping):
            raise unavailable(f"{source}: entry {index} is no evidence")
        words = {name: item.get(name) for name in ("arch", "evidence", "certificate")}
        for name, value in words.items():
            if not isinstance(value, str) or not value or len(value) > MAX_EVIDENCE:
                raise unavailable(f"{source}: GPU {index} has no usable {name!r}")
        said = item.get("nonce", nonce)
        if not isinstance(said, str) or said.lower().removeprefix("0x") != nonce:
            raise unavailable(f"{source}: GPU {index} signed another nonce")
        entries.append(
            {
                "arch": str(words["arch"]).upper(),
                "nonce": nonce,
                "evidence": str(words["evidence"]),
                "certificate": str(words["certificate"]),
            }
        )
    return entries
