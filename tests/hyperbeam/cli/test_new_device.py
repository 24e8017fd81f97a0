import ast
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.cli import cli
from hyperbeam.errors import ConfigError
from hyperbeam.plugin import MAX_NAME, Plugin, files


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["new-device", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def written(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_a_package_in_a_folder_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("word-count") == (
        "wrote word-count, with the device word-count@1.0; its README.md says how to go on\n"
    )
    assert written(tmp_path) == [
        "word-count/README.md",
        "word-count/pyproject.toml",
        "word-count/src/hyperbeam_word_count/__init__.py",
        "word-count/tests/test_word_count.py",
    ]
    project = tomllib.loads((tmp_path / "word-count/pyproject.toml").read_text())["project"]
    assert project["name"] == "hyperbeam-word-count"
    assert project["entry-points"]["hyperbeam.devices"] == {
        "word-count@1.0": "hyperbeam_word_count:WordCountDevice"
    }


def test_a_version_and_a_folder_that_is_there_and_empty(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    run("greeter@2.1", "--folder", str(folder))
    assert '"greeter@2.1"' in (folder / "src/hyperbeam_greeter_2_1/__init__.py").read_text()
    with pytest.raises(ConfigError, match="is there and not empty"):
        run("greeter@2.1", "--folder", str(folder))


def test_versions_can_be_installed_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("greeter", "greeter@1", "greeter@2.0", "greeter@2.1"):
        run(name)
    folders = [file.parent for file in tmp_path.glob("*/pyproject.toml")]
    assert {folder.name for folder in folders} == {
        "greeter", "greeter-1", "greeter-2-0", "greeter-2-1"
    }  # fmt: skip
    projects = [tomllib.loads((one / "pyproject.toml").read_text()) for one in folders]
    assert len({one["project"]["name"] for one in projects}) == 4
    assert len({path for one in folders for path in written(one / "src")}) == 4


def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    folder, file = tmp_path / "full", tmp_path / "file"
    folder.mkdir()
    (folder / ".hidden").write_text("mine")
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"full is there and not empty.*--folder"):
        run("greeter", "--folder", str(folder))
    with pytest.raises(ConfigError, match="file is a file"):
        run("greeter", "--folder", str(file))
    with pytest.raises(ConfigError, match="Not a directory"):
        run("greeter", "--folder", str(file / "below"))
    assert written(tmp_path) == ["file", "full/.hidden"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Greeter",
        "a b",
        "a/b",
        "../a",
        "-a",
        "_a",
        "a.b",
        "a@",
        "a@x",
        "@1.0",
        "a@1@2",
        "a\n",
        "é",
    ],
)
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no name of a device: write .*greeter@1\.0"):
        run("--folder", str(tmp_path / "x"), "--", name)
    assert written(tmp_path) == []


def test_names_that_are_too_long_or_taken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="64 characters at most"):
        run("a" * MAX_NAME, "--folder", str(tmp_path / "x"))
    with pytest.raises(ConfigError, match=r"message@1\.0 is there already, from hyperbeam-node"):
        run("message", "--folder", str(tmp_path / "x"))
    run("message@9.9", "--folder", str(tmp_path / "x"))


@pytest.mark.parametrize("name", ["node", "node@1.0", "no-de", "no_de"])
def test_a_package_takes_no_other_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    installed = tmp_path / "hyperbeam_no_de-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: hyperbeam_no-de\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"hyperbeam-no-?de, and one of that name is installed"):
        run(name, "--folder", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}@[0-9]{1,3}(\.[0-9]{1,3})?", fullmatch=True))
def test_any_name_makes_files_that_can_be_read(name: str) -> None:
    try:
        plugin = Plugin.named(name)
    except ConfigError as error:
        assert "already" in error.detail or "is installed" in error.detail
        return
    made = files(plugin)
    project = tomllib.loads(made["pyproject.toml"])["project"]
    assert project["entry-points"]["hyperbeam.devices"] == {
        name: f"{plugin.package}:{plugin.class_name}"
    }
    assert plugin.package.isidentifier()
    module = ast.parse(made[f"src/{plugin.package}/__init__.py"])
    (device,) = [node for node in module.body if isinstance(node, ast.ClassDef)]
    assert device.name == plugin.class_name != "Device"
    (test,) = [path for path in made if path.startswith("tests/test_")]
    ast.parse(made[test])
