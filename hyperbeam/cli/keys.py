"""`hyperbeam keys`: the API keys of a node, whether it runs or not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hyperbeam.errors import ConfigError

if TYPE_CHECKING:
    from hyperbeam.access import KeyStore

_AGE = re.compile(r"([0-9]{1,6})(h|d|w)\Z")
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}

FILE = click.option("--config", "file", type=click.Path(), help="The configuration file.")
HOME = click.option("--home", type=click.Path(), help="The node's home folder.")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys. A running node takes notice within a second."""


@keys.command()
@click.argument("name")
@click.option("--requests", help="At most so many requests, as 60/min.")
@click.option("--tokens", help="At most so many tokens, prompt and answer, as 100000/day.")
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.")
@click.option("--expires", help="The time it works, as 12h, 30d or 8w.")
@FILE
@HOME
def add(
    name: str,
    requests: str | None,
    tokens: str | None,
    models: tuple[str, ...],
    expires: str | None,
    file: str | None,
    home: str | None,
) -> None:
    """Make a key for NAME and print it, this one time."""
    from hyperbeam.access import Quota

    with _store(file, home) as store:
        secret, key = store.add(
            name,
            requests=Quota.parse(requests) if requests else None,
            tokens=Quota.parse(tokens) if tokens else None,
            models=models,
            expires=int(time.time()) + _age(expires) if expires else 0,
        )
    click.echo(f"key {key.id} for {name}; it is shown this once:", err=True)
    click.echo(secret)


@keys.command("list")
@FILE
@HOME
def list_(file: str | None, home: str | None) -> None:
    """Every key that was made, with its limits."""
    with _store(file, home) as store:
        found = store.all()
    if not found:
        click.echo("no keys: everybody who reaches the node may use it", err=True)
    for key in found:
        words = [key.requests, key.tokens and f"{key.tokens} tokens", *key.models]
        if key.expires:
            words.append(f"until {_date(key.expires)}")
        if key.revoked:
            words.append(f"revoked {_date(key.revoked)}")
        elif not key.works:
            words.append("its time is over")
        limits = ", ".join(word for word in words if word)
        click.echo(f"{key.id}  {key.name:<24} {_date(key.made)}  {limits}".rstrip())


@keys.command()
@click.argument("key")
@FILE
@HOME
def revoke(key: str, file: str | None, home: str | None) -> None:
    """Have KEY, an id or a name, work no more."""
    with _store(file, home) as store:
        revoked = store.revoke(key)
    click.echo(f"key {revoked.id} for {revoked.name} is revoked")


@contextmanager
def _store(file: str | None, home: str | None) -> Iterator[KeyStore]:
    """The keys of the node of this configuration; written to its disk in the end."""
    from hyperbeam import config as configuration
    from hyperbeam.access import KeyStore
    from hyperbeam.home import home_of
    from hyperbeam.store import LMDBStore

    config = configuration.load(file, flags={"home": home})
    if config.store.kind != "lmdb":
        raise ConfigError(
            f'a store of kind "{config.store.kind}" ends with the node and keeps no keys: '
            'set store.kind = "lmdb"'
        )
    folder = home_of(config)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"home {folder}: {error.strerror}") from None
    settings = config.store
    store = LMDBStore(
        folder / "store",
        map_size=settings.map_size,
        max_readers=settings.max_readers,
        sync=settings.sync,
    )
    store.open()
    try:
        yield KeyStore(store)
    finally:
        store.close()


def _age(text: str) -> int:
    match = _AGE.match(text)
    if match is None or not int(match[1]):
        raise ConfigError(f"{text!r} is no time: write 12h, 30d or 8w")
    return int(match[1]) * _SECONDS[match[2]]


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
