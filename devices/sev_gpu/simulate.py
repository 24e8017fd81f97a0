"""GPUs that do not exist, for development and tests: the exact wire format, throw-away keys.

Nothing here is written down or shared: each Simulator makes its roots in memory, so that no
verifier trusts them but by the fingerprint that it was told.
"""

from __future__ import annotations

import hashlib
import time
from datetime import datetime

from .simulation import gpu, ocsp, rim
from .simulation.addresses import OCSP_URL
from .simulation.authorities import Authorities
from .simulation.certificates import FOREVER
from .simulation.gpu import DRIVER_VALUES, KINDS, VBIOS_VALUES, Kind, SimulatedGpu
from .simulation.ocsp import Status

DRIVER = "550.00.00"
"""No driver that was ever published."""


class Simulator:
    """Signs evidence for `gpus` made-up devices, and all that a verifier asks for beside it.

    `delay`: seconds that a report takes. `arch`: HOPPER or BLACKWELL. `mode`: SPT, PPCIE or,
    of BLACKWELL, MPT. `device_ends`, `rim_ends`: when the GPUs' and the manifest signers'
    certificates end. `ocsp_url`: the responder that certificates name.
    `devices` may be changed freely to make bad evidence; `statuses` maps serial numbers to
    what the responder says of them, `good` where there is nothing.
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
        rim_ends: datetime = FOREVER,
        ocsp_url: str = OCSP_URL,
    ) -> None:
        self.delay = delay
        self.driver = driver
        self.arch = arch
        self.statuses: dict[int, Status] = {}
        self._device_ends = device_ends
        self._ocsp_url = ocsp_url
        chips = [kind.chip for kind in KINDS.values()]
        self.authorities = Authorities(chips, ocsp_url, rim_ends)
        self.devices = [self.make_gpu(arch, mode) for _ in range(gpus)]

    @property
    def gpus(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the root certificate's DER, for `trust = simulated:<this>`."""
        return hashlib.sha256(self.authorities.root.der).hexdigest()

    def make_gpu(self, arch: str, mode: str = "SPT") -> SimulatedGpu:
        """One more device under the same root, not yet among `devices`."""
        kind = KINDS[arch]
        above = self.authorities.provisioner(kind.chip)
        return gpu.make(
            kind, above, self.driver, mode, ends=self._device_ends, ocsp_url=self._ocsp_url
        )

    def evidence(self, nonce: bytes) -> list[dict[str, str]]:
        """Evidence of all devices over `nonce` (32 bytes), signed for real."""
        if self.delay:
            time.sleep(self.delay)
        return [device.evidence(nonce) for device in self.devices]

    def driver_rim(self, arch: str = "") -> bytes:
        """The signed manifest of the driver for `arch`, the simulator's where that is ""."""
        return self._rim("driver", KINDS[arch or self.arch])

    def vbios_rim(self, arch: str = "") -> bytes:
        """The signed manifest of the VBIOS for `arch`, the simulator's where that is ""."""
        return self._rim("vbios", KINDS[arch or self.arch])

    def rims(self) -> dict[str, bytes]:
        """All manifests that verifying `devices` takes, by their names in a manifest service."""
        found = {}
        for arch in sorted({device.arch for device in self.devices}):
            found[KINDS[arch].driver_rim_id(self.driver)] = self.driver_rim(arch)
            found[KINDS[arch].vbios_rim_id()] = self.vbios_rim(arch)
        return found

    def ocsp(self, request: bytes, status: Status | None = None) -> bytes:
        """The answer to an OCSP request (both DER); without `status` by `statuses`.

        Raises ValueError for what is no request.
        """
        if status is None:
            status = self.statuses.get(ocsp.read(request).serial_number, "good")
        return ocsp.answer(request, self.authorities.issuers(), status)

    def _rim(self, what: str, kind: Kind) -> bytes:
        driver = what == "driver"
        version, indices = (self.driver, DRIVER_VALUES) if driver else (kind.vbios, VBIOS_VALUES)
        golden = kind.golden(indices, version)
        return rim.build(version, kind.chip, golden, self.authorities.rim_chain(what))
