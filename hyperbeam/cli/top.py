"""`hyperbeam top`: the node's numbers, each second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from hyperbeam.errors import HyperbeamError

from . import asking, units
from .status import word

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

INTERVAL = 1.0
_STYLES = {"up": "green", "half-open": "yellow", "down": "red", "disabled": "dim"}

Summary = Mapping[str, Any]


@click.command()
@click.option("--url", help="The node's address; that of the configuration if nothing is said.")
@click.option("--port", type=int, help="Its port on this machine.")
def top(url: str | None, port: int | None) -> None:
    """Show nodes, rates and latencies of a running node, each second. `q` or Ctrl-C ends it.

    Where the output is no terminal, one picture is printed.
    """
    from rich.console import Console

    base = asking.address(url, port)
    console = Console()
    first = asking.summary(base)
    try:
        if not (sys.stdout.isatty() and sys.stdin.isatty()):
            console.print(picture(base, first, None))
            return
        with contextlib.suppress(KeyboardInterrupt):
            _watch(base, console, first)
    except (KeyError, TypeError):
        raise asking.strange(base) from None


def _watch(base: str, console: Any, first: Summary) -> None:
    from rich.live import Live
    from rich.text import Text

    before: Summary | None = None
    now: Summary = first
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(picture(base, now, before), refresh=True)
        while not _asked_to_end(INTERVAL):
            try:
                before, now = now, asking.summary(base)
            except HyperbeamError as error:
                live.update(Text(str(error), style="red"), refresh=True)
            else:
                live.update(picture(base, now, before), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Have a key arrive when it is pressed."""
    import termios
    import tty

    number = sys.stdin.fileno()
    saved = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, saved)


def _asked_to_end(seconds: float) -> bool:
    """Wait for `seconds`, or for a `q`."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if not select.select([sys.stdin], [], [], left)[0]:
            return False
        pressed = os.read(sys.stdin.fileno(), 64)
        if not pressed or b"q" in pressed.lower():
            return True
    return False


def picture(base: str, now: Summary, before: Summary | None) -> Group:
    """What is shown of `now`: rates and latencies since `before`, or of the last minute and of
    all time where there is none."""
    from rich.console import Group
    from rich.text import Text

    style = "bold green" if now["serving"] else "bold red"
    head = Text.assemble(
        ("hyperbeam ", "bold"), now["version"], "  ", base, "  ", (word(now), style), "  ",
        _backend(now["backend"]),
    )  # fmt: skip
    return Group(head, "", _numbers(now, before), "", _nodes(now), "", _processes(now, before))


def _numbers(now: Summary, before: Summary | None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    rates = rates_of(now, before)
    table.add_row(
        "requests",
        f"{units.rate(rates['requests'])}, {now['requests']['in_flight']:.0f} in flight",
        "errors",
        units.rate(rates["errors"]),
    )
    table.add_row(
        "tokens in",
        units.rate(rates["prompt_tokens"]),
        "tokens out",
        units.rate(rates["completion_tokens"]),
    )
    for name, said in (
        ("request_seconds", "a request"),
        ("first_byte_seconds", "first byte"),
        ("chunk_gap_seconds", "a chunk"),
    ):
        found = latency_of(name, now, before)
        table.add_row(said, "  ".join(f"{q} {units.seconds(found[q])}" for q in found))
    return table


def _nodes(now: Summary) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("node", "state", "in flight", "first byte", "failures", "last error", box=None)
    for one in now["nodes"]:
        table.add_row(
            Text(one["id"]),
            Text(one["state"], style=_STYLES.get(one["state"], "")),
            str(one["in_flight"]),
            units.seconds(one["latency"]),
            str(one["failures"]),
            Text(one["last_error"][:80]),
        )
    return table


def _processes(now: Summary, before: Summary | None) -> Table:
    from rich.table import Table

    used = {one["pid"]: one["cpu_seconds"] for one in before["processes"]} if before else {}
    passed = now["time"] - before["time"] if before else 0.0
    table = Table("process", "pid", "CPU", "memory", "files", "threads", box=None)
    for one in now["processes"]:
        share = ""
        if one["pid"] in used and passed > 0:
            share = f"{(one['cpu_seconds'] - used[one['pid']]) / passed:.0%}"
        table.add_row(
            one["role"], str(one["pid"]), share, units.size(one["resident_bytes"]),
            str(one["open_fds"]), str(one["threads"]),
        )  # fmt: skip
    return table


def rates_of(now: Summary, before: Summary | None) -> dict[str, float]:
    """Per second, since `before` where there is one; else the node's own, of the last minute."""
    passed = now["time"] - before["time"] if before else 0.0
    if before is None or passed <= 0:
        return dict(now["rates"])
    then, today = _totals(before), _totals(now)
    return {name: max(0.0, (today[name] - then[name]) / passed) for name in today}


def latency_of(name: str, now: Summary, before: Summary | None) -> dict[str, float | None]:
    """Quantiles of what was counted since `before`, or of all where that is nothing."""
    from hyperbeam.observe.state import latency

    histogram = now["histograms"][name]
    if before is not None:
        counts = before["histograms"][name]["counts"]
        since = [max(0, a - b) for a, b in zip(histogram["counts"], counts, strict=True)]
        if any(since):
            histogram = {**histogram, "counts": since}
    return latency(histogram)


def _totals(found: Summary) -> dict[str, float]:
    statuses: Mapping[str, float] = found["requests"]["by_status"]
    tokens: Mapping[str, Mapping[str, float]] = found["tokens"]
    return {
        "requests": found["requests"]["total"],
        "errors": sum(count for status, count in statuses.items() if status >= "500"),
        "prompt_tokens": sum(one.get("prompt", 0) for one in tokens.values()),
        "completion_tokens": sum(one.get("completion", 0) for one in tokens.values()),
    }


def _backend(backend: Mapping[str, str]) -> str:
    return " ".join(part for part in (backend["model"], backend["status"]) if part)
