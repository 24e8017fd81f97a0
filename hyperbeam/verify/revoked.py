"""A verifier's own list of what it no longer believes: nodes, key sets, GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import shape
from .checks import Checks, Malformed
from .reading import read_json

MALFORMED = "revoked-malformed"
MAX_BYTES = 16 << 20
_KINDS: dict[str, shape.Rule] = {
    "nodes": shape.address,
    "keysets": shape.digest,
    "ueids": shape.decimal,
}


@dataclass(frozen=True, slots=True)
class Revoked:
    """Addresses of nodes, names of key sets, serial numbers (decimal) of GPUs."""

    nodes: frozenset[str] = frozenset()
    keysets: frozenset[str] = frozenset()
    ueids: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, value: bytes | str | dict[str, Any] | list[Any]) -> Revoked:
        """Read `{nodes: [], keysets: [], ueids: []}`, or names in a list or one on a line.

        A line that starts with `#` says nothing. Raises Malformed for a name of no known
        kind: a list that is only half understood would let the other half through.
        """
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        if isinstance(value, bytes):
            value = _read(value)
        if isinstance(value, list):
            return cls(**_sort(value))
        if not isinstance(value, dict):
            raise _bad("is no list and no object")
        found = {}
        for kind, names in value.items():
            if kind not in _KINDS:
                raise _bad(f"has an unknown key {str(kind)[:64]!r}")
            if not isinstance(names, list):
                raise _bad(f"has `{kind}` that is no list")
            for name in names:
                if _KINDS[kind](name):
                    raise _bad(f"has {str(name)[:80]!r} among `{kind}`")
            found[kind] = frozenset(names)
        return cls(**found)

    def check(self, checks: Checks, node: str, keyset: str, ueids: Iterable[str]) -> None:
        """Say whether any of these is on the list."""
        for kind, names, listed in (
            ("node", [node], self.nodes),
            ("keyset", [keyset], self.keysets),
            ("ueid", list(ueids), self.ueids),
        ):
            for name in names:
                if name in listed:
                    checks.failed(
                        "revoked", f"{kind}-revoked", f"{kind} {name} is on the revocation list"
                    )
                    return
        checks.passed("revoked", "nothing of it is on the revocation list", "operator")


def _sort(names: list[Any]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for name in names:
        kind = next((kind for kind, rule in _KINDS.items() if not rule(name)), None)
        if kind is None:
            raise _bad(f"has {str(name)[:80]!r}: no node, key set or ueid")
        found[kind].add(name)
    return {kind: frozenset(listed) for kind, listed in found.items()}


def _read(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise _bad(f"is over {MAX_BYTES >> 20} MiB")
    if data.lstrip()[:1] in (b"{", b"["):
        return read_json(data, "the revocation list", MALFORMED)
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
    except UnicodeDecodeError:
        raise _bad("is not UTF-8") from None
    return [line for line in lines if line and not line.startswith("#")]


def _bad(what: str) -> Malformed:
    return Malformed(f"the revocation list {what}", MALFORMED)
