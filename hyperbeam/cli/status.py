"""`hyperbeam status`: is the node up, and how does it stand?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from hyperbeam.errors import HyperbeamError

from . import asking, units


@click.command()
@click.option("--url", help="The node's address; that of the configuration if nothing is said.")
@click.option("--port", type=int, help="Its port on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, as JSON.")
def status(url: str | None, port: int | None, as_json: bool) -> None:
    """Show how a running node stands. Exit status 0 if it serves, else 1."""
    base = asking.address(url, port)
    try:
        found = asking.summary(base)
    except HyperbeamError as error:
        click.echo(json.dumps({"serving": False, "error": str(error)}) if as_json else str(error))
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        try:
            click.echo("\n".join(lines(base, found)))
        except (KeyError, TypeError):
            raise asking.strange(base) from None
    sys.exit(0 if found["serving"] else 1)


def word(found: Mapping[str, Any]) -> str:
    """`serving`, `draining` or `not serving`."""
    return "serving" if found["serving"] else "draining" if found["draining"] else "not serving"


def lines(base: str, found: Mapping[str, Any]) -> Iterator[str]:
    """What `status` prints of a summary."""
    processes, rates = found["processes"], found["rates"]
    up = found["time"] - min((one["started"] for one in processes), default=found["time"])
    workers = sum(one["role"].startswith("worker") for one in processes)
    yield f"{base}  {word(found)}"
    yield f"  version   {found['version']}, up {units.duration(up)}" + (
        f", {workers} workers" if workers else ""
    )
    yield f"  backend   {_backend(found['backend'])}"
    requests = found["requests"]
    yield (
        f"  requests  {requests['in_flight']:.0f} in flight, {units.rate(rates['requests'])}, "
        f"errors {units.rate(rates['errors'])} (last minute), {requests['total']:.0f} altogether"
    )
    yield (
        f"  tokens    in {units.rate(rates['prompt_tokens'])}, "
        f"out {units.rate(rates['completion_tokens'])} (last minute)"
    )
    yield f"  latency   {_latency(found['latency'])}"
    memory = sum(one["resident_bytes"] for one in processes)
    stored = found["store"]["bytes"]
    yield f"  memory    {units.size(memory)}" + (
        f"; store {units.size(stored)}" if stored is not None else ""
    )
    if found["nodes"]:
        yield "  nodes"
    wide = max((len(one["id"]) for one in found["nodes"]), default=0)
    for one in found["nodes"]:
        error = f"  {one['last_error']}" if one["state"] != "up" and one["last_error"] else ""
        yield (
            f"    {one['id']:<{wide}}  {one['state']:<9}  {one['in_flight']:>3} in flight  "
            f"{units.seconds(one['latency']):>7}{error}"
        )
    if found["routes"]:
        yield "  routes"
    for route in found["routes"]:
        to = ", ".join(route["nodes"])
        via = f" {route['device']}:" if route["device"] else ""
        limited = "queued" in route
        queue = f"  ({route['in_flight']} in flight, {route['queued']} waiting)" if limited else ""
        yield f"    {route['id']} ->{via} {to}{queue}"


def _backend(backend: Mapping[str, str]) -> str:
    named = " ".join(part for part in (backend["kind"], backend["model"]) if part) or "none"
    detail = f" ({backend['detail']})" if backend["status"] != "ok" and backend["detail"] else ""
    return f"{named}: {backend['status']}{detail}"


def _latency(latency: Mapping[str, Mapping[str, float | None]]) -> str:
    said = (("request", "request_seconds"), ("first byte", "first_byte_seconds"),
            ("between chunks", "chunk_gap_seconds"))  # fmt: skip
    return "; ".join(
        f"{name} p50 {units.seconds(latency[key]['p50'])}, p99 {units.seconds(latency[key]['p99'])}"
        for name, key in said
    )
