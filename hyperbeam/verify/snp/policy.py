"""What a verifier demands of a CPU's report. Strict unless told otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

from .. import jcs
from ..checks import Malformed
from .roots import PRODUCTS

Allowance = Literal["refuse", "allow"]

KEYS = ("vcek", "vlek")
MAX_VMPL = 3
_ALLOWANCES = ("refuse", "allow")
_LEVELS = ("fmc", "bootloader", "tee", "snp", "microcode")
_TRUST = re.compile(r"amd\Z|simulated:[0-9a-f]{64}\Z")
_HEX = re.compile(r"[0-9a-f]+\Z")
_DIGESTS = {"measurements": 48, "author_keys": 48, "id_keys": 48, "host_data": 32, "chip_ids": 64}
"""Fields that are lists of hex, and the bytes of each item."""
_MAX_LIST = 1024

Levels = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole list that `verified: true` depends on.

    `measurements`: the launch measurements (hex) that are accepted; none by default, and then
    nothing is verified. `debug`, `migration`: whether a guest may allow them. `max_vmpl`: the
    least privileged level that may ask for a report. `min_tcb`: for a product line
    (`Milan`, ...) the least patch levels, of `fmc`, `bootloader`, `tee`, `snp`, `microcode`.
    `min_guest_svn`: the guest's own version. `author_keys`, `id_keys`, `host_data`,
    `chip_ids`: no other than these (hex), None for any. `keys`: which keys may sign.
    `products`: the product lines. `trust`: `amd`, or `simulated:<SHA-256 of the root
    certificate's DER>`, which never gives `verified: true`.
    """

    measurements: tuple[str, ...] = ()
    debug: Allowance = "refuse"
    migration: Allowance = "refuse"
    max_vmpl: int = 0
    min_tcb: Levels = field(default_factory=dict)
    min_guest_svn: int = 0
    author_keys: tuple[str, ...] | None = None
    id_keys: tuple[str, ...] | None = None
    host_data: tuple[str, ...] | None = None
    chip_ids: tuple[str, ...] | None = None
    keys: tuple[str, ...] = KEYS
    products: tuple[str, ...] = tuple(sorted(PRODUCTS))
    trust: str = "amd"

    @classmethod
    def parse(cls, value: Any) -> Policy:
        """Read a policy object; what it leaves out is strict. Raises Malformed."""
        return cls(**_read(value))

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON has it, all fields said."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: sorted(value) if isinstance(value, tuple) else value
            for name, value in said.items()
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
            if not _as_strict(name, getattr(self, name), getattr(new, name)):
                raise Malformed(
                    f"policy: `{name}` would be looser than this verifier's own; it may only "
                    "be tightened",
                    "policy-looser",
                )
        return new


def _as_strict(name: str, old: Any, new: Any) -> bool:
    if name in ("debug", "migration"):
        return new in ("refuse", old)
    if name == "max_vmpl":
        return bool(new <= old)
    if name == "min_guest_svn":
        return bool(new >= old)
    if name == "min_tcb":
        return all(
            new.get(product, {}).get(part, 0) >= level
            for product, levels in old.items()
            for part, level in levels.items()
        )
    if name == "trust":
        return new in ("amd", old)
    return old is None or (new is not None and set(new) <= set(old))


def _read(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _bad("it is not an object")
    known = {each.name for each in fields(Policy)}
    for name in value:
        if name not in known:
            _bad(f"`{str(name)[:50]}` is not one of {', '.join(sorted(known))}")
    return {name: _field(name, item) for name, item in value.items()}


def _field(name: str, value: Any) -> Any:
    if name in ("debug", "migration"):
        if value not in _ALLOWANCES:
            _bad(f"`{name}` is refuse or allow")
        return value
    if name == "trust":
        if not isinstance(value, str) or not _TRUST.match(value):
            _bad("`trust` is `amd` or `simulated:` with 64 hex characters")
        return value
    if name in ("keys", "products"):
        return _words(name, value, KEYS if name == "keys" else PRODUCTS)
    if name == "min_tcb":
        return _levels(value)
    if name in _DIGESTS:
        return _digests(name, value, _DIGESTS[name])
    return _whole(name, value, MAX_VMPL if name == "max_vmpl" else 2**32 - 1)


def _whole(name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        _bad(f"`{name}` is a whole number from 0 to {most}")
    return value


def _words(name: str, value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= len(known):
        _bad(f"`{name}` is a list of {', '.join(known)}, not empty")
    if not all(isinstance(word, str) and word in known for word in value):
        _bad(f"`{name}` is a list of {', '.join(known)}")
    return tuple(sorted(set(value)))


def _digests(name: str, value: Any, size: int) -> tuple[str, ...] | None:
    if value is None and name != "measurements":
        return None
    if not isinstance(value, list | tuple) or len(value) > _MAX_LIST:
        _bad(f"`{name}` is a list of at most {_MAX_LIST}")
    for item in value:
        if not (isinstance(item, str) and len(item) == 2 * size and _HEX.match(item)):
            _bad(f"`{name}` is a list of {2 * size} lower-case hex characters each")
    return tuple(sorted(set(value)))


def _levels(value: Any) -> Levels:
    if not isinstance(value, dict):
        _bad("`min_tcb` is an object with levels for each product line")
    for product, levels in value.items():
        if product not in PRODUCTS or not isinstance(levels, dict):
            _bad(f"`min_tcb` has objects for {', '.join(PRODUCTS)}")
        for part, level in levels.items():
            if part not in _LEVELS:
                _bad(f"`min_tcb.{product}` has levels for {', '.join(_LEVELS)}")
            _whole(f"min_tcb.{product}.{part}", level, 255)
    return {product: dict(sorted(levels.items())) for product, levels in sorted(value.items())}


def _bad(detail: str) -> NoReturn:
    raise Malformed(f"policy: {detail}", "policy-malformed")
