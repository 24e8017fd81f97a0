"""What a policy demands of a document, and what a document of its kind is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .checks import Malformed
from .nvidia.report import MODES
from .policy import Policy

UNUSED = "not-compared"
_ATTESTED = ("answer", "stream", "attestation")
_COMPARED: dict[str, tuple[str, ...]] = {
    "nonce": (*_ATTESTED, "challenge", "evidence", "receipt", "inclusion"),
    "request": (*_ATTESTED, "receipt", "inclusion"),
    "receipt": (*_ATTESTED, "inclusion"),
    "answer": ("receipt", "inclusion"),
    "keyset": (*_ATTESTED, "challenge", "evidence", "receipt", "inclusion", "consistency",
               "checkpoint"),
}  # fmt: skip
"""For what a verifier brings, the kinds of documents that it is for."""


def demanded(policy: Policy) -> Iterator[tuple[str, str]]:
    """(field of the policy, check that it demands), whether a document can show it or not."""
    gpu = policy.gpu
    for wanted, name, check in (
        (policy.nodes is not None, "nodes", "node"),
        (policy.models is not None, "models", "model"),
        (policy.witnesses is not None, "witnesses", "log-witness"),
        (policy.require_fresh, "require_fresh", "fresh"),
        (policy.require_cpu, "require_cpu", "cpu"),
        (bool(policy.cpu.measurements), "measurements", "cpu"),
        (gpu.gpu_count is not None, "gpu_count", "gpu"),
        (gpu.ueids is not None, "ueids", "gpu"),
        (gpu.min_driver is not None, "min_driver", "gpu"),
        (set(gpu.modes) != set(MODES), "modes", "gpu"),
    ):
        if wanted:
            yield name, check


def check_brought(kind: str, brought: dict[str, Any]) -> None:
    """Raises Malformed `not-compared` for what a document of `kind` is not compared with.

    `brought`: by the names of `_COMPARED`; None and empty lists were not brought.
    """
    for name, value in brought.items():
        if value in (None, []) or kind in _COMPARED[name]:
            continue
        raise Malformed(
            f"`{name}` is for documents of kind {', '.join(_COMPARED[name])}; this one, of kind "
            f"{kind}, is not compared with it",
            UNUSED,
        )
