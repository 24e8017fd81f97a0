"""Checks of a log's heads and of proofs under them, beside what was seen of the log before.

Shapes: {v: "hyperbeam.inclusion/1", id?, leaf?, index, size, path: [hex], checkpoint} and
{v: "hyperbeam.consistency/1", old, new, path: [hex], checkpoint}; the checkpoint is a C2SP
signed note of the head with `size` or `new` leaves. A node's log has the node's address for
its name; one that could not go on has a successor, named by 16 hex digits more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import checkpoint as notes
from . import merkle, shape
from . import receipt as receipts
from .asked import Asked, check_node
from .checkpoint import Checkpoint, SignedCheckpoint, VerifierKey
from .checks import Checks, Malformed
from .keyset import KeySet
from .log_history import (
    CONSISTENCY,
    FORK,
    MALFORMED,
    NOTE,
    PATH,
    check_history,
    continues,
    node_of,
)
from .receipt_checks import check_receipt
from .verdict import Findings

MAX_OLDER = 50
"""Key sets that are asked for beside those at hand."""
_INCLUSION: dict[str, shape.Rule] = {
    "v": shape.constant("hyperbeam.inclusion/1"),
    "index": shape.natural,
    "size": shape.natural,
    "path": PATH,
    "checkpoint": NOTE,
}
_OPTIONAL: dict[str, shape.Rule] = {"id": shape.receipt_id, "leaf": shape.digest}


def check_checkpoint(findings: Findings, asked: Asked, text: str | bytes) -> None:
    """A head alone: who signed it, who cosigned it, and whether it continues what was seen."""
    head = _check_head(findings, asked, text)
    if head is not None:
        check_history(findings, asked, head)


def check_inclusion(findings: Findings, asked: Asked, value: dict[str, Any]) -> None:
    """A receipt's place in the log. The leaf is made from the receipt, never taken from a proof."""
    checks = findings.checks
    findings.demand("proof", "inclusion")
    optional = {name: rule for name, rule in _OPTIONAL.items() if name in value}
    if not _has_shape(checks, value, shape.record(**_INCLUSION, **optional)):
        return
    head = _check_head(findings, asked, value["checkpoint"])
    receipt = None
    if asked.receipt is None:
        checks.unknown("inclusion", "receipt-not-given", "give the receipt that the proof is about")
    else:
        receipt = check_receipt(findings, asked, asked.receipt, asked.answer)
    if head is None:
        return
    check_history(findings, asked, head)
    if receipt is None:
        return
    place = f"leaf {value['index']} of {value['size']}"
    leaf = merkle.leaf_hash(receipts.leaf(receipt))
    path = [bytes.fromhex(item) for item in value["path"]]
    named = (value.get("id", receipt["id"]), value.get("leaf", leaf.hex()))
    if named != (receipt["id"], leaf.hex()):
        checks.failed("inclusion", "other-receipt", "the proof is about another receipt")
    elif node_of(head.origin) != receipt["node"]:
        checks.failed("inclusion", "other-log", "the receipt is of another node than the log")
    elif value["size"] != head.size:
        checks.failed("inclusion", "size-mismatch", "the proof is not for the size of the head")
    elif merkle.verify_inclusion(leaf, value["index"], head.size, path, head.root):
        checks.passed("inclusion", f"the receipt is {place}", "hashed")
    else:
        checks.failed("inclusion", "inclusion-proof", f"the receipt is not {place}")


def check_consistency(findings: Findings, asked: Asked, value: dict[str, Any]) -> None:
    """Whether a head continues an older one, which has to be one that was seen before."""
    checks = findings.checks
    findings.demand("proof", "consistency")
    if not _has_shape(checks, value, CONSISTENCY):
        return
    head = _check_head(findings, asked, value["checkpoint"])
    if head is None:
        return
    seen = asked.heads.seen(head.origin) if asked.heads is not None else {}
    root = merkle.EMPTY if value["old"] == 0 else seen.get(value["old"])
    proven = None
    if value["new"] != head.size:
        checks.failed("consistency", "size-mismatch", "the proof is not for the size of the head")
    elif root is None:
        detail = f"the head of size {value['old']} was never seen here"
        checks.unknown("consistency", "old-head-unknown", detail)
    elif continues(value, root, head):
        proven = value["old"]
        detail = f"the log of {head.size} begins with that of {value['old']}"
        checks.passed("consistency", detail, "hashed")
    else:
        detail = f"the log of {head.size} does not begin with that of {value['old']}"
        checks.failed("consistency", FORK, detail)
    check_history(findings, asked, head, proven)


