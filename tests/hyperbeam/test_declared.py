import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.declared import canonical, code_digest, facts
from hyperbeam.node import Node
from hyperbeam.verify import jcs

from .conftest import StartNode

PLUGIN = """
import msgspec
from hyperbeam import Device


class Settings(msgspec.Struct, frozen=True):
    max_tokens: int = 7
    ratio: float = 0.5
    token: str = ""
    api_key: str = ""
    nested: dict[str, str] = {}


class Plugin(Device):
    name = "plugin@1.0"
    Config = Settings
"""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_everything_plain_becomes_canonical(value: object) -> None:
    encoded = jcs.encode(canonical(value))
    assert jcs.encode(canonical(value)) == encoded


@given(st.dictionaries(st.text(), st.integers()))
def test_no_two_keys_become_one(value: dict[str, int]) -> None:
    assert len(canonical(value)) == len(value)


def test_what_canonical_values_are() -> None:
    assert canonical({"a": 1.5, "b": (2**60, b"\x01", Path("/x")), "ü": "\udcff"}) == {
        "a": "1.5",
        "b": [str(2**60), "01", "/x"],
        "\\xfc": "\\udcff",
    }
    with pytest.raises(TypeError, match="set cannot be declared"):
        canonical({1})


def stated(node: Node) -> dict[str, object]:
    return facts(node.config, node.routes, node.devices, node._found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "plugin.py").write_text(PLUGIN)
    return folder


async def test_facts_have_no_secrets_and_no_places(
    start_node: StartNode, tmp_path: Path, folder: Path
) -> None:
    flags = {
        "plugin__token": "s3cret",
        "plugin__api_key": "s3cret",
        "plugin__nested": {"password": "s3cret", "user": "u"},
        "plugin__ratio": 0.25,
    }
    node = await start_node(device_path=[str(folder)], **flags)
    told = stated(node)
    assert "s3cret" not in repr(told)
    assert str(tmp_path) not in repr(told)
    sections = told["sections"]
    assert isinstance(sections, dict)
    assert sections["plugin"] == {"max_tokens": 7, "ratio": 0.25, "nested": {"user": "u"}}
    assert jcs.digest(canonical(told)) == jcs.digest(canonical(stated(node)))


async def test_every_change_is_another_config(
    start_node: StartNode, tmp_path: Path, folder: Path
) -> None:
    plugin = folder / "plugin.py"
    routes = tmp_path / "routes.toml"
    routes.write_text('[[routes]]\ntemplate = "/a"\nnode = "http://127.0.0.1:1"')

    async def config(**flags: object) -> str:
        node = await start_node(device_path=[str(folder)], **flags)
        return node.keys.current.config

    first = await config()
    assert await config() == first
    others = {
        await config(plugin__ratio=0.75),
        await config(http__drain=1.5),
        await config(routes=str(routes)),
    }
    routes.write_text('[[routes]]\ntemplate = "/b"\nnode = "http://127.0.0.1:1"')
    others.add(await config(routes=str(routes)))
    plugin.write_text(PLUGIN + "# changed\n")
    others.add(await config())
    assert len(others | {first}) == 6


def test_a_package_counts_with_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "inner/b.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("some_package")
    digests = [code_digest("some_package")]
    (package / "inner" / "b.py").write_text("b = 1\n")
    digests.append(code_digest("some_package"))
    (package / "inner" / "b.py").rename(package / "inner" / "c.py")
    digests.append(code_digest("some_package"))
    assert len(set(digests)) == 3
    assert None not in digests
    monkeypatch.delitem(sys.modules, "some_package")
    assert code_digest("sys") is None


async def test_a_device_that_does_not_start_is_not_declared(
    start_node: StartNode, folder: Path
) -> None:
    failing = (
        "\n    async def start(self):\n        self.node.keys.current\n        raise OSError\n"
    )
    (folder / "plugin.py").write_text(PLUGIN + failing)
    node = await start_node(device_path=[str(folder)])
    assert "plugin@1.0" in node.failures
    assert "plugin@1.0" not in repr(stated(node))
    assert node.keys.current.message["previous"] is not None
