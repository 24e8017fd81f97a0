"""Claims about one GPU under the names that NVIDIA's own tools give them (claims 3.0)."""

from __future__ import annotations

import re
from typing import Any

from cryptography import x509

from . import chain as chains
from .device import Gpu
from .rim import Rim

OEM = "5703"
_PREFIX = "x-nvidia-gpu-"
_REPORT = f"{_PREFIX}attestation-report-"
_OF_A_RIM = (
    "fetched", "schema-validated", "signature-verified", "version-match",
    "measurements-available", "cert-chain",
)  # fmt: skip
NAMES = frozenset(
    {
        *("measres", "hwmodel", "ueid", "oemid", "eat_nonce", "mode", "secboot", "dbgstat"),
        *(f"{_PREFIX}{name}" for name in ("arch-check", "driver-version", "vbios-version")),
        *(f"{_REPORT}{name}" for name in ("parsed", "nonce-match", "signature-verified")),
        *(f"{_REPORT}{name}" for name in ("cert-chain", "cert-chain-fwid-match")),
        *(f"{_PREFIX}{rim}-rim-{name}" for rim in ("driver", "vbios") for name in _OF_A_RIM),
        f"{_PREFIX}vbios-index-no-conflict",
    }
)
"""All claims that are made about a GPU."""
_WORDS = ("success", "fail", "absent", "disabled")
_OF_A_CHAIN = {
    "x-nvidia-cert-expiration-date": re.compile(r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}"),
    "x-nvidia-cert-status": re.compile("valid|invalid|revoked"),
    "x-nvidia-cert-ocsp-status": re.compile("good|revoked|unknown"),
    "x-nvidia-cert-revocation-reason": re.compile("revoked|certificate_hold"),
}


def is_possible(value: Any) -> bool:
    """Whether a claim can have this value, where policy, manifests or OCSP decide about it."""
    if not isinstance(value, dict):
        return value is None or isinstance(value, bool) or value in _WORDS
    return value.keys() == _OF_A_CHAIN.keys() and all(
        part is None or (isinstance(part, str) and _OF_A_CHAIN[name].fullmatch(part) is not None)
        for name, part in value.items()
    )


def unread(parsed: bool = False) -> dict[str, Any]:
    """The claims about a GPU of which nothing could be read, or only the report."""
    return {"measres": "absent", f"{_PREFIX}attestation-report-parsed": parsed}


def of(
    gpu: Gpu, driver: Rim | None, vbios: Rim | None, statuses: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """All claims. `secboot` and `dbgstat` stand only where measurements match: constants.

    `statuses`: for `gpu`, `driver` and `vbios` the OCSP status and revocation reason.
    """
    ok = gpu.checks.ok
    matched = ok("measurements")
    claims: dict[str, Any] = {
        "measres": measured(gpu),
        "hwmodel": gpu.hwmodel,
        "ueid": gpu.ueid,
        "oemid": OEM,
        "eat_nonce": gpu.report.nonce.hex(),
        "mode": gpu.report.mode,
        f"{_PREFIX}arch-check": ok("arch"),
        f"{_PREFIX}driver-version": gpu.report.driver,
        f"{_PREFIX}vbios-version": gpu.report.vbios,
        f"{_REPORT}parsed": True,
        f"{_REPORT}nonce-match": ok("nonce"),
        f"{_REPORT}signature-verified": gpu.signed,
        f"{_REPORT}cert-chain": _chain(gpu.chain, gpu.trusted, statuses.get("gpu", {})),
        f"{_REPORT}cert-chain-fwid-match": _fwid(gpu),
        f"{_PREFIX}vbios-index-no-conflict": not _conflict(driver, vbios),
    }
    for name, rim in (("driver", driver), ("vbios", vbios)):
        claims |= _rim(f"{_PREFIX}{name}-rim-", rim, ok(f"{name}-rim"), statuses.get(name, {}))
    if matched and gpu.sound:
        claims |= {"secboot": True, "dbgstat": "disabled"}
    return claims


def measured(gpu: Gpu) -> str:
    """`success`, `fail`, or `absent` where nothing was compared."""
    results = [check.result for check in gpu.checks.items if check.name == "measurements"]
    if "fail" in results:
        return "fail"
    return "success" if "pass" in results else "absent"


def _fwid(gpu: Gpu) -> bool | None:
    return gpu.checks.ok("fwid") if gpu.report.fwid else None


def _conflict(driver: Rim | None, vbios: Rim | None) -> bool:
    return bool(driver and vbios and driver.golden.keys() & vbios.golden.keys())


def _rim(prefix: str, rim: Rim | None, good: bool, status: dict[str, Any]) -> dict[str, Any]:
    loaded = rim is not None
    return {
        f"{prefix}fetched": loaded,
        f"{prefix}schema-validated": loaded,
        f"{prefix}signature-verified": loaded,
        f"{prefix}version-match": good,
        f"{prefix}measurements-available": bool(rim and rim.golden),
        f"{prefix}cert-chain": _chain(rim.chain, good, status) if rim else None,
    }


def _chain(chain: list[x509.Certificate], valid: bool, status: dict[str, Any]) -> dict[str, Any]:
    revoked = status.get("reason")
    return {
        "x-nvidia-cert-expiration-date": chains.ends(chain).replace(tzinfo=None).isoformat(),
        "x-nvidia-cert-status": "revoked" if revoked else "valid" if valid else "invalid",
        "x-nvidia-cert-ocsp-status": status.get("status"),
        "x-nvidia-cert-revocation-reason": revoked,
    }