def _check_head(findings: Findings, asked: Asked, text: str | bytes) -> Checkpoint | None:
    """The head in `text` where a log key of its node signed it."""
    checks = findings.checks
    findings.demand("checkpoint", "log-signature")
    try:
        signed = notes.parse(text)
    except Malformed as error:
        checks.failed("checkpoint", error.reason, error.detail)
        return None
    head = signed.checkpoint
    node = node_of(head.origin)
    if not node:
        checks.failed(
            "checkpoint", "origin-unknown", f"{head.origin[:100]!r} is no log of receipts"
        )
        return None
    checks.passed("checkpoint", f"{head.size} receipts of {node}")
    check_node(asked, node, checks)
    if not _check_signature(asked, checks, signed, node):
        return None
    findings.shows = "signed"
    _check_witnesses(findings, asked, signed)
    if asked.revoked is not None:
        asked.revoked.check(checks, node, "", ())
    findings.claim("log", head.origin, "declared")
    findings.claim("size", head.size, "declared")
    findings.claim("root", head.root.hex(), "declared")
    return head


def _check_signature(asked: Asked, checks: Checks, signed: SignedCheckpoint, node: str) -> bool:
    """Whether a log key of one of the node's key sets that can be had signed the head."""
    name, origin = "log-signature", signed.checkpoint.origin
    count = 0
    for keyset in _keysets(asked, checks, node):
        count += 1
        for key in keyset.message["log_keys"]:
            verifier = VerifierKey(origin, notes.ED25519, bytes.fromhex(key["key"]))
            if notes.verify(signed, verifier):
                checks.passed(name, f"by the log key {key['id']} of {keyset.name[:16]}", "declared")
                return True
            if any((each.name, each.key_id) == (origin, verifier.id) for each in signed.signatures):
                detail = f"the signature under the log key {key['id']} is not of this head"
                checks.failed(name, "signature-invalid", detail)
                return False
    if count:
        detail = (
            f"none of {count} key sets of the node has the key that signed it; give the one that "
            "was in force, or the node's address to ask for older ones"
        )
        checks.unknown(name, "key-unknown", detail)
    else:
        checks.unknown(name, "keyset-not-given", f"give the key set of {node} that was in force")
    return False


def _keysets(asked: Asked, checks: Checks, node: str) -> Iterator[KeySet]:
    """The node's key sets: those given, the current one, then the `previous` ones of these."""
    known = [keyset for keyset in asked.keysets if keyset.node == node]
    yield from known
    find = asked.find_keyset
    if find is None:
        return
    try:
        current = KeySet.parse(find(""))
    except (OSError, Malformed) as error:
        checks.unknown("keyset", "keyset-unreachable", f"no key set from the node: {error}")
    else:
        if current.node == node:
            yield current
            known.insert(0, current)
    names = {keyset.name for keyset in known}
    for _ in range(MAX_OLDER):
        if not known:
            return
        name = known.pop(0).message["previous"]
        if name is None or name in names:
            continue
        names.add(name)
        try:
            older = KeySet.parse(find(name))
        except (OSError, Malformed):
            continue
        if (older.name, older.node) == (name, node):
            yield older
            known.append(older)


def _check_witnesses(findings: Findings, asked: Asked, signed: SignedCheckpoint) -> None:
    checks, wanted = findings.checks, asked.policy.witnesses
    findings.log = "self-signed"
    if wanted is not None:
        findings.demand("log-witness")
    for text in wanted or ():
        witness = VerifierKey.parse(text)
        time = notes.cosigned(signed, witness)
        if time is not None:
            findings.log = "witnessed"
            checks.passed("log-witness", f"cosigned by {witness.name} at {time}", "operator")
            return
    detail = "no witness that the policy names has cosigned: only the log says it has no other head"
    checks.unknown("log-witness", "self-signed", detail)


def _has_shape(checks: Checks, value: dict[str, Any], rule: shape.Rule) -> bool:
    try:
        shape.check(value, rule, "the proof", MALFORMED)
    except Malformed as error:
        checks.failed("proof", error.reason, error.detail)
        return False
    checks.passed("proof", "of a known kind")
    return True
