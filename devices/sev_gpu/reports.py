"""One hardware report as the node hands it on: collected, checked, with the CPU's beside it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hyperbeam import NotFound, Unavailable
from hyperbeam.verify import token
from hyperbeam.verify.challenge import gpu_digest

from .checking import Checker
from .collect import REAL, Choice, Evidence

if TYPE_CHECKING:
    from hyperbeam.node import Node

CPU_DEVICE = "snp@1.0"


@dataclass(frozen=True, slots=True)
class Report:
    """`nonce`: what the GPUs signed, in hex. `token`: base64 of the JSON of `evidences`.

    `cpu`: the CPU's quote over the same, or None. `verified`: by the operator's policy, as
    far as is known without asking the network.
    """

    nonce: str
    backend: str
    evidences: list[Evidence]
    token: str
    claims: list[dict[str, Any]]
    verified: bool
    reason: str
    cpu: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """What an attestation has of it."""
        return {
            "backend": self.backend,
            "evidences": self.evidences,
            "token": self.token,
            "claims": self.claims,
            "verified": self.verified,
            "cpu": self.cpu,
        }


class Reporter:
    """Makes reports: collector, check, CPU."""

    def __init__(self, node: Node, choice: Choice, checker: Checker) -> None:
        self._node = node
        self._choice = choice
        self._checker = checker

    async def make(self, nonce: str) -> Report:
        """A report over `nonce` (hex). Raises Unavailable, so that nothing half is handed out."""
        collector = await self._choice.find()
        evidences = await collector.collect(bytes.fromhex(nonce))
        verdict = await self._checker.own(evidences, nonce)
        return Report(
            nonce=nonce,
            backend=collector.name,
            evidences=evidences,
            token=token.encode([*evidences]),
            claims=verdict.claims,
            verified=verdict.verified and verdict.trust == "nvidia" and collector.name in REAL,
            reason=verdict.reason,
            cpu=await self._cpu(nonce, evidences),
        )

    async def _cpu(self, nonce: str, evidences: list[Evidence]) -> dict[str, Any] | None:
        """The CPU's quote. None only where this machine gives none at all."""
        try:
            await self._ask({"probe": True})
        except (NotFound, Unavailable):
            return None
        reports = [base64.b64decode(one["evidence"]) for one in evidences]
        return await self._ask({"nonce": nonce, "gpu": gpu_digest(reports)})

    async def _ask(self, quote: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self._node.resolve(
            {}, {"path": f"/~{CPU_DEVICE}/generate", "priv": {"quote": quote}}
        )
        return found
