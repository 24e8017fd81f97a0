"""What a verifier brings with it: nonce, policy, files to compare with, ways to get more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .checks import Checks, Malformed
from .heads import Heads
from .keyset import KeySet
from .nvidia import Resources
from .policy import Policy
from .revoked import Revoked

FindKeySet = Callable[[str], bytes]
"""Gets the key set of this name, or the current one for "". Raises OSError."""
FindProof = Callable[[int, int], bytes]
"""Gets the log's consistency proof between two sizes. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`nonce`: the verifier's own, in hex. `request`, `receipt`, `answer`: what the document
    has to agree with. `samples`: whether nonces that were published count; in tests only.
    """

    policy: Policy = field(default_factory=Policy)
    nonce: str | None = None
    request: bytes | None = None
    receipt: dict[str, Any] | None = None
    answer: bytes | None = None
    keysets: tuple[KeySet, ...] = ()
    find_keyset: FindKeySet | None = None
    find_proof: FindProof | None = None
    revoked: Revoked | None = None
    resources: Resources | None = None
    now: datetime | None = None
    heads: Heads | None = None
    samples: bool = False


def keyset_of(asked: Asked, name: str, node: str, time: int, checks: Checks) -> KeySet | None:
    """The key set `name` of `node` in force at `time` (ms), with checks that say so."""
    keyset = _found(asked, name, checks)
    if keyset is None:
        return None
    if keyset.node != node:
        checks.failed("keyset", "keyset-mismatch", f"the key set is of another node, {keyset.node}")
        return None
    checks.passed("keyset", f"{name[:16]}..., signed by the identity of {node}", "declared")
    if keyset.lives_at(time):
        checks.passed("keyset-life", "it was in force at that time", "declared")
    else:
        checks.failed("keyset-life", "keyset-expired", "it was not in force at that time")
    return keyset


def check_node(asked: Asked, node: str, checks: Checks) -> None:
    """Whether the policy knows the node. Demanded only where the policy names nodes."""
    if asked.policy.nodes is None:
        checks.unknown("node", "node-not-named", f"{node}; the policy names no nodes to believe")
    elif node in asked.policy.nodes:
        checks.passed("node", f"{node} is on the policy's list", "operator")
    else:
        checks.failed("node", "node-not-allowed", f"{node} is not on the policy's list")


def _found(asked: Asked, name: str, checks: Checks) -> KeySet | None:
    for keyset in asked.keysets:
        if keyset.name == name:
            return keyset
    if asked.find_keyset is not None:
        return _fetched(asked.find_keyset, name, checks)
    if asked.keysets:
        given = asked.keysets[0].name
        checks.failed(
            "keyset", "keyset-mismatch", f"key set {name} signed this, the one given is {given}"
        )
        return None
    checks.unknown(
        "keyset",
        "keyset-not-given",
        f"get key set {name} from the node (/~meta@1.0/keyset/{name}) and give it",
    )
    return None


def _fetched(find: FindKeySet, name: str, checks: Checks) -> KeySet | None:
    try:
        keyset = KeySet.parse(find(name))
    except Malformed as error:
        checks.failed("keyset", error.reason, error.detail)
        return None
    except OSError as error:
        checks.unknown("keyset", "keyset-unreachable", f"key set {name} cannot be had: {error}")
        return None
    if keyset.name != name:
        checks.failed("keyset", "keyset-mismatch", f"asked for key set {name}, got {keyset.name}")
        return None
    return keyset
