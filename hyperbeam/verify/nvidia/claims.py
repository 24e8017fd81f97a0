"""Claims about one GPU under the names that NVIDIA's own tools give them (claims 3.0)."""

from __future__ import annotations

from typing import Any

from cryptography import x509

from . import chain as chains
from .device import Gpu
from .rim import Rim

OEM = "5703"
_PREFIX = "x-nvidia-gpu-"


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
    report = f"{_PREFIX}attestation-report-"
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
        f"{report}parsed": True,
        f"{report}nonce-match": ok("nonce"),
        f"{report}signature-verified": gpu.signed,
        f"{report}cert-chain": _chain(gpu.chain, gpu.trusted, statuses.get("gpu", {})),
        f"{report}cert-chain-fwid-match": _fwid(gpu),
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
