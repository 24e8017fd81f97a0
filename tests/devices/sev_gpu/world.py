"""A simulation with its services on loopback, and a verifier that asks them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from devices.sev_gpu.fetch import fetcher
from devices.sev_gpu.simulate import Simulator
from devices.sev_gpu.simulation.gpu import DRIVER_VALUES, KINDS
from hyperbeam.verify import nvidia

from .pki import OcspResponder, RimService

NONCE = bytes(range(32))
PATIENCE = 20.0
"""Seconds that no test uses up: a longer wait than any that is under test."""


@dataclass
class World:
    """A simulation, its two services, and a verifier that knows where they are."""

    simulator: Simulator
    rims: RimService
    ocsp: OcspResponder
    one_reply: float = PATIENCE
    deadline: float = PATIENCE
    cache: nvidia.Cache = field(default_factory=nvidia.Cache)
    rim_url: str = ""
    ocsp_url: str = ""

    def verify(
        self, evidences: list[dict[str, str]] | None = None, **policy: Any
    ) -> nvidia.Verdict:
        rim_url, ocsp_url = self.rim_url or self.rims.url, self.ocsp_url or self.ocsp.url
        resources = nvidia.Resources(
            fetch=fetcher((rim_url, ocsp_url), self.one_reply),
            rim_url=rim_url,
            ocsp_url=ocsp_url,
            cache=self.cache,
            deadline=self.deadline,
        )
        trust = f"simulated:{self.simulator.fingerprint}"
        return nvidia.verify(
            self.simulator.evidence(NONCE) if evidences is None else evidences,
            NONCE.hex(),
            nvidia.Policy(**{"trust": trust, **policy}),
            resources=resources,
        )

    @property
    def driver_id(self) -> str:
        """The name of the driver's manifest."""
        return KINDS[self.simulator.arch].driver_rim_id(self.simulator.driver)

    @property
    def driver_golden(self) -> dict[int, list[bytes]]:
        """What the driver's manifest lists."""
        return KINDS[self.simulator.arch].golden(DRIVER_VALUES, self.simulator.driver)


@contextmanager
def running(simulator: Simulator) -> Iterator[World]:
    """A world around `simulator`, its servers started."""
    rims, responder = RimService(simulator.rims()), OcspResponder(simulator.ocsp)
    with rims, responder:
        yield World(simulator, rims, responder)
