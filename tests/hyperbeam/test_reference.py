import tomllib
from pathlib import Path

from hyperbeam.config import load
from hyperbeam.reference import commented_config, markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_what_the_code_reads() -> None:
    assert (DOCS / "config.md").read_text() == markdown(), "run scripts/config-reference"


def test_every_setting_is_explained_and_its_default_loads(tmp_path: Path) -> None:
    lines = commented_config().splitlines()
    settings = [
        line for line in lines if line.startswith("# ") and " = " in line and line[2] != " "
    ]
    assert len(settings) > 20
    for line in settings:
        before = lines[lines.index(line) - 1]
        assert before.startswith("# "), line
        assert " = " not in before, line
    file = tmp_path / "hyperbeam.toml"
    text = "\n".join(line.removeprefix("# ") if line in settings else line for line in lines)
    assert set(tomllib.loads(text)) >= {"http", "store", "inference", "cache"}
    file.write_text(text)
    assert load(file, environment={}).http == load(environment={}).http
