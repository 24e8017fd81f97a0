"""Verification of GPU evidence in worker threads: a bounded number, each for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hyperbeam import ConfigError
from hyperbeam.verify import Policy, nvidia
from hyperbeam.verify.checks import Checks, Malformed
from hyperbeam.verify.nvidia.resources import RIM_SERVICE

from .collect import Evidence, never
from .config import SevGpuConfig
from .fetch import fetcher
from .simulation.addresses import OCSP_URL, RIM_URL
from .threads import Slots

T = TypeVar("T")

MAX_WAITING = 32
"""Verifications that may wait for a thread."""
_GENUINE = ("chain", "report-signature", "nonce")


class Checker:
    """Checks evidence by the operator's policy.

    `simulated`: SHA-256 of the root that this node made up, "" for none; `simulated_fetch`
    stands for NVIDIA's services where evidence is under that root.
    """

    def __init__(
        self,
        config: SevGpuConfig,
        simulated: str = "",
        simulated_fetch: nvidia.Fetch | None = None,
    ) -> None:
        try:
            self.policy = Policy.parse(dict(config.policy))
        except Malformed as error:
            raise ConfigError(f"[sev_gpu.policy]: {error.detail}") from None
        self.simulated = simulated
        rims = Path(config.rims) if config.rims else None
        if rims is not None and not rims.is_dir():
            raise ConfigError(f"sev_gpu.rims: there is no folder {rims}")
        own = (config.rim_url, config.ocsp_url)
        self.online = nvidia.Resources(
            rim_folder=rims,
            fetch=fetcher(own),
            rim_url=config.rim_url or RIM_SERVICE,
            ocsp_url=config.ocsp_url,
            cache=nvidia.Cache(),
            deadline=config.verify_timeout,
        )
        self.made_up = replace(
            self.online, fetch=simulated_fetch, rim_url=RIM_URL, ocsp_url=OCSP_URL
        )
        self._offline = self.made_up if simulated else replace(self.online, fetch=None)
        self._slots = Slots(config.verify_threads, MAX_WAITING)
        # Answers wait for the node's own checks, which therefore wait for nobody's.
        self._own = Slots(1, config.queue)

    async def own(self, evidences: list[Evidence], nonce: str) -> nvidia.Verdict:
        """The verdict on what a collector gave, without the network.

        Raises Unavailable where it does not hold: such evidence is not handed out.
        """
        # An answer does not wait for the status service, so the last word it said counts.
        policy = self._for_own(cached=True)
        verdict = await self._own.run(
            lambda: nvidia.verify(evidences, nonce, policy, resources=self._offline)
        )
        checks = Checks(verdict.checks)
        if verdict.trust == "none" or not all(checks.ok(name) for name in _GENUINE):
            failed = (check for check in verdict.checks if check.result == "fail")
            said = next((check.detail or check.reason for check in failed), "no known root")
            raise never(f"the evidence does not hold, so it is not given out: {said}")
        return verdict

    async def look_up(self, evidences: list[Evidence], nonce: str) -> nvidia.Verdict:
        """The verdict with the network's help; what it said is remembered for `own`."""
        policy = self._for_own(cached=False)
        return await self.run(
            lambda: nvidia.verify(evidences, nonce, policy, resources=self.online)
        )

    def _for_own(self, *, cached: bool) -> nvidia.Policy:
        policy = self.policy.gpu
        if self.simulated:
            policy = replace(policy, trust=f"simulated:{self.simulated}")
        if cached and policy.ocsp == "require":
            policy = replace(policy, ocsp="cached")
        return policy

    async def run(self, function: Callable[[], T]) -> T:
        """`function` in a worker thread. Raises Unavailable where too many wait for one."""
        return await self._slots.run(function)
