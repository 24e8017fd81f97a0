"""The whole check of GPU evidence: devices, golden measurements, revocation, verdict."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from ..checks import Check, Checks, Malformed
from . import chain as chains
from . import claims, device, golden, report
from .device import Gpu
from .evidence import Evidence, read, read_nonce
from .fetching import Fetcher, without_nvidia
from .ocsp import Answer, Revocation
from .policy import Policy
from .resources import Resources
from .rim import Rim
from .verdict import Measurements, Trust, Verdict
from .verdict import Revocation as RevocationWord


def verify(
    evidences: Any,
    nonce: str | None,
    policy: Policy | None = None,
    *,
    resources: Resources | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Check GPU evidence, a list as in `evidence`, against the caller's `nonce` (64 hex).

    Never raises for what it is given: what cannot be read is a failed check with a reason.
    `now` is the clock for everything but where `policy.rim_clock` says another. Without
    `resources` there are no RIMs and no OCSP, which the default policy does not let pass.
    """
    moment = now or datetime.now(UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _Verification(policy or Policy(), resources or Resources(), moment).run(evidences, nonce)


class _Verification:
    def __init__(self, policy: Policy, resources: Resources, now: datetime) -> None:
        self._policy = policy
        self._resources = resources
        self._now = now
        fetch = resources.fetch
        if fetch is not None and policy.trust != "nvidia":
            fetch = without_nvidia(fetch)
        self._fetcher = Fetcher(fetch, resources.deadline)
        self._checks = Checks()
        self._gpus: list[Gpu] = []
        self._claims: list[dict[str, Any]] = []
        self._golden: golden.Golden | None = None
        self._answers: dict[str, Answer] = {}

    def run(self, evidences: Any, nonce: str | None) -> Verdict:
        try:
            wanted = None if nonce is None else read_nonce(nonce, "the nonce that was given")
            entries = read(evidences)
        except Malformed as error:
            self._checks.failed("evidence", error.reason, error.detail)
            return self._verdict(0)
        slots = [self._open(entry, index, len(entries)) for index, entry in enumerate(entries)]
        self._gpus = [gpu for gpu in slots if gpu is not None]
        for gpu in self._gpus:
            device.check_nonce(gpu, wanted)
            device.check_arch(gpu)
            device.check_chain(gpu, self._now)
            device.check_firmware_id(gpu)
            device.check_policy(gpu, self._policy)
            device.check_signature(gpu)
        if self._gpus:
            self._check_together()
            self._check_golden()
        for gpu in self._gpus:
            device.report_signature(gpu)
        self._check_revocation()
        self._claims = [claims.unread() if gpu is None else self._claims_of(gpu) for gpu in slots]
        return self._verdict(len(entries))

    def _open(self, entry: Evidence, index: int, count: int) -> Gpu | None:
        label = f"GPU {index}: " if count > 1 else ""
        try:
            read_report = report.parse(entry.report)
        except Malformed as error:
            self._checks.failed("report", error.reason, label + error.detail, "hardware")
            return None
        try:
            chain = chains.read_pem(entry.chain)
        except Malformed as error:
            self._checks.failed("chain", error.reason, label + error.detail, "hardware")
            return None
        root = device.trusted_root(self._policy, chain)
        whole = chain if root is None else chains.complete(chain, root)
        gpu = Gpu(entry, read_report, whole, root, label)
        gpu.passed("report", f"{len(read_report.measurements)} measurements were read")
        return gpu

    def _check_together(self) -> None:
        gpus, checks = self._gpus, self._checks
        for reason, values, what in (
            ("mixed-nonces", {gpu.report.nonce for gpu in gpus}, "nonces"),
            ("mixed-modes", {gpu.report.mode for gpu in gpus}, "modes"),
            ("mixed-archs", {gpu.evidence.arch for gpu in gpus}, "architectures"),
        ):
            if len(values) > 1:
                checks.failed("together", reason, f"the reports have different {what}", "hardware")
        for reason, ids in (
            ("repeated-leaf", {device.public_bytes(gpu.chain[0]) for gpu in gpus}),
            ("repeated-device", {device.public_bytes(gpu.maker) for gpu in gpus}),
            ("repeated-ueid", {gpu.ueid for gpu in gpus}),
        ):
            if len(ids) < len(gpus):
                checks.failed("together", reason, "one GPU stands in the list twice", "hardware")
        wanted = self._policy.gpu_count
        if wanted is not None and wanted != len(gpus):
            detail = f"{len(gpus)} GPUs, {wanted} are wanted"
            checks.failed("together", "gpu-count", detail, "hardware")

    def _check_golden(self) -> None:
        root = self._rim_root()
        if root is None:
            return
        self._golden = golden.Golden(self._policy, self._resources, root, self._now)
        self._golden.find(self._gpus, None if self._failed() else self._fetcher)
        for gpu in self._gpus:
            self._golden.compare(gpu)

    def _rim_root(self) -> x509.Certificate | None:
        if self._policy.trust == "nvidia":
            return chains.rim_root()
        return next((gpu.root for gpu in self._gpus if gpu.root is not None), None)

    def _failed(self) -> bool:
        lists = (self._checks, *(gpu.checks for gpu in self._gpus))
        return any(checks.reason() for checks in lists) or not all(gpu.sound for gpu in self._gpus)

    def _rims_of(self, gpu: Gpu) -> tuple[Rim | None, Rim | None]:
        return self._golden.rims(gpu) if self._golden is not None else (None, None)

    def _check_revocation(self) -> None:
        if self._policy.ocsp == "skip" or not self._gpus or self._failed():
            detail = (
                "the policy does not ask whether certificates were revoked"
                if self._policy.ocsp == "skip"
                else "not asked, as other checks failed"
            )
            self._checks.unknown("revocation", "revocation-unchecked", detail)
            return
        chains_of = {id(gpu): self._chains(gpu) for gpu in self._gpus}
        pairs = [pair for parts in chains_of.values() for part in parts.values() for pair in part]
        asked = Revocation(self._policy.ocsp, self._resources, self._now)
        self._answers = asked.ask(pairs, self._fetcher)
        for gpu in self._gpus:
            for what, part in chains_of[id(gpu)].items():
                name = "revocation" if what == "gpu" else f"{what}-rim-revocation"
                refused = self._worst(part)
                if refused is None:
                    gpu.passed(name, f"{len(part)} certificates are not revoked")
                else:
                    gpu.failed(name, refused.reason, refused.detail)

    def _chains(self, gpu: Gpu) -> dict[str, list[tuple[x509.Certificate, x509.Certificate]]]:
        """(certificate, issuer) to ask for; a GPU issues its own leaf, which nobody lists."""
        driver, vbios = self._rims_of(gpu)
        found = {"gpu": list(zip(gpu.chain[1:], gpu.chain[2:], strict=False))}
        for name, rim in (("driver", driver), ("vbios", vbios)):
            if rim is not None:
                found[name] = list(zip(rim.chain, rim.chain[1:], strict=False))
        return found

    def _worst(self, part: list[tuple[x509.Certificate, x509.Certificate]]) -> Answer:
        answers = [self._answers.get(chains.fingerprint(certificate)) for certificate, _ in part]
        refused = [answer for answer in answers if answer is not None]
        revoked = (answer for answer in refused if answer.reason.startswith("certificate-"))
        return next(revoked, refused[0] if refused else None)

    def _claims_of(self, gpu: Gpu) -> dict[str, Any]:
        driver, vbios = self._rims_of(gpu)
        statuses = {
            name: self._status(part) if self._answers else {}
            for name, part in self._chains(gpu).items()
        }
        return claims.of(gpu, driver, vbios, statuses)

    def _status(self, part: list[tuple[x509.Certificate, x509.Certificate]]) -> dict[str, Any]:
        refused = self._worst(part)
        if refused is None:
            return {"status": "good"}
        if refused.reason.startswith("certificate-"):
            word = "certificate_hold" if refused.reason == "certificate-hold" else "revoked"
            return {"status": "revoked", "reason": word}
        return {"status": "unknown"}

    def _verdict(self, count: int) -> Verdict:
        complete = 0 < count == len(self._gpus)
        trust: Trust = "none"
        if complete and all(gpu.trusted for gpu in self._gpus):
            trust = "nvidia" if self._policy.trust == "nvidia" else "simulated"
        measurements = self._measurements(complete)
        fresh = complete and all(gpu.checks.ok("nonce") and gpu.sound for gpu in self._gpus)
        if trust == "simulated":
            detail = "SIMULATED: no hardware made this evidence"
            self._checks.failed("trust", "simulated", detail)
        elif measurements == "success":
            detail = "that confidential mode is on is known from the host alone"
            self._checks.unknown("confidential-mode", "declared", detail, "declared")
        checks = self._all_checks()
        if trust != "nvidia":
            # Until the chain leads to NVIDIA, no hardware has said anything.
            checks = [_unsourced(check) for check in checks]
        reason = next((check.reason for check in checks if check.result == "fail"), "")
        return Verdict(
            verified=complete and not reason and trust == "nvidia",
            trust=trust,
            freshness="fresh" if fresh else "unknown",
            revocation=self._revocation(),
            measurements=measurements,
            rims=self._golden.state() if self._golden is not None else "missing",
            reason=reason,
            checks=checks,
            claims=self._claims,
            compared=sum(gpu.compared for gpu in self._gpus),
            policy=self._policy.as_dict(),
            policy_sha256=self._policy.digest(),
        )

    def _all_checks(self) -> list[Check]:
        """What could not be read first, then GPU by GPU, then what concerns them together."""
        first = [check for check in self._checks.items if check.name in _UNREAD]
        last = [check for check in self._checks.items if check.name not in _UNREAD]
        return [*first, *(check for gpu in self._gpus for check in gpu.checks.items), *last]

    def _measurements(self, complete: bool) -> Measurements:
        words = [claims.measured(gpu) for gpu in self._gpus]
        if "fail" in words:
            return "fail"
        return "success" if complete and set(words) == {"success"} else "absent"

    def _revocation(self) -> RevocationWord:
        answers = list(self._answers.values())
        if any(a is not None and a.reason.startswith("certificate-") for a in answers):
            return "revoked"
        return "good" if answers and all(a is None for a in answers) else "unchecked"


def _unsourced(check: Check) -> Check:
    return replace(check, source="unknown") if check.source == "hardware" else check


_UNREAD = frozenset({"evidence", "report", "chain"})
