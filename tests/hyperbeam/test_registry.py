import re
from pathlib import Path
from typing import Any

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
    failure = found.failures[f"{path}/bad.py"]
    assert (failure.name, failure.reason) == ("bad.py", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("source", "public"),
    [
        ("open('/home/someone/secret')", "FileNotFoundError: the node's log says why"),
        ("import no_such.module", "it needs the module no_such, which is not installed"),
        (
            "raise ModuleNotFoundError('/home/someone', name='/home/someone')",
            "ModuleNotFoundError: the node's log says why",
        ),
        ("\ndef broken(:", "SyntaxError in line 2"),
        ("raise SystemExit('/home/someone')", "SystemExit: the node's log says why"),
        ("x = 1", "it defines no Device class"),
        (
            "from hyperbeam import Device\nclass A(Device):\n    name = 'a'",
            "A.name is 'a'; write a name such as greeter@1.0",
        ),
    ],
)
def test_what_anybody_may_know_of_a_failure(tmp_path: Path, source: str, public: str) -> None:
    path = folder(tmp_path, "x", **{"Bad one": source})
    failure = discover([path], {}).failures[f"{path}/Bad one.py"]
    assert (failure.name, failure.public) == ("bad_one.py", public)


@pytest.mark.parametrize("files", [{}, {"__init__": GOOD, "_helper": GOOD}])
def test_a_folder_without_a_device_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, files: dict[str, str]
) -> None:
    path = folder(tmp_path, "x", **files)
    discover([path], {})
    assert f"there is no device in {path}: " in caplog.text


KEY = "(self, base, request): pass\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"@key\n    async def start{KEY}", r"A\.start is not free .*@key\(name=\"start\"\)"),
        (f"@key\n    def stop{KEY}", "A.stop is not free"),
        (f"@key\n    def describe{KEY}", "A.describe is not free"),
        (f"@key\n    def default{KEY}", "A.default is not free"),
        (f"@key\n    def config{KEY}", "A.config is not free"),
        (f"@key\n    def keys{KEY}", "A.keys is not free"),
        (
            f"@key\n    def b{KEY}    @key(name='b')\n    def c{KEY}",
            "the key 'b' of A is twice: b and c",
        ),
        (f"@key(name='UPPER/x y')\n    def b{KEY}", "no path can name the key 'UPPER/x y'"),
        (f"@key\n    def Hello{KEY}", "no path can name the key 'Hello'"),
        (f"@key\n    def private{KEY}", "no path can name the key 'private'"),
        (f"@key(name='{'a' * 43}')\n    def b{KEY}", "no path can name the key 'aaa"),
        ("@key\n    def b(self): pass\n", r"the key 'b' has to take \(self, base, request\)"),
        ("@key\n    def b(self, base, request, more): pass\n", "the key 'b' has to take"),
        ("def start(self): pass\n", "A.start has to be `async def`"),
        ("def ready(self, url): return 'r'\n", "A.ready has to be `async def`"),
        ("def stop(self): pass\n", "A.stop has to be `async def`"),
        ("async def describe(self): return {}\n", "A.describe has to be `def`"),
        ("async def render_error(self, error): return {}\n", "A.render_error has to be `def`"),
    ],
)
def test_a_class_that_cannot_work_does_not_load(tmp_path: Path, source: str, reason: str) -> None:
    path = folder(tmp_path, "x", bad=f"{GOOD}    {source}")
    found = discover([path], {})
    assert found.devices.keys().isdisjoint({"a@1.0"})
    assert re.match(f"TypeError: {reason}", found.failures[f"{path}/bad.py"].reason)


@pytest.mark.parametrize(
    "source",
    [
        f"@key(name='start')\n    def begin{KEY}",
        f"@key(name='x y/z')\n    def b{KEY}",
        "@key\n    def b(self, base, request, more=1): pass\n",
        "@key\n    def b(self, *given): pass\n",
        "async def start(self): pass\n",
        "def describe(self): return {}\n",
        "async def default(self, key, base, request): pass\n",
        "def default(self, key, base, request): pass\n",
    ],
)
def test_a_class_that_works_loads(tmp_path: Path, source: str) -> None:
    path = folder(tmp_path, "x", good=f"{GOOD}    {source}")
    found = discover([path], {})
    assert "a@1.0" in found.devices
    assert found.failures == {}


def test_an_entry_point_that_names_no_device(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "plug_in.py").write_text(GOOD + "\n\nclass B:\n    pass\n")
    info = tmp_path / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hyperbeam.devices]\nother@1.0 = plug_in:A\nb@1.0 = plug_in:B\nc@1.0 = plug_in\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover((), {}).failures
    assert {name: failure.public for name, failure in found.items()} == {
        "other@1.0": "the class is named 'a@1.0'",
        "b@1.0": "it is the class B, not a Device class",
        "c@1.0": "it is the module, not a Device class",
    }
    assert all(failure.reason.startswith("plug-in (plug_in") for failure in found.values())


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
