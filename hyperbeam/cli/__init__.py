"""The command line: `hyperbeam serve`, `hyperbeam models ...`, `hyperbeam verify`."""

from __future__ import annotations

import os
import sys

import click

from hyperbeam import __version__
from hyperbeam.errors import ConfigError, HyperbeamError

from .init import init
from .keys import keys
from .models import models
from .new_device import new_device
from .operator import operator
from .routes import routes
from .serve import serve
from .status import status
from .top import top
from .verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hyperbeam")
def cli() -> None:
    """A node that answers paths, and serves AI answers which can be checked."""


cli.add_command(serve)
cli.add_command(models)
cli.add_command(keys)
cli.add_command(routes)
cli.add_command(init)
cli.add_command(operator)
cli.add_command(new_device)
cli.add_command(verify)
cli.add_command(status)
cli.add_command(top)


def _open_standard_files() -> None:
    """A closed one is opened on nothing, before a socket takes its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main() -> None:
    """Run the command line. Exit status 2 and one line for what the operator has to mend."""
    _open_standard_files()
    try:
        cli.main(prog_name="hyperbeam")
    except ConfigError as error:
        click.echo(f"hyperbeam: {error.detail}", err=True)
        sys.exit(2)
    except HyperbeamError as error:
        click.echo(f"hyperbeam: {error.detail}", err=True)
        sys.exit(1)
