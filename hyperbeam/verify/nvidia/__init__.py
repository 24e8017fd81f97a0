"""Checks evidence of NVIDIA GPUs: who signed it, for which nonce, and what was measured."""

from ..checks import Malformed
from .cache import Cache
from .evidence import Evidence, read
from .policy import Policy
from .resources import Fetch, Resources
from .verdict import Verdict
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
