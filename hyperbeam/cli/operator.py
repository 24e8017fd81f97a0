"""`hyperbeam operator`: claim a node and change it while it runs, by orders signed here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hyperbeam.errors import ConfigError, HyperbeamError
from hyperbeam.home import write_whole

from .asking import address, ask

INFO = "/~meta@1.0/info"
URL = click.argument("url")
KEY = click.option(
    "--key",
    "file",
    type=click.Path(),
    required=True,
    help="Your key: a file of `operator key`, or an Arweave wallet.",
)
NODE = click.option("--node", help="The node's address, where you do not take its own word for it.")

Command = Callable[..., None]


@click.group()
def operator() -> None:
    """Claim a node that runs, and change it. Each order is signed, and taken once."""


@operator.command()
@click.argument("file", type=click.Path())
def key(file: str) -> None:
    """Print the address of the key in FILE, which is made if there is none."""
    from hyperbeam.signers import read_key

    path = Path(file)
    if not path.exists():
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            write_whole(
                path,
                Ed25519PrivateKey.generate().private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            )
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(read_key(file).address)


@operator.command()
@URL
@click.option("--token", required=True, help="What the node printed at its start.")
@KEY
@NODE
def claim(url: str, token: str, file: str, node: str | None) -> None:
    """Become the operator of the node at URL."""
    said = _order(url, "/~meta@1.0/claim", {"token": token}, file, node)
    click.echo(f"operator {said['operator']}")


@operator.command(name="set")
@URL
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@KEY
@NODE
def set_(url: str, settings: tuple[str, ...], file: str, node: str | None) -> None:
    """Change settings, such as log.level=debug; initialized=permanent makes it the last change."""
    wanted: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ConfigError(f"{setting}: write it as NAME=VALUE")
        wanted[name] = _value(text)
    changed = _order(url, INFO, wanted, file, node)["changed"]
    for name in changed:
        click.echo(f"changed {name}")
    if not changed:
        click.echo("nothing to change: it is so already")


@operator.command()
@URL
@KEY
@NODE
def show(url: str, file: str, node: str | None) -> None:
    """Print the settings that can change, as they are."""
    for name, value in sorted(_order(url, INFO, {}, file, node)["settings"].items()):
        click.echo(f"{name} = {json.dumps(value)}")


@operator.command()
@URL
def history(url: str) -> None:
    """Print what was changed over HTTP, when and by whom."""
    for entry in ask(address(url, None), INFO)["node_history"]:
        click.echo(json.dumps(entry))


@operator.command()
@URL
@click.argument("route")
@KEY
@NODE
def route(url: str, route: str, file: str, node: str | None) -> None:
    """Add ROUTE, a route as JSON, to the end of the node's table."""
    try:
        fields = json.loads(route)
    except ValueError as error:
        raise ConfigError(f"the route is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError('a route is an object: {"template": "/x/.*", "node": "http://..."}')
    _order(url, "/~router@1.0/routes", fields, file, node)
    click.echo(f"added {fields.get('template')}")


def _order(url: str, path: str, keys: dict[str, Any], file: str, node: str | None) -> Any:
    from hyperbeam.operator.signing import signed
    from hyperbeam.signers import read_key

    base = address(url, None)
    signer = read_key(file)
    if node is None:
        node = ask(base, INFO).get("address")
    if not isinstance(node, str):
        raise HyperbeamError(f"what answers at {base} does not say which node it is")
    headers, body = signed(path, keys, node, signer)
    return ask(base, path, headers, body)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
