"""`hyperbeam routes`: look at a route table without a running node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hyperbeam.routing import Route, RouteTable

FILE = click.option("--file", type=click.Path(), help="The table; as `serve` finds it if unsaid.")


@click.group()
def routes() -> None:
    """Check a route table, and see where a path would go."""


@routes.command()
@click.argument("file", required=False, type=click.Path())
def check(file: str | None) -> None:
    """Say whether FILE would be taken. Exit status 2 and the reason where it would not."""
    from hyperbeam.errors import ConfigError

    table = _load(file)
    if not table.routes:
        raise ConfigError(f"{table.source}: it has no routes; a node that runs keeps those it has")
    click.echo(f"{table.source}: {_count(len(table.routes), 'route')}, sound")
    for route in table.routes:
        click.echo(f"  {_template(route)}  {_leads_to(route)}")


@routes.command()
@click.argument("path")
@click.option("--method", default="GET", help="The request's method.")
@click.option("--model", default="", help="The model that is asked for.")
@click.option("--body", default="", help="The request's body.")
@FILE
def test(path: str, method: str, model: str, body: str, file: str | None) -> None:
    """Say which route PATH takes, and the addresses in the order in which they are tried.

    Nothing is contacted: all nodes count as up and idle. Exit status 1 where no route matches.
    """
    from hyperbeam.routing import Ask
    from hyperbeam.routing.strategy import Idle, order
    from hyperbeam.targets import names_device

    table = _load(file)
    path = "/" + path.lstrip("/")
    if names_device(path):
        click.echo(f"{path} names a device, an id or a sub-path: no route is looked for")
        return
    request = {"method": method, "path": path, "body": body}
    route = table.require(path, request)
    click.echo(f"{_template(route)}  {_leads_to(route)}")
    nodes = [node for node in route.nodes if not model or not node.models or model in node.models]
    for node in order(route, nodes, Ask(path, model=model, request=request), Idle()):
        where = "the node's own backend" if node.backend else node.target(path)
        click.echo(f"  {where}")
    if not nodes:
        click.echo(f"  no node serves {model}")


def _load(file: str | None) -> RouteTable:
    from hyperbeam import config as configuration
    from hyperbeam.routing import load_routes, routes_file

    return load_routes(Path(file) if file else routes_file(configuration.load()))


def _template(route: Route) -> str:
    if isinstance(route.template, str):
        return route.template
    return ", ".join(f"{name} {pattern}" for name, pattern in route.template.items())


def _leads_to(route: Route) -> str:
    nodes = _count(len(route.nodes), "node")
    chosen = f", {route.strategy}" if len(route.nodes) > 1 else ""
    return f"-> {route.device + ', ' if route.device else ''}{nodes}{chosen}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
