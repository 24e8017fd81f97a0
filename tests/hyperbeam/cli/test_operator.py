"""`hyperbeam operator` where there is nothing to do: bad arguments, keys and addresses."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hyperbeam.cli import cli
from hyperbeam.errors import HyperbeamError

URL = "http://127.0.0.1:1"


def said(*arguments: str) -> str:
    """What a command that is refused says."""
    error = CliRunner().invoke(cli, ["operator", *arguments]).exception
    assert isinstance(error, HyperbeamError)
    return error.detail


def test_a_key_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    first = CliRunner().invoke(cli, ["operator", "key", str(file)])
    again = CliRunner().invoke(cli, ["operator", "key", str(file)])
    assert first.output == again.output
    assert len(first.output.strip()) == 43
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_key_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    assert str(file) in said("show", URL, "--key", str(file))
    file.write_text("nothing")
    assert "chmod 600" in said("show", URL, "--key", str(file))
    file.chmod(0o600)
    assert "cannot be read" in said("show", URL, "--key", str(file))
    assert "cannot be written" in said("key", str(tmp_path / "no" / "key"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set", URL, "log.level"), "NAME=VALUE"),
        (("set", URL, "=x"), "NAME=VALUE"),
        (("route", URL, "{"), "no JSON"),
        (("route", URL, "[]"), "an object"),
        (("show", URL), "no node answers"),
        (("show", "ftp://x"), "address"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    file = tmp_path / "key.pem"
    CliRunner().invoke(cli, ["operator", "key", str(file)])
    assert expected in said(*arguments, "--key", str(file))


def test_history_needs_no_key() -> None:
    assert "no node answers" in said("history", URL)
