"""`hyperbeam init`: a configuration to edit."""

from __future__ import annotations

from pathlib import Path

import click

from hyperbeam.errors import ConfigError


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("hyperbeam.toml"))
def init(file: Path) -> None:
    """Write FILE (hyperbeam.toml) with every setting, its default and what it means."""
    from hyperbeam.reference import commented_config

    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(commented_config())
    except FileExistsError:
        raise ConfigError(f"{file} is there already; it was left as it is") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    click.echo(f"wrote {file}")
