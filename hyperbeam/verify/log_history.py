"""Whether a log's head goes with the heads that were seen of it before."""

from __future__ import annotations

import re
from typing import Any

from . import checkpoint as notes
from . import merkle, shape
from .asked import Asked
from .checkpoint import Checkpoint
from .checks import Checks, Malformed
from .reading import read_object
from .verdict import Findings

FORK = "log-fork"
MALFORMED = "proof-malformed"
PATH = shape.listing(shape.digest, most=64)
NOTE = shape.text(notes.MAX_CHARACTERS)
CONSISTENCY = shape.record(
    v=shape.constant("hyperbeam.consistency/1"),
    old=shape.natural,
    new=shape.natural,
    path=PATH,
    checkpoint=NOTE,
)
_ORIGIN = re.compile(r"hyperbeam/receipts/([A-Za-z0-9_-]{43})(?:/[0-9a-f]{16})?\Z")
_NAME = "log-history"


def node_of(origin: str) -> str | None:
    """The node whose receipts the log `origin` holds; None for no log of receipts."""
    found = _ORIGIN.match(origin)
    return found[1] if found else None


def check_history(
    findings: Findings, asked: Asked, head: Checkpoint, proven: int | None = None
) -> None:
    """Compare `head`, whose signature is good, with those seen before, and remember it.

    `proven`: a size that it is known to continue.
    """
    checks, heads = findings.checks, asked.heads
    if heads is None:
        return
    seen = heads.seen(head.origin)
    last = max(seen, default=0)
    if head.size in seen:
        if seen[head.size] != head.root:
            detail = f"another head of {head.size} was seen before: the log shows two histories"
            checks.failed(_NAME, FORK, detail)
            return
        checks.passed(_NAME, "this head was seen before", "hashed")
    elif not seen:
        checks.passed(_NAME, "the first head of this log that is seen here", "hashed")
        _check_others(checks, head.origin, heads.origins())
    elif head.size < last:
        _check_older(findings, asked, head, Checkpoint(head.origin, last, seen[last]))
    elif proven == last:
        checks.passed(_NAME, f"it continues the head of {last} seen before", "hashed")
    else:
        _check_growth(asked, checks, head, Checkpoint(head.origin, last, seen[last]))
    if not checks.reason():
        heads.remember(head.origin, head.size, head.root)


def continues(value: dict[str, Any], root: bytes, head: Checkpoint) -> bool:
    """Whether the consistency proof `value` leads from `root` to `head`."""
    path = [bytes.fromhex(item) for item in value["path"]]
    return merkle.verify_consistency(value["old"], head.size, root, head.root, path)


def _check_growth(asked: Asked, checks: Checks, head: Checkpoint, last: Checkpoint) -> None:
    try:
        good = _prove(asked, last, head)
    except (OSError, Malformed) as error:
        detail = f"it is not shown that it continues the head of {last.size} seen before: {error}"
        checks.unknown(_NAME, "growth-unproven", detail)
        return
    if good:
        checks.passed(_NAME, f"it continues the head of {last.size} seen before", "hashed")
    else:
        checks.failed(_NAME, FORK, f"it does not continue the head of {last.size} seen before")


def _check_older(findings: Findings, asked: Asked, head: Checkpoint, last: Checkpoint) -> None:
    """A head that is older than the last one: saved earlier, or receipts were taken back."""
    checks = findings.checks
    said = f"a head of {last.size} was seen before this one of {head.size}"
    if findings.log == "witnessed":
        checks.unknown(_NAME, "older-head", f"{said}; a witness has seen it")
        return
    try:
        good = _prove(asked, head, last)
    except (TimeoutError, ConnectionError) as error:
        checks.unknown(_NAME, "older-head", f"{said}, and the log cannot be asked: {error}")
        return
    except (OSError, Malformed):
        detail = f"{said}; unless it was saved earlier, the log took receipts back"
        checks.failed(_NAME, "log-rollback", detail)
        return
    if good:
        checks.passed(_NAME, f"the head of {last.size} seen before continues it", "hashed")
    else:
        checks.failed(_NAME, FORK, f"the head of {last.size} seen before does not continue it")


def _prove(asked: Asked, old: Checkpoint, new: Checkpoint) -> bool:
    """Ask the log to prove that `new` continues `old`. Raises OSError, Malformed."""
    if asked.find_proof is None:
        raise FileNotFoundError("there is no log to ask")
    value = read_object(asked.find_proof(old.size, new.size), "the proof", MALFORMED)
    shape.check(value, CONSISTENCY, "the proof", MALFORMED)
    return (value["old"], value["new"]) == (old.size, new.size) and continues(value, old.root, new)


def _check_others(checks: Checks, origin: str, origins: list[str]) -> None:
    """Say so where the node had another log before: receipts in that are not in this one."""
    others = [other for other in origins if other != origin and node_of(other) == node_of(origin)]
    if others:
        detail = f"this node had another log before, {others[0]}: it shows why as `begins`"
        checks.unknown("log-origin", "log-replaced", detail)
