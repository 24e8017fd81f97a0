"""What a verifier demands of GPU evidence. Strict unless told otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn, cast

from .. import jcs
from ..checks import Malformed
from .report import MODES

Rims = Literal["require", "allow-missing"]
Ocsp = Literal["require", "cached", "skip"]

_RIMS = ("require", "allow-missing")
_OCSP = ("require", "cached", "skip")
_DRIVER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){1,5}\Z")
_UEID = re.compile(r"[0-9]{1,60}\Z")
_SIMULATED = re.compile(r"simulated:[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole list that `verified: true` depends on.

    `rims`: golden measurements must be had, or may be missing. `rim_clock`: ms since 1970
    at which RIM certificates must be valid, None for now. `ocsp`: `require` asks for each
    certificate now, `cached` also takes an answer of the last 24 hours that still stands,
    `skip` does not ask. `modes`: those allowed. `gpu_count`: exactly so many. `ueids`: no
    GPU but these. `min_driver`: as `550.90.07`. `trust`: `nvidia`, or
    `simulated:<SHA-256 of the root certificate's DER>`, which never gives `verified: true`.
    """

    rims: Rims = "require"
    rim_clock: int | None = None
    ocsp: Ocsp = "require"
    modes: tuple[str, ...] = tuple(sorted(MODES))
    gpu_count: int | None = None
    ueids: tuple[str, ...] | None = None
    min_driver: str | None = None
    trust: str = "nvidia"

    @classmethod
    def parse(cls, value: Any) -> Policy:
        """Read a policy object; what it leaves out is strict. Raises Malformed."""
        return cls(**_read(value))

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON has it, all fields said."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "modes": sorted(self.modes),
            "ueids": None if self.ueids is None else sorted(self.ueids),
        }

    def digest(self) -> str:
        """SHA-256 of the policy's canonical JSON, in hex."""
        return jcs.digest(self.as_dict())

    def tightened(self, value: Any) -> Policy:
        """This policy with the fields of `value`.

        Raises Malformed `policy-looser` where one would let through what this one does not.
        """
        asked = _read(value)
        new = replace(self, **asked)
        for name in asked:
            if not _as_strict(name, self, new):
                raise Malformed(
                    f"policy: `{name}` would be looser than this verifier's own; it may only "
                    "be tightened",
                    "policy-looser",
                )
        return new


def driver_at_least(version: str, least: str) -> bool:
    """Whether driver `version` is `least` or later."""
    return _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _as_strict(name: str, old: Policy, new: Policy) -> bool:
    if name == "rims":
        return _RIMS.index(new.rims) <= _RIMS.index(old.rims)
    if name == "ocsp":
        return _OCSP.index(new.ocsp) <= _OCSP.index(old.ocsp)
    if name == "rim_clock":
        return new.rim_clock in (None, old.rim_clock)
    if name == "modes":
        return set(new.modes) <= set(old.modes)
    if name == "gpu_count":
        return old.gpu_count in (None, new.gpu_count)
    if name == "ueids":
        return old.ueids is None or (new.ueids is not None and set(new.ueids) <= set(old.ueids))
    if name == "min_driver":
        return old.min_driver is None or (
            new.min_driver is not None and driver_at_least(new.min_driver, old.min_driver)
        )
    return new.trust in ("nvidia", old.trust)


def _read(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _bad("it is not an object")
    known = {field.name for field in fields(Policy)}
    for name in value:
        if name not in known:
            _bad(f"`{str(name)[:50]}` is not one of {', '.join(sorted(known))}")
    return {name: _field(name, item) for name, item in value.items()}


def _field(name: str, value: Any) -> Any:
    if name in ("rims", "ocsp"):
        words = _RIMS if name == "rims" else _OCSP
        if value not in words:
            _bad(f"`{name}` is one of {', '.join(words)}")
        return value
    if name == "modes":
        return _words(name, value, lambda word: word in MODES, f"of {', '.join(MODES)}")
    if name == "trust":
        if value != "nvidia" and not (isinstance(value, str) and _SIMULATED.match(value)):
            _bad("`trust` is `nvidia` or `simulated:` with 64 hex characters")
        return value
    if value is None:
        return None
    if name == "ueids":
        return _words(name, value, _UEID.match, "of decimal serial numbers")
    if name == "min_driver":
        if not isinstance(value, str) or not _DRIVER.match(value):
            _bad("`min_driver` is a version such as 550.90.07")
        return value
    least, most = (1, 16) if name == "gpu_count" else (0, jcs.MAX_INTEGER)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        _bad(f"`{name}` is a whole number from {least} to {most}")
    return value


def _words(name: str, value: Any, good: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= 1024:
        _bad(f"`{name}` is a list {what}, not empty")
    if not all(isinstance(word, str) and good(word) for word in value):
        _bad(f"`{name}` is a list {what}")
    return tuple(sorted(set(cast("list[str]", value))))


def _bad(detail: str) -> NoReturn:
    raise Malformed(f"policy: {detail}", "policy-malformed")
