"""Pages of docs/ whose commands are run, and print what the page shows below them."""

import json
import re
from pathlib import Path
from typing import Any

from .process import NodeProcess
from .test_readme import shell

_BLOCK = re.compile(
    r"^```sh\n(curl .*?|\w+=.*?)^```\n(?:\n```(text|json)\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


def examples(page: str) -> list[tuple[str, str, str]]:
    """The commands of a page, whether they print text or JSON, and what."""
    return _BLOCK.findall(page)


def check(node: NodeProcess, folder: Path, command: str, kind: str, shown: str) -> None:
    """Run an example in `folder` against `node`."""
    printed = shell(command, node, folder)
    if kind == "json":
        assert_like(json.loads(printed), json.loads(shown))
    else:
        assert kind == "text", "an example without what it prints"
        assert re.fullmatch(_pattern(shown.strip()), printed.strip(), re.DOTALL), printed


def assert_like(value: Any, shown: Any) -> None:
    """`value` is what is shown. `...` in a text stands for any, alone for any value; a message
    with the key `...` has more keys, a list that ends with it more items."""
    if shown == "...":
        return
    if isinstance(shown, dict):
        names = shown.keys() - {"..."}
        assert value.keys() >= names if "..." in shown else value.keys() == names
        for name in names:
            assert_like(value[name], shown[name])
    elif isinstance(shown, list):
        more = shown[-1:] == ["..."]
        items = shown[:-1] if more else shown
        assert len(value) >= len(items) if more else len(value) == len(items)
        for one, item in zip(value, items, strict=False):
            assert_like(one, item)
    elif isinstance(shown, str):
        assert isinstance(value, str)
        assert re.fullmatch(_pattern(shown), value, re.DOTALL), value
    else:
        assert (type(value), value) == (type(shown), shown)


def _pattern(shown: str) -> str:
    return ".*".join(map(re.escape, shown.split("...")))
