"""AMD's root keys (ARK), one for each product line. certs/README.md says where from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Literal

Product = Literal["Milan", "Genoa", "Turin"]

PRODUCTS: tuple[Product, ...] = ("Milan", "Genoa", "Turin")
ROOTS: Mapping[str, Product] = {
    "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd": "Milan",
    "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1": "Genoa",
    "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a": "Turin",
}
"""SHA-256 of the root certificate's DER, and whose it is."""
_SHIPPED = ("milan_ask.der", "milan_ark.der")


def shipped() -> list[bytes]:
    """The DER certificates that come with the package: they save evidence from carrying them."""
    folder = resources.files(__package__) / "certs"
    return [(folder / name).read_bytes() for name in _SHIPPED]


def product_of_cpu(family: int, model: int) -> Product | None:
    """The product line of a CPUID family and model. Source: Linux arch/x86/kernel/cpu/amd.c."""
    if family == 0x19 and model <= 0x0F:
        return "Milan"
    if family == 0x19 and (0x10 <= model <= 0x1F or 0xA0 <= model <= 0xAF):
        return "Genoa"
    if family == 0x1A and model <= 0x1F:
        return "Turin"
    return None
