"""A caller's policy on top of the operator's: it may only demand more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyperbeam import BadRequest
from hyperbeam.verify import Policy, nvidia
from hyperbeam.verify.checks import Malformed

_LISTS = ("nodes", "models", "witnesses")
_DEMANDS = ("require_fresh", "require_cpu")
_GPU = frozenset(nvidia.Policy().as_dict())


def tightened(own: Policy, value: Any) -> Policy:
    """`own` with what `value`, a policy object, demands beyond it.

    Raises BadRequest: `policy-malformed`, or `policy-looser` where it would let through what
    `own` does not.
    """
    if not isinstance(value, dict):
        raise BadRequest("`policy` is an object", error="policy-malformed", param="policy")
    try:
        asked = Policy.parse(value)
        gpu = own.gpu.tightened({name: item for name, item in value.items() if name in _GPU})
        cpu = own.cpu.tightened(_cpu(own, value))
    except Malformed as error:
        raise BadRequest(error.detail, error=error.reason, param="policy") from None
    if not own.cpu.measurements:
        # They only tell known code from unknown, and who names them decides for itself.
        cpu = replace(cpu, measurements=asked.cpu.measurements)
    words: dict[str, Any] = {n: getattr(own, n) or getattr(asked, n) for n in _DEMANDS}
    for name in _LISTS:
        words[name] = _fewer(name, getattr(own, name), getattr(asked, name))
    return replace(own, gpu=gpu, cpu=cpu, **words)


def _cpu(own: Policy, value: dict[str, Any]) -> dict[str, Any]:
    asked = dict(value.get("snp") or {})
    if "measurements" in value:
        asked["measurements"] = value["measurements"]
    if not own.cpu.measurements:
        asked.pop("measurements", None)
    return asked


def _fewer(
    name: str, own: tuple[str, ...] | None, asked: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if asked is None:
        return own
    if own is not None and not set(asked) <= set(own):
        raise BadRequest(
            f"policy: `{name}` names what this verifier does not accept; it may only be tightened",
            error="policy-looser",
            param="policy",
        )
    return asked
