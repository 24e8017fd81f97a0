"""`hyperbeam models`: fetch, list and find the weights of embedded models."""

from __future__ import annotations

import click

from hyperbeam import ConfigError
from hyperbeam import models as weights


@click.group()
def models() -> None:
    """Fetch and find the weights of embedded models."""


@models.command()
@click.argument("name", default=weights.DEFAULT_MODEL)
@click.option("--quiet", is_flag=True, help="Say nothing if the model is here already.")
def pull(name: str, quiet: bool) -> None:
    """Fetch model NAME (default: the embedded one) unless it is here and whole."""
    try:
        path = weights.path_of(name)
    except ConfigError:
        click.echo(f"Fetching {name}")
        path = weights.pull(name)
    else:
        if quiet:
            return
    click.echo(f"{name}: {path}")


@models.command(name="list")
def list_() -> None:
    """The models that can be fetched by name, and those that are here."""
    rows = [("NAME", "SIZE", "CONTEXT", "LICENCE", "FILE")]
    for model in weights.listing():
        size = f"{model.size / 1e6:.0f} MB"
        file = str(model.path) if model.path else "not here: hyperbeam models pull"
        rows.append((model.name, size, str(model.context or ""), model.licence, file))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        shown = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*shown, row[4]]))


@models.command()
@click.argument("name", default=weights.DEFAULT_MODEL)
def path(name: str) -> None:
    """The file of model NAME."""
    click.echo(str(weights.path_of(name)))


@models.command()
@click.argument("name", default=weights.DEFAULT_MODEL)
def verify(name: str) -> None:
    """Read the whole file of model NAME and compare its SHA-256."""
    click.echo(f"{name}: sha256 {weights.verify(name)}")
