"""Comparing what a GPU measured with the golden values of its driver and its VBIOS."""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography import x509

from . import chain as chains
from . import rim as rims
from .device import ARCHS, Gpu
from .fetching import Fetcher
from .policy import Policy
from .refused import Refused
from .resources import Resources
from .rim import Rim
from .rims import Finder
from .verdict import Rims

VIDEO_DECODER_BLOCK = 36
"""Golden value 35; while the decoder is off its block may hold anything."""

_ABSENT = {
    "missing": "missing",
    "unavailable": "missing",
    "timeout": "timeout",
    "unreachable": "unreachable",
}


class Golden:
    """The RIMs of several GPUs, and how their reports compare."""

    def __init__(
        self, policy: Policy, resources: Resources, root: x509.Certificate, now: datetime
    ) -> None:
        self._policy = policy
        self._now = now
        self._clock = now
        if policy.rim_clock is not None:
            self._clock = datetime.fromtimestamp(policy.rim_clock / 1000, UTC)
        self._finder = Finder(resources, root, now)
        self._found: dict[str, Rim | Refused | None] = {}
        self._states: set[Rims] = set()
        self._asked = False

    def find(self, gpus: list[Gpu], fetcher: Fetcher | None) -> None:
        """Get the RIMs that the reports name; without `fetcher` only those at hand."""
        for gpu in gpus:
            for id, version in _wanted(gpu).values():
                if id not in self._found:
                    self._found[id] = self._finder.at_hand(id, version)
        if fetcher is not None:
            self._asked = True
            missing = [id for id, found in self._found.items() if self._is_worth_asking(found)]
            for id, reply in self._finder.fetch(missing, fetcher).items():
                if self._found[id] is None or isinstance(reply, Rim):
                    self._found[id] = reply

    def rims(self, gpu: Gpu) -> tuple[Rim | None, Rim | None]:
        """The RIMs of the driver and the VBIOS, None where there is none."""
        found = [self._found.get(id) for id, _ in _wanted(gpu).values()]
        driver, vbios = (rim if isinstance(rim, Rim) else None for rim in found)
        return driver, vbios

    def compare(self, gpu: Gpu) -> None:
        """Check both RIMs and the measurements against them."""
        usable: dict[str, Rim] = {}
        for kind, (id, version) in _wanted(gpu).items():
            rim = self._usable(gpu, kind, self._found.get(id), version)
            if rim is not None:
                usable[kind] = rim
        if usable:
            _compare(gpu, usable)

    def state(self) -> Rims:
        """The worst of all RIMs that were looked at."""
        order: tuple[Rims, ...] = ("invalid", "missing", "expired", "valid")
        return next((state for state in order if state in self._states), "missing")

    def _is_worth_asking(self, found: Rim | Refused | None) -> bool:
        """Whether the service may have better: nothing is at hand, or what is has ended."""
        if isinstance(found, Rim):
            return self._dates(found, self._clock) is not None
        return found is None

    def _dates(self, rim: Rim, at: datetime) -> Refused | None:
        try:
            chains.check_dates(rim.chain, at)
        except Refused as refused:
            return refused
        return None

    def _usable(self, gpu: Gpu, kind: str, found: Rim | Refused | None, version: str) -> Rim | None:
        name = f"{kind}-rim"
        refused = found if isinstance(found, Refused) else None
        if found is None or (refused is not None and refused.reason in _ABSENT):
            self._absent(gpu, kind, refused)
            return None
        if isinstance(found, Rim):
            refused = self._unfit(gpu, found, version)
        if refused is not None or not isinstance(found, Rim):
            reason, detail = (refused.reason, refused.detail) if refused else ("malformed", "")
            self._states.add("expired" if reason == "expired" else "invalid")
            gpu.failed(name, f"{name}-{reason}", f"the {kind}'s RIM: {detail}")
            return None
        ended = self._dates(found, self._now)
        self._states.add("expired" if ended is not None else "valid")
        said = f"; {ended.detail}" if ended is not None else ""
        gpu.passed(name, f"the {kind}'s RIM is signed and for {version}{said}")
        return found

    def _absent(self, gpu: Gpu, kind: str, refused: Refused | None) -> None:
        self._states.add("missing")
        name = f"{kind}-rim"
        if not self._asked:
            gpu.unknown(name, f"{name}-not-asked", f"no RIM of the {kind} is at hand")
            return
        reason = f"{name}-{_ABSENT[refused.reason] if refused else 'missing'}"
        detail = f"there is no RIM of the {kind}: {refused.detail}" if refused else ""
        add = gpu.failed if self._policy.rims == "require" else gpu.unknown
        add(name, reason, detail)

    def _unfit(self, gpu: Gpu, rim: Rim, version: str) -> Refused | None:
        if rim.version.lower() != version.lower():
            said = f"it is for {rim.version}, the GPU runs {version}"
            return Refused("version-mismatch", said)
        arch = ARCHS.get(rim.product[:2])
        if arch is not None and arch != gpu.evidence.arch:
            return Refused("product-mismatch", f"it is for {rim.product}")
        if not rim.golden:
            return Refused("empty", "it has no active measurement")
        return self._dates(rim, self._clock)


def _wanted(gpu: Gpu) -> dict[str, tuple[str, str]]:
    """RIM id and version, for the driver and the VBIOS."""
    report = gpu.report
    return {
        "driver": (rims.driver_id(report, gpu.evidence.arch), report.driver),
        "vbios": (rims.vbios_id(report), report.vbios),
    }


def _compare(gpu: Gpu, usable: dict[str, Rim]) -> None:
    """Each active golden value must be matched, and at least one of each RIM."""
    name = "measurements"
    blocks = [block for rim in usable.values() for block in rim.golden]
    if len(set(blocks)) != len(blocks):
        gpu.failed(name, "rim-index-conflict", "both RIMs have a value for one measurement")
        return
    wrong: list[int] = []
    for kind, rim in usable.items():
        matched = 0
        for block in sorted(rim.golden):
            if gpu.report.measurements.get(block, b"") in rim.golden[block]:
                matched += 1
            elif block != VIDEO_DECODER_BLOCK or gpu.report.video_decoder:
                wrong.append(block - 1)
        gpu.compared += matched
        if not matched and not wrong:
            gpu.failed(name, f"{kind}-not-compared", f"nothing of the {kind} was compared")
            return
    if wrong:
        listed = ", ".join(map(str, sorted(wrong)))
        gpu.failed(name, "measurement-mismatch", f"not the golden value: measurement {listed}")
    elif not gpu.sound:
        gpu.compared = 0
        gpu.unknown(name, "report-not-trusted", "they match, but not in a report to be trusted")
    elif len(usable) < 2:
        detail = f"{gpu.compared} match, but not both RIMs were there"
        gpu.unknown(name, "measurements-not-all-compared", detail)
    else:
        gpu.passed(name, f"{gpu.compared} of {len(blocks)} measurements match")
