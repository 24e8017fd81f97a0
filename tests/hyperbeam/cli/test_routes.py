from pathlib import Path

import pytest
from click.testing import CliRunner

from hyperbeam.cli import cli
from hyperbeam.errors import ConfigError, NoRoute

TABLE = """
[[routes]]
template = "/v1/.*"
strategy = "All"
nodes = [
    { prefix = "http://a", models = ["small"] },
    { prefix = "http://b", models = ["large"] },
    "http://c",
]

[[routes]]
template = { path = "/.*", method = "POST" }
node = "http://d"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.toml"
    path.write_text(TABLE)
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["routes", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_sound_table_is_summed_up(file: Path) -> None:
    said = run("check", str(file))
    assert f"{file}: 2 routes, sound" in said
    assert "/v1/.*  -> 3 nodes, All" in said


def test_a_broken_one_is_refused_with_its_line(file: Path) -> None:
    file.write_text(TABLE + "\ncolour = 1")
    with pytest.raises(ConfigError, match=rf"{file}:15: route 2: unknown field 'colour'"):
        run("check", str(file))


def test_where_a_path_would_go(file: Path) -> None:
    at = ["--file", str(file)]
    assert run("test", "/v1/x?a=1", *at).split()[-3:] == [f"http://{n}/v1/x?a=1" for n in "abc"]
    assert run("test", "v1/x", "--model", "large", *at).split()[-2:] == [
        "http://b/v1/x",
        "http://c/v1/x",
    ]
    assert "http://d/x" in run("test", "/x", "--method", "POST", *at)
    with pytest.raises(NoRoute, match="tried"):
        run("test", "/x", *at)
    assert "no route is looked for" in run("test", "/~meta@1.0/info", *at)
