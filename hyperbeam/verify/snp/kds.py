"""Where AMD's key distribution service (KDS) has the certificates for a report.

Source: AMD VCEK Certificate and KDS Interface Specification (57230), chapter 4.
"""

from __future__ import annotations

from .report import Key, Report, Tcb
from .roots import Product

SERVICE = "https://kdsintf.amd.com"
_TURIN_CHIP_ID = 8


def vcek_url(base: str, report: Report, product: Product) -> str:
    """The address of the VCEK (DER) of the report's chip at its reported TCB."""
    tcb = Tcb.read(report.reported_tcb, product)
    chip = report.chip_id[:_TURIN_CHIP_ID] if product == "Turin" else report.chip_id
    levels = {
        "blSPL": tcb.bootloader,
        "teeSPL": tcb.tee,
        "snpSPL": tcb.snp,
        "ucodeSPL": tcb.microcode,
    }
    if product == "Turin":
        levels = {"fmcSPL": tcb.fmc, **levels}
    query = "&".join(f"{name}={level:02}" for name, level in levels.items())
    return f"{base.rstrip('/')}/vcek/v1/{product}/{chip.hex()}?{query}"


def chain_url(base: str, product: Product, key: Key) -> str:
    """The address of the signing key's and the root's certificates (PEM)."""
    return f"{base.rstrip('/')}/{key}/v1/{product}/cert_chain"
