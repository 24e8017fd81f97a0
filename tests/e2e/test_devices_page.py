"""docs/devices.md says what there is, and each of its examples prints what it says there."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperbeam.about import about
from hyperbeam.registry import discover

from .pages import check, examples
from .process import ROOT, NodeProcess

PAGE = (ROOT / "docs" / "devices.md").read_text()
EVERY = PAGE.partition("\n## Every device\n")[2]
SECTIONS = dict(re.findall(r"^#### (\S+)\n\n(.*?)(?=^#{2,4} |\Z)", EVERY, re.MULTILINE | re.DOTALL))
EXAMPLES = examples(PAGE)
RUN_BY = {"hyperbeam new-device greeter\n": "tests/e2e/test_plugins.py, with another name"}
DEVICES = {
    name: found.device
    for name, found in discover((), {}).devices.items()
    if found.source == "hyperbeam-node"
}
OTHER = "any other key"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The node that the page's examples are for."""
    folder = tmp_path_factory.mktemp("page")
    (command, settings) = re.findall(r"`(scripts/run .*?)`.*?```toml\n(.*?)```", EVERY, re.DOTALL)[
        0
    ]
    script, *arguments = command.split()
    (folder / arguments[-1]).write_text(settings)
    own = ["--port", "0", "--home", folder / "home"]
    running = NodeProcess([ROOT / script, *arguments, *own], cwd=folder)
    try:
        yield running.ready()
    finally:
        status = running.stop()
    assert status == 0, "\n".join(running.lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples are run, one after the other."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize(
    ("command", "kind", "shown"), EXAMPLES, ids=[f"{n}" for n in range(len(EXAMPLES))]
)
def test_an_example_prints_what_the_page_shows(
    node: NodeProcess, folder: Path, command: str, kind: str, shown: str
) -> None:
    check(node, folder, command, kind, shown)


def test_every_block_of_commands_is_run() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(EXAMPLES) > len(SECTIONS)
    assert sorted(blocks) == sorted([*RUN_BY, *(command for command, _, _ in EXAMPLES)])


def test_the_page_has_every_device_and_no_other() -> None:
    assert set(SECTIONS) == set(DEVICES), "".join(
        f"\n#### {name}\n\n{section(name)}" for name in sorted(set(DEVICES) - set(SECTIONS))
    )


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() & DEVICES.keys()))
def test_a_section_has_the_device_s_docs_and_keys_and_an_example(name: str) -> None:
    text = SECTIONS[name]
    items = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    lines = dict(" ".join(item.split()).split(": ", 1) for item in items)
    assert len(lines) == len(items)
    docs = " ".join(text.partition("\n\n")[0].split())
    assert (docs, lines) == described(name), f"the section has to begin\n\n{section(name)}"
    assert re.search(rf"```sh\n(?:(?!```).)*~{re.escape(name)}", text, re.DOTALL) or (
        name == "metrics@1.0" and "8734/metrics" in text
    )


def test_every_link_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
    for target in re.findall(r"\]\((?!http)([^)]+)\)", PAGE):
        file, hash, name = target.partition("#")
        assert (ROOT / "docs" / file).is_file() if file else f"{hash}{name}" in anchors, target


def described(name: str) -> tuple[str, dict[str, str]]:
    """A device's docs, and those of its keys as the page writes them."""
    said = about(DEVICES[name])
    lines = {f"`{key}`": docs for key, docs in said["keys"].items()}
    return said["docs"], lines | ({OTHER: said["default"]} if "default" in said else {})


def section(name: str) -> str:
    """What the page has to say of a device, before its examples."""
    docs, lines = described(name)
    items = [_wrapped(f"- {key}: {text}", "  ") for key, text in lines.items()]
    return "\n".join([_wrapped(docs), "", *items, ""])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 98, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
