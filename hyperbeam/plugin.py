"""The files of a package with a device of somebody's own, to start from."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from string import Template

from . import __version__
from .errors import ConfigError
from .message import is_device_name
from .registry import GROUP

VERSION = "1.0"
MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Plugin:
    """The names of a plugin: of its device, with the version, and of what Python makes of it.

    The package is called by a prefix, so that no name shadows a module of another's, and with any
    version but 1.0, so that two versions of a device can be installed beside each other.
    """

    device: str

    @classmethod
    def named(cls, name: str) -> Plugin:
        """The plugin for NAME or NAME@VERSION. Raises ConfigError for what no path can name."""
        device = name if "@" in name else f"{name}@{VERSION}"
        if not is_device_name(device):
            raise ConfigError(
                f"{name[:100]!r} is no name of a device: write lower-case letters, digits, - and "
                "_, a letter or digit first, such as greeter or greeter@1.0"
            )
        if len(device) > MAX_NAME:
            raise ConfigError(f"{name[:100]!r} is too long: {MAX_NAME} characters at most")
        for entry in importlib.metadata.entry_points(group=GROUP, name=device):
            source = entry.dist.name if entry.dist is not None else entry.value
            raise ConfigError(
                f"{device} is there already, from {source}: take another name, or another "
                f"version by {device.partition('@')[0]}@VERSION"
            )
        plugin = cls(device)
        if plugin._is_installed:
            raise ConfigError(
                f"the package would be named {plugin.distribution}, and one of that name is "
                "installed, which it would take the place of: take another name"
            )
        return plugin

    @property
    def short(self) -> str:
        """The device's name without its version."""
        return self.device.partition("@")[0]

    @property
    def distribution(self) -> str:
        """What pip calls it."""
        return f"hyperbeam-{self.folder}"

    @property
    def folder(self) -> str:
        """Its folder, if no other is named."""
        version = self.device.partition("@")[2]
        return "-".join([*self._words, *(version.split(".") if version != VERSION else ())])

    @property
    def package(self) -> str:
        """What Python imports."""
        return self.distribution.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The device's class; its end keeps it apart from what the module imports."""
        name = "".join(word.capitalize() for word in self._words)
        return f"{name}Device" if name[0].isalpha() else f"Device{name}"

    @property
    def _is_installed(self) -> bool:
        try:
            importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return False
        return True

    @property
    def _words(self) -> list[str]:
        return [word for word in re.split("[-_]+", self.short) if word]


def files(plugin: Plugin) -> dict[str, str]:
    """The texts of the plugin's files by their paths in its folder."""
    names = {
        "device": plugin.device,
        "distribution": plugin.distribution,
        "package": plugin.package,
        "class_name": plugin.class_name,
        "hyperbeam": ".".join(__version__.split(".")[:2]),
    }
    return {
        path: template.substitute(names)
        for path, template in {
            "pyproject.toml": _PYPROJECT,
            "README.md": _README,
            f"src/{plugin.package}/__init__.py": _DEVICE,
            f"tests/test_{'_'.join(plugin.package.split('_')[1:])}.py": _TEST,
        }.items()
    }


_PYPROJECT = Template("""\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$distribution"
version = "0.1.0"
description = "The device $device for hyperbeam-node."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["hyperbeam-node>=$hyperbeam"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."hyperbeam.devices"]
"$device" = "$package:$class_name"

[tool.hatch.build.targets.wheel]
packages = ["src/$package"]

[tool.pytest.ini_options]
testpaths = ["tests"]
""")

_README = Template("""\
# $distribution

The device `$device` for hyperbeam-node.

In the environment of the node:

```sh
pip install --editable '.[test]'
pytest
hyperbeam serve
```

```sh
curl 'localhost:8734/~$device/hello&name=Ada'
curl 'localhost:8734/~$device/shout?text=hello'
```

`/~meta@1.0/devices` lists it with its keys, or says why it did not load.
""")

_DEVICE = Template('''\
"""$device: a device for hyperbeam-node."""

from __future__ import annotations

from typing import Any

from hyperbeam import BadRequest, Device, Message, key


class $class_name(Device):
    """Greets, and says things loudly."""

    name = "$device"

    @key
    async def hello(self, base: Any, request: Message) -> Message:
        """A greeting for `name`, else for the world: `/~$device/hello&name=Ada`."""
        name = request.get("name", "world")
        if not isinstance(name, str):
            raise BadRequest("name has to be text", param="name")
        return {"body": f"Hello, {name}"}

    @key
    async def shout(self, base: Any, request: Message) -> Message:
        """`text` in capitals: `/~$device/shout?text=hello`."""
        text = request.get("text")
        if not isinstance(text, str) or not text:
            raise BadRequest("say what to shout: ?text=hello", param="text")
        return {"body": text.upper()}
''')

_TEST = Template('''\
"""The installed device, asked of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hyperbeam import BadRequest
from hyperbeam.config import load
from hyperbeam.node import Node

Ask = Callable[[str], Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Gives what a path leads to on a node with a home of its own."""
    flags = {"home": str(tmp_path_factory.mktemp("home")), "http.port": 0}
    node = Node(load(environment={}, flags=flags))
    with asyncio.Runner() as runner:
        runner.run(node.start())
        try:
            yield lambda path: runner.run(node.resolve(None, path))
        finally:
            runner.run(node.stop())


def test_hello(ask: Ask) -> None:
    assert ask("/~$device/hello&name=Ada") == {"body": "Hello, Ada"}
    assert ask("/~$device/hello") == {"body": "Hello, world"}


def test_shout(ask: Ask) -> None:
    assert ask("/~$device/shout?text=hello") == {"body": "HELLO"}


def test_what_cannot_be_read_is_refused(ask: Ask) -> None:
    with pytest.raises(BadRequest, match="text"):
        ask("/~$device/shout")
    with pytest.raises(BadRequest, match="name"):
        ask("/~$device/hello&name+integer=7")
''')
