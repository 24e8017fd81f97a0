"""Checks what a node said, without a node: importable where no server runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import Check, Checks, Malformed
    from .heads import FileHeads, Heads, MemoryHeads
    from .keyset import KeySet
    from .policy import Policy
    from .revoked import Revoked
    from .verdict import MEANING, Claim, Verdict
    from .verifier import verify

__all__ = [
    "MEANING",
    "Check",
    "Checks",
    "Claim",
    "FileHeads",
    "Heads",
    "KeySet",
    "Malformed",
    "MemoryHeads",
    "Policy",
    "Revoked",
    "Verdict",
    "verify",
]

_MODULES = {
    "checks": ("Check", "Checks", "Malformed"),
    "heads": ("FileHeads", "Heads", "MemoryHeads"),
    "keyset": ("KeySet",),
    "policy": ("Policy",),
    "revoked": ("Revoked",),
    "verdict": ("MEANING", "Claim", "Verdict"),
    "verifier": ("verify",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: a node that signs needs none of what checks."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)
