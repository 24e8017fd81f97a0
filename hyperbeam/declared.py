"""What a node declares of itself: its settings, routes and devices, as its key sets hash them."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from . import __version__
from .verify import jcs

if TYPE_CHECKING:
    from .config import Config
    from .registry import Found
    from .routing import RouteTable

_OWN_PLACES = ("home", "file", "routes", "device_path", "sections")
_SECRET = re.compile(r"(?:^|_)(?:token|secrets?|passwords?|credentials?|api_?keys?)\Z")


class Configured(Protocol):
    """A device, or what stands for one: its section of the configuration."""

    @property
    def config(self) -> Any: ...


def facts(
    config: Config,
    routes: RouteTable,
    devices: Mapping[str, Configured],
    found: Mapping[str, Found],
    hooks: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Settings without secrets and paths of this machine, routes, and the devices' code.

    `{version, config, sections, routes, hooks, devices: {name: SHA-256 of its files}}`
    """
    settings = _builtins(config)
    sections = {
        name.partition("@")[0]: _builtins(device.config)
        for name, device in devices.items()
        if isinstance(device.config, msgspec.Struct)
    }
    return {
        "version": __version__,
        "config": _public({k: v for k, v in settings.items() if k not in _OWN_PLACES}),
        "sections": _public(sections),
        "routes": [route.describe() for route in routes.routes],
        "hooks": [_public(hook) for hook in hooks],
        "devices": {name: code_digest(found[name].module) for name in devices},
    }


def code_digest(module: str) -> str | None:
    """SHA-256 over the names and contents of a module's file, or of all files of a package.

    None for a module that has no files.
    """
    loaded = sys.modules[module]
    digests: dict[str, str] = {}
    if hasattr(loaded, "__path__"):
        for folder in map(Path, loaded.__path__):
            digests |= _digests(folder, sorted(folder.rglob("*.py")))
    elif file := getattr(loaded, "__file__", None):
        digests = _digests(Path(file).parent, [Path(file)])
    return jcs.digest(canonical(digests)) if digests else None


def canonical(value: Any) -> Any:
    """`value` as what canonical JSON can hold: floats, large integers and bytes become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= jcs.MAX_INTEGER else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_name(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float | Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be declared: use plain values")


def _builtins(settings: msgspec.Struct) -> Any:
    return msgspec.to_builtins(settings, order="deterministic", enc_hook=str)


def _name(key: Any) -> str:
    return str(key).encode("unicode_escape").decode("ascii")


def _digests(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def _public(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _public(v) for k, v in value.items() if not _SECRET.search(str(k).lower())}
    return value
