"""Finding devices: by entry point (group `hyperbeam.devices`) and in `device_path` folders.

In-tree devices are found the same way as anybody's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Config, convert
from .device import Device
from .errors import ConfigError
from .message import is_device_name

GROUP = "hyperbeam.devices"
_NOT_IN_KEYS = re.compile(r"[^a-z0-9@._-]")
_MODULE = re.compile(r"[A-Za-z0-9_.]{1,100}\Z")
log = logging.getLogger("hyperbeam.devices")


@dataclass(frozen=True, slots=True)
class Found:
    """A device class, where it comes from (a distribution's name or a file), and its module."""

    name: str
    device: type[Device]
    source: str
    module: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a device is not there: `reason` for the operator, `public` for whoever asks.

    `name` is the device's, or its file's without folders, as a key of a message.
    """

    name: str
    reason: str
    public: str

    @classmethod
    def of(cls, name: str, error: BaseException, source: str = "") -> Failure:
        """What `error` says. `source`: where the device comes from, for the operator."""
        reason = f"{type(error).__name__}: {error}"
        return cls(_key(name), f"{source}: {reason}" if source else reason, _public(error))


@dataclass(slots=True)
class Registry:
    """Devices by name, and by name or path of their file those that could not be loaded."""

    devices: dict[str, Found]
    failures: dict[str, Failure]


class NoDevice(Exception):
    """What was found is no device; the text says nothing of this machine."""


def discover(device_path: Sequence[str], choices: Mapping[str, str]) -> Registry:
    """Load every device there is.

    `choices` says for a name that two offer which source serves it. Raises ConfigError
    that names both where it does not; a device that fails to load is a failure with its reason.
    """
    failures: dict[str, Failure] = {}
    found = _from_entry_points(failures) + _from_folders(device_path, failures)
    offers: dict[str, list[Found]] = {}
    for each in found:
        others = offers.setdefault(each.name, [])
        if all(other.source != each.source for other in others):
            others.append(each)
    devices = {name: _choose(name, these, choices.get(name)) for name, these in offers.items()}
    for name, failure in failures.items():
        log.error("device %s does not load: %s", name, failure.reason)
    return Registry(devices, failures)


def _choose(name: str, offers: list[Found], choice: str | None) -> Found:
    if choice is not None:
        for offer in offers:
            if offer.source == choice:
                return offer
    elif len(offers) == 1:
        return offers[0]
    sources = " and ".join(repr(offer.source) for offer in offers)
    raise ConfigError(
        f'device {name} is offered by {sources}; say which in [devices]: "{name}" = ...'
        if choice is None
        else f"[devices] takes {name} from {choice!r}, but it is offered by {sources}"
    )


def _from_entry_points(failures: dict[str, Failure]) -> list[Found]:
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        source = entry.dist.name if entry.dist is not None else entry.value
        try:
            device = entry.load()
            _check(device)
            if device.name != entry.name:
                raise NoDevice(f"the class is named {device.name!r}")
        except (Exception, SystemExit) as error:  # a plugin may raise anything at import
            failures[entry.name] = Failure.of(entry.name, error, f"{source} ({entry.value})")
            continue
        found.append(Found(entry.name, device, source, entry.module))
    return found


def _from_folders(device_path: Sequence[str], failures: dict[str, Failure]) -> list[Found]:
    found = []
    for folder in map(Path, device_path):
        if not folder.is_dir():
            raise ConfigError(f"device_path: {folder} is not a folder")
        files = [
            file for file in sorted(folder.glob("*.py")) if not file.name.startswith(("_", "."))
        ]
        if not files:
            log.warning(
                "device_path: there is no device in %s: its files *.py are read, but not those "
                "named _*.py, and no folders in it; a package is installed by pip instead",
                folder,
            )
        for file in files:
            try:
                classes = _load_file(file)
            except (Exception, SystemExit) as error:
                failures[str(file)] = Failure.of(file.name, error)
                continue
            found += [
                Found(device.name, device, str(file), device.__module__) for device in classes
            ]
    return found


def _load_file(file: Path) -> list[type[Device]]:
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    module_name = f"hyperbeam_device_{digest}_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Device) and value.__module__ == module_name
    ]
    if not classes:
        raise NoDevice("it defines no Device class")
    for device in classes:
        _check(device)
    return classes


def _check(device: Any) -> None:
    if not (inspect.isclass(device) and issubclass(device, Device)):
        kind = f"class {device.__name__}" if inspect.isclass(device) else type(device).__name__
        raise NoDevice(f"it is the {kind}, not a Device class")
    if not is_device_name(device.name):
        raise NoDevice(
            f"{device.__name__}.name is {device.name!r}; write a name such as greeter@1.0"
        )


def _key(name: str) -> str:
    return _NOT_IN_KEYS.sub("_", name.lower())[:100]


def _public(error: BaseException) -> str:
    """What anybody may know of `error`: its text may tell paths and settings."""
    if isinstance(error, NoDevice):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and _MODULE.match(error.name or ""):
        return f"it needs the module {error.name}, which is not installed"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} in line {error.lineno}"
    return f"{type(error).__name__}: the node's log says why"


def section(config: Config, found: Found) -> Any:
    """A device's section of the configuration; None for a device that has none.

    Raises ConfigError.
    """
    if found.device.Config is None:
        return None
    name, spelled = section_names(found.name)
    values = {**config.sections.get(name, {}), **config.sections.get(spelled, {})}
    where = f"{config.file or 'the configuration'}: [{name}]"
    return convert(values, found.device.Config, where)


def section_names(device: str) -> tuple[str, str]:
    """The names that a device's section may have."""
    name = device.partition("@")[0]
    # The environment names `[receipt-log]` by `_`, as its variables have no dash.
    return name, name.replace("-", "_")
