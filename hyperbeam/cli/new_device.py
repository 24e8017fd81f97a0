"""`hyperbeam new-device`: a package to start from."""

from __future__ import annotations

from pathlib import Path

import click

from hyperbeam.errors import ConfigError


@click.command("new-device")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Where; ./NAME if nothing is said.")
def new_device(name: str, folder: Path | None) -> None:
    """Write a package with a device NAME (greeter, or greeter@1.0) and its test."""
    from hyperbeam.plugin import Plugin, files

    plugin = Plugin.named(name)
    folder = folder or Path(plugin.folder)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is there and not empty" if folder.is_dir() else "is a file"
            raise ConfigError(f"{folder} {what}; it was left as it is: name another by --folder")
        for path, text in files(plugin).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as output:
                output.write(text)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    click.echo(f"wrote {folder}, with the device {plugin.device}; its README.md says how to go on")
