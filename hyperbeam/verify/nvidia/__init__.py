"""Checks evidence of NVIDIA GPUs: who signed it, for which nonce, and what was measured."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..checks import Malformed
from .cache import Cache
from .evidence import Evidence, read
from .policy import Policy
from .resources import Fetch, Resources
from .verdict import Verdict

if TYPE_CHECKING:
    from .verifier import verify

__all__ = [
    "Cache",
    "Evidence",
    "Fetch",
    "Malformed",
    "Policy",
    "Resources",
    "Verdict",
    "read",
    "verify",
]


def __getattr__(name: str) -> Any:
    """`verify` is loaded when it is asked for: certificates and XML take half a second."""
    if name != "verify":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(".verifier", __name__).verify
