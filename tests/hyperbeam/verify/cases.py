"""Whole attested answers over simulated hardware, and how to verify them."""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyperbeam import verify as verifying
from hyperbeam.verify import answer, batch, token
from hyperbeam.verify.challenge import challenge, gpu_digest, quote
from hyperbeam.verify.verdict import Verdict

from .documents import ANSWER, CHUNK, NONCE, STREAM, Signer, sha256
from .nvidia.pki import NOW, World
from .snp.simulated import Processor

DONE = b"data: [DONE]\n\n"
PROCESSOR = Processor(days=(-200, 300))


@functools.cache
def world() -> World:
    return World()


@functools.cache
def rims() -> Path:
    return rims_of(world())


def rims_of(world: World) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hyperbeam-rims-"))
    (folder / "driver.swidtag").write_bytes(world.driver_rim())
    (folder / "vbios.swidtag").write_bytes(world.vbios_rim())
    return folder


def ueid(of: World | None = None) -> str:
    return str((of or world()).gpu()[0].certificate.serial_number)


@dataclass
class Case:
    """A node with one simulated GPU, and what it answers."""

    signer: Signer = field(default_factory=Signer)
    world: World = field(default_factory=world)

    def __post_init__(self) -> None:
        if self.signer.gpu is None:
            self.signer.gpu = {"cc": True, "devtools": False, "ueids": [ueid(self.world)]}

    def evidence(self, nonce: str) -> list[dict[str, Any]]:
        return [self.world.entry(bytes.fromhex(nonce))]

    def attestation(self, raw: str, **changes: Any) -> dict[str, Any]:
        """Of `raw`, with `nonce` and `batch` where the changes name them."""
        nonce = changes.get("nonce", sha256(raw))
        evidences = changes.get("evidences") or self.evidence(nonce)
        gpu = {"ueid": ueid(self.world), "eat_nonce": nonce, "measres": "success"}
        return {
            "raw": raw,
            "signature": self.signer.signature(raw),
            "nonce": nonce,
            "batch": None,
            "backend": "simulated",
            "evidences": evidences,
            "token": token.encode(evidences),
            "claims": [gpu],
            "verified": False,
            "cpu": None,
            **changes,
        }

    def reply(self, raw: str | None = None, **changes: Any) -> bytes:
        return answer.splice(
            ANSWER, "m", self.attestation(raw or self.signer.statement(), **changes)
        )

    def stream(self, **changes: Any) -> bytes:
        raw = self.signer.statement(response=STREAM, stream=True)
        return STREAM + self.event(raw, **changes) + DONE

    def event(self, raw: str, **changes: Any) -> bytes:
        return answer.stream_event(json.loads(CHUNK), "m", self.attestation(raw, **changes))

    def batched(self, index: int, count: int) -> dict[str, Any]:
        """The attestation of one of `count` statements under one report."""
        raws = [self.signer.statement(receipt=f"{n:032x}") for n in range(count)]
        _, batches, nonce = batch.tree(raws)
        return self.attestation(raws[index], nonce=nonce, batch=batches[index])

    def challenged(self, nonce: str = NONCE) -> dict[str, Any]:
        raw, hashed = challenge(self.signer.keyset_name, nonce)
        made = self.attestation(raw, nonce=hashed)
        kept = {k: made[k] for k in ("backend", "evidences", "token", "claims", "verified", "cpu")}
        return {"challenge": raw, "nonce": hashed, "keyset": self.signer.keyset_name, **kept}

    def cpu(self, of: str, evidences: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
        """A quote over the hardware's nonce `of`, or over what the changes say."""
        gpu = gpu_digest([base64.b64decode(entry["evidence"]) for entry in evidences])
        bound = {"keyset": self.signer.keyset_name, "nonce": of, "gpu": gpu, **changes}
        report = PROCESSOR.report(quote(bound["keyset"], bound["nonce"], bound["gpu"]))
        return {
            **bound,
            "report": base64.b64encode(report).decode(),
            "certificates": [base64.b64encode(c).decode() for c in PROCESSOR.certificates()],
            "backend": "configfs",
        }

    def verify(self, document: Any, **brought: Any) -> Verdict:
        """By a verifier that trusts the simulated root and has all that it needs."""
        policy = {"ocsp": "skip", **brought.pop("policy", {})}
        defaults: dict[str, Any] = {
            "keyset": self.signer.keyset(),
            "trust": world().trust,
            "rims": rims(),
            "now": NOW,
        }
        return verifying.verify(document, policy=policy, **{**defaults, **brought})


def problems(verdict: Verdict) -> list[str]:
    """The reasons of what failed."""
    return [check.reason for check in verdict.checks if check.result == "fail"]
