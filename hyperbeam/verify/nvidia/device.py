"""One GPU of the evidence, checked against the root: all that needs no golden values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..checks import Checks
from . import chain as chains
from . import der, report
from .evidence import Evidence
from .policy import Policy, driver_at_least
from .refused import Refused

ARCHS = {"GH": "HOPPER", "GB": "BLACKWELL"}

_CHIP = re.compile(r"\b(G[HB][0-9]{2}[0-9A-Z])\b")
_FWID_BY_ARCH = {"HOPPER": der.COMPOSITE_DEVICE_ID, "BLACKWELL": der.TCB_INFO}


@dataclass(slots=True)
class Gpu:
    """A GPU whose report and chain could be read.

    `chain` ends with `root`, which is trusted, or with its own where `root` is None.
    `label` begins each sentence about it. `compared`: how many measurements matched.
    `sound`: its chain and the report's signature hold.
    """

    evidence: Evidence
    report: report.Report
    chain: list[x509.Certificate]
    root: x509.Certificate | None
    label: str = ""
    compared: int = 0
    checks: Checks = field(default_factory=Checks)
    signed: bool = False
    trusted: bool = False

    @property
    def sound(self) -> bool:
        return self.signed and self.trusted

    @property
    def ueid(self) -> str:
        """The leaf certificate's serial number in decimal, NVIDIA's name for the device."""
        return str(self.chain[0].serial_number)

    @property
    def hwmodel(self) -> str:
        """The common name of the certificate that the device was made with."""
        return chains.name(self.maker)

    @property
    def maker(self) -> x509.Certificate:
        """The certificate of the device itself, which issued the leaf."""
        return self.chain[min(1, len(self.chain) - 1)]

    @property
    def chip(self) -> str:
        """As `GH100` or `GB202`: what the report says, else the certificates, else ""."""
        if self.report.chip:
            return self.report.chip
        found = (_CHIP.search(chains.name(certificate)) for certificate in self.chain[:3])
        return next((match[1] for match in found if match), "")

    def passed(self, name: str, detail: str) -> None:
        self.checks.passed(name, self.label + detail, "hardware")

    def failed(self, name: str, reason: str, detail: str) -> None:
        self.checks.failed(name, reason, self.label + detail, "hardware")

    def unknown(self, name: str, reason: str, detail: str) -> None:
        self.checks.unknown(name, reason, self.label + detail)


def trusted_root(policy: Policy, chain: list[x509.Certificate]) -> x509.Certificate | None:
    """The root that `chain` has to end in; None where it does not bring the simulated one."""
    if policy.trust == "nvidia":
        return chains.device_root()
    wanted = policy.trust.partition(":")[2]
    return chain[-1] if chains.fingerprint(chain[-1]) == wanted else None


def check_nonce(gpu: Gpu, nonce: str | None) -> None:
    """The caller's nonce is the one in the report, and the evidence says no other."""
    signed = gpu.report.nonce.hex()
    if gpu.evidence.nonce not in ("", signed):
        detail = "the evidence names another nonce than the report it holds"
        gpu.failed("nonce", "evidence-nonce-conflict", detail)
    elif nonce is None:
        gpu.failed("nonce", "nonce-not-given", "no nonce was given to compare with the report's")
    elif nonce != signed:
        gpu.failed("nonce", "nonce-mismatch", f"the report is over the nonce {signed}")
    else:
        gpu.passed("nonce", "the report is over the nonce that was given")


def check_chain(gpu: Gpu, now: datetime) -> None:
    """The certificates reach the trusted root and are valid at `now`."""
    if gpu.root is None:
        gpu.failed("chain", "root-not-trusted", "the chain does not end in the simulated root")
        return
    try:
        chains.check(gpu.chain)
        chains.check_dates(gpu.chain, now)
    except Refused as refused:
        gpu.failed("chain", _chain_reason(refused.reason), refused.detail)
        return
    gpu.trusted = True
    gpu.passed("chain", f"{len(gpu.chain)} certificates up to {chains.name(gpu.chain[-1])}")


def _chain_reason(word: str) -> str:
    return word if word.startswith("root") else f"chain-{word}"


def check_arch(gpu: Gpu) -> None:
    """The architecture that the evidence names is that of the chip."""
    arch = ARCHS.get(gpu.chip[:2])
    if gpu.evidence.arch not in ARCHS.values():
        gpu.failed("arch", "arch-unknown", f"{gpu.evidence.arch} is no architecture known here")
    elif arch is None:
        gpu.failed("arch", "arch-unknown", "neither report nor certificates name a known chip")
    elif arch != gpu.evidence.arch:
        detail = f"the evidence says {gpu.evidence.arch}, the chip is a {gpu.chip}"
        gpu.failed("arch", "arch-mismatch", detail)
    else:
        gpu.passed("arch", f"{arch}, {gpu.chip}")


def check_firmware_id(gpu: Gpu) -> None:
    """The firmware id in the report is the one that the leaf certificate was made for."""
    if not gpu.report.fwid:
        gpu.unknown("fwid", "fwid-not-reported", "this firmware reports no id to compare")
        return
    oid = _FWID_BY_ARCH.get(gpu.evidence.arch, der.TCB_INFO)
    if der.firmware_id(gpu.chain[0], oid) == gpu.report.fwid:
        gpu.passed("fwid", "the certificate is for the firmware that made the report")
    else:
        gpu.failed("fwid", "fwid-mismatch", "the certificate is not for the reported firmware")


def check_policy(gpu: Gpu, policy: Policy) -> None:
    """Mode, driver and device are among those that `policy` lets through."""
    if gpu.report.mode in policy.modes:
        gpu.passed("mode", gpu.report.mode)
    else:
        gpu.failed("mode", "mode-not-allowed", f"the mode is {gpu.report.mode}")
    if policy.min_driver is not None:
        said = f"driver {gpu.report.driver}, at least {policy.min_driver} is wanted"
        if driver_at_least(gpu.report.driver, policy.min_driver):
            gpu.passed("driver", said)
        else:
            gpu.failed("driver", "driver-too-old", said)
    if policy.ueids is not None:
        if gpu.ueid in policy.ueids:
            gpu.passed("device", f"ueid {gpu.ueid} is on the policy's list")
        else:
            gpu.failed("device", "ueid-not-allowed", f"ueid {gpu.ueid} is not on the list")


def check_signature(gpu: Gpu) -> None:
    """Find out whether the leaf certificate's key signed the report."""
    try:
        gpu.signed = gpu.report.signed_by(chains.key(gpu.chain[0]))
    except Refused:
        gpu.signed = False


def report_signature(gpu: Gpu) -> None:
    """Set the signature's result down: after the measurements, whose change says more."""
    if gpu.signed:
        gpu.passed("report-signature", "the GPU's key signed the report")
    else:
        detail = "it is not by this certificate's key, or the report was changed since"
        gpu.failed("report-signature", "report-signature-invalid", detail)


def public_bytes(certificate: x509.Certificate) -> bytes:
    """The certificate's public key, which makes two devices two."""
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
