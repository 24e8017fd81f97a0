"""GPUs that do not exist, for development and tests: the exact wire format, throw-away keys.

Nothing here is written down or shared: each Simulator makes its roots in memory, so that no
verifier trusts them but by the fingerprint that it was told.
"""

from __future__ import annotations

import hashlib
import time
from datetime import datetime

from .simulation import certificates as certs
from .simulation import gpu as gpus_
from .simulation.certificates import FOREVER, OCSP_URL, Issued
from .simulation.gpu import KINDS, SimulatedGpu

DRIVER = "550.00.00"
"""No driver that was ever published."""


class Simulator:
    """Signs evidence for `gpus` made-up devices.

    `delay`: seconds that a report takes. `arch`: HOPPER or BLACKWELL. `mode`: SPT, MPT
    (BLACKWELL) or PPCIE. `device_ends`: when the GPUs' own certificates end. `ocsp_url`: the
    responder that certificates name. `devices` may be changed freely to make bad evidence.
    """

    def __init__(
        self,
        gpus: int = 1,
        delay: float = 0.0,
        driver: str = DRIVER,
        arch: str = "HOPPER",
        *,
        mode: str = "SPT",
        device_ends: datetime = FOREVER,
        ocsp_url: str = OCSP_URL,
    ) -> None:
        self.delay = delay
        self.driver = driver
        self.arch = arch
        self._ocsp_url = ocsp_url
        self._device_ends = device_ends
        self.root = certs.issue(
            certs.subject("SIMULATED Device Identity CA"), None, certs.authority()
        )
        self._provisioners: dict[str, list[Issued]] = {}
        self.devices = [self.make_gpu(arch, mode) for _ in range(gpus)]

    @property
    def gpus(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the root certificate's DER, for `trust = simulated:<this>`."""
        return hashlib.sha256(self.root.der).hexdigest()

    def make_gpu(self, arch: str, mode: str = "SPT") -> SimulatedGpu:
        """One more device under the same root, not yet among `devices`."""
        kind = KINDS[arch]
        return gpus_.make(kind, self._provisioner(arch), self.driver, mode, self._device_ends)

    def evidence(self, nonce: bytes) -> list[dict[str, str]]:
        """Evidence of all devices over `nonce` (32 bytes), signed for real."""
        if self.delay:
            time.sleep(self.delay)
        return [device.evidence(nonce) for device in self.devices]

    def _provisioner(self, arch: str) -> list[Issued]:
        if arch not in self._provisioners:
            chip, issued = KINDS[arch].chip, certs.authority(ocsp_url=self._ocsp_url)
            identity = certs.issue(certs.subject(f"SIMULATED {chip} Identity"), self.root, issued)
            name = certs.subject(f"SIMULATED {chip} Provisioner ICA 1")
            provisioner = certs.issue(name, identity, issued)
            self._provisioners[arch] = [provisioner, identity, self.root]
        return self._provisioners[arch]
