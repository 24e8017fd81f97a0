"""What a verifier demands. The policy of GPU evidence (`nvidia.Policy`), and what is beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from . import jcs, nvidia, shape, snp
from .checkpoint import COSIGNATURE, VerifierKey
from .checks import Malformed
from .reading import read_object

MALFORMED = "policy-malformed"
MAX_BYTES = 1 << 20

_OWN: dict[str, shape.Rule] = {
    "nodes": shape.optional(shape.listing(shape.address, 1, 1024)),
    "models": shape.optional(shape.listing(shape.digest, 1, 1024)),
    "witnesses": shape.optional(shape.listing(shape.text(), 1, 64)),
    "require_fresh": shape.boolean,
    "require_cpu": shape.boolean,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole list that `verified: true` depends on; None leaves a thing open.

    `nodes`: addresses of the only nodes to believe. `models`: SHA-256 of the only models, and
    they must be hashed by the node. `require_fresh`: the verifier's nonce must be given and
    signed. `cpu`: for CPU evidence, where there is any; `require_cpu`: there must be.
    `witnesses`: C2SP verifier keys, one of which must have cosigned a log's head.
    """

    gpu: nvidia.Policy = field(default_factory=nvidia.Policy)
    cpu: snp.Policy = field(default_factory=snp.Policy)
    nodes: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    witnesses: tuple[str, ...] | None = None
    require_fresh: bool = False
    require_cpu: bool = False

    @classmethod
    def parse(cls, value: dict[str, Any] | str | bytes) -> Policy:
        """Read an object with the fields here and of `nvidia.Policy` beside each other.

        `snp` in it is an object with the fields of `snp.Policy`, `measurements` a short way to
        say that one of them. What is left out is strict. Raises Malformed `policy-malformed`.
        """
        if not isinstance(value, dict):
            if len(value) > MAX_BYTES:
                raise Malformed("the policy is over 1 MiB", MALFORMED)
            value = read_object(value, "the policy", MALFORMED)
        _check_names(value)
        rest = dict(value)
        cpu = rest.pop("snp", {})
        if "measurements" in rest:
            cpu = _with_measurements(cpu, rest.pop("measurements"))
        own = {name: rest.pop(name) for name in _OWN if name in rest}
        for name, item in own.items():
            shape.check(item, _OWN[name], f"policy: `{name}`", MALFORMED)
        for text in own.get("witnesses") or ():
            _check_witness(text)
        words: dict[str, Any] = {n: tuple(i) if isinstance(i, list) else i for n, i in own.items()}
        return cls(gpu=nvidia.Policy.parse(rest), cpu=snp.Policy.parse(cpu), **words)

    def with_trust(self, trust: str) -> Policy:
        """This policy for another root: `nvidia` or `simulated:<fingerprint>`."""
        gpu = {name: item for name, item in self.gpu.as_dict().items() if item is not None}
        return replace(self, gpu=nvidia.Policy.parse({**gpu, "trust": trust}))

    def at(self, clock: int) -> Policy:
        """This policy with reference manifests judged at `clock` (ms)."""
        return replace(self, gpu=replace(self.gpu, rim_clock=clock))

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON has it, all fields said."""
        own = {name: getattr(self, name) for name in _OWN}
        lists = {n: sorted(i) if isinstance(i, tuple) else i for n, i in own.items()}
        return {**self.gpu.as_dict(), **lists, "snp": self.cpu.as_dict()}

    def digest(self) -> str:
        """SHA-256 of the policy's canonical JSON, in hex."""
        return jcs.digest(self.as_dict())


def _check_names(value: dict[str, Any]) -> None:
    known = {*nvidia.Policy().as_dict(), *_OWN, "snp", "measurements"}
    for name in value:
        if name not in known:
            said = f"`{str(name)[:50]}` is not one of {', '.join(sorted(known))}"
            raise Malformed(f"policy: {said}", MALFORMED)


def _with_measurements(cpu: Any, measurements: Any) -> Any:
    if not isinstance(cpu, dict):
        return cpu
    if cpu.get("measurements", measurements) != measurements:
        raise Malformed("policy: `measurements` and `snp.measurements` differ", MALFORMED)
    return {**cpu, "measurements": measurements}


def _check_witness(text: str) -> None:
    try:
        key = VerifierKey.parse(text)
    except Malformed as error:
        raise Malformed(f"policy: `witnesses`: {error.detail}", MALFORMED) from None
    if key.kind != COSIGNATURE:
        raise Malformed(f"policy: the key of {key.name} is no witness's", MALFORMED)
