"""docs/messages.md: each of its examples prints what it says there."""

import re
from pathlib import Path

import pytest

from .pages import check, examples
from .process import ROOT, NodeProcess

PAGE = (ROOT / "docs" / "messages.md").read_text()
EXAMPLES = examples(PAGE)


@pytest.mark.parametrize(("command", "kind", "shown"), EXAMPLES)
def test_an_example_prints_what_the_page_shows(
    node: NodeProcess, tmp_path: Path, command: str, kind: str, shown: str
) -> None:
    check(node, tmp_path, command, kind, shown)


def test_every_block_of_commands_is_run() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks == [command for command, _, _ in EXAMPLES]
