from pathlib import Path

import pytest

from hyperbeam import ConfigError, Device, key
from hyperbeam.registry import discover

GOOD = "from hyperbeam import Device, key\n\n\nclass A(Device):\n    name = 'a@1.0'\n"


def folder(tmp_path: Path, name: str, **files: str) -> str:
    path = tmp_path / name
    path.mkdir()
    for stem, text in files.items():
        (path / f"{stem}.py").write_text(text)
    return str(path)


def test_every_in_tree_device_loads() -> None:
    found = discover((), {})
    assert found.failures == {}
    assert {
        "cache@1.0",
        "flat@1.0",
        "inference@1.0",
        "json@1.0",
        "message@1.0",
        "meta@1.0",
        "msgpack@1.0",
        "relay@1.0",
        "router@1.0",
    } <= set(found.devices)


def test_folders_files_and_what_is_left_out(tmp_path: Path) -> None:
    path = folder(tmp_path, "x", good=GOOD, _helper="1/0", bad="1/0")
    found = discover([path], {})
    assert found.devices["a@1.0"].source == f"{path}/good.py"
    assert list(found.failures) == [f"{path}/bad.py"]
    assert "ZeroDivisionError" in found.failures[f"{path}/bad.py"]


def test_one_name_twice_needs_a_choice(tmp_path: Path) -> None:
    one, two = folder(tmp_path, "one", a=GOOD), folder(tmp_path, "two", a=GOOD)
    with pytest.raises(ConfigError) as refused:
        discover([one, two], {})
    assert f"{one}/a.py" in refused.value.detail
    assert f"{two}/a.py" in refused.value.detail
    chosen = discover([one, two], {"a@1.0": f"{two}/a.py"})
    assert chosen.devices["a@1.0"].source == f"{two}/a.py"
    with pytest.raises(ConfigError, match="nowhere"):
        discover([one, two], {"a@1.0": "nowhere"})


def test_keys_are_the_marked_methods_and_are_inherited() -> None:
    class Base(Device):
        name = "base@1.0"

        @key
        def plain_key(self, base: object, request: object) -> None:
            """Does a thing."""

        def unmarked(self) -> None: ...

    class More(Base):
        name = "more@1.0"

        @key(name="list", rest=True)
        async def list_(self, base: object, request: object) -> None: ...

    assert set(Base.keys) == {"plain-key"}
    assert set(More.keys) == {"plain-key", "list"}
    assert (More.keys["list"].rest, More.keys["list"].is_async) == (True, True)
    assert Base.keys["plain-key"].doc == "Does a thing."
