"""A verdict as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from hyperbeam.verify.checks import Check

if TYPE_CHECKING:
    from hyperbeam.verify import Verdict

_COLOURS = {"pass": "green", "fail": "red", "unknown": "yellow"}


def lines(verdict: Verdict) -> Iterator[str]:
    """Each check, what the document says and who is to be believed for it, the conclusion."""
    from hyperbeam.verify import MEANING

    yield f"{verdict.kind}, policy {verdict.policy_sha256[:16]}"
    width = max((len(check.name) for check in verdict.checks), default=0)
    for check in verdict.checks:
        yield _line(check, width)
    for claim in verdict.claims:
        yield f"  {'says':8}{claim.name:{width}}  {_plain(str(claim.value))}  [{claim.source}]"
    evidence = any(check.name.startswith("gpu") for check in verdict.checks)
    words = ("trust", "freshness", "revocation", "measurements", "rims", "code")
    for name in (*(words if evidence else ()), "log"):
        said = getattr(verdict, name)
        if said:
            yield f"{name}: {said}"
    if verdict.verified:
        yield click.style(f"PASSED: {verdict.shows}", fg="green", bold=True)
        yield MEANING[verdict.shows]
    elif verdict.simulated_pass:
        yield click.style("SIMULATED", fg="yellow", bold=True)
        yield "All passed under a made-up root that you named. No hardware vouches for anything."
    else:
        yield click.style(f"NOT VERIFIED: {verdict.reason}", fg="red", bold=True)
        yield _plain(verdict.detail)


def _line(check: Check, width: int) -> str:
    result = click.style(f"{check.result:8}", fg=_COLOURS[check.result])
    reason = f"{check.reason}: " if check.reason else ""
    known = check.result == "pass" and check.source != "unknown"
    source = f"  [{check.source}]" if known else ""
    return f"  {result}{check.name:{width}}  {_plain(reason + check.detail)}{source}"


def _plain(text: str) -> str:
    """Without what would steer a terminal: much of this was written by others."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
