"""Finding devices: by entry point (group `hyperbeam.devices`) and in `device_path` folders.

In-tree devices are found the same way as anybody's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .device import Device
from .errors import ConfigError
from .message import is_device_name

GROUP = "hyperbeam.devices"
log = logging.getLogger("hyperbeam.devices")


@dataclass(frozen=True, slots=True)
class Found:
    """A device class, where it comes from (a distribution's name or a file), and its module."""

    name: str
    device: type[Device]
    source: str
    module: str


@dataclass(slots=True)
class Registry:
    """Devices by name, and why others could not be loaded."""

    devices: dict[str, Found]
    failures: dict[str, str]


def discover(device_path: Sequence[str], choices: Mapping[str, str]) -> Registry:
    """Load every device there is.

    `choices` says for a name that two offer which source serves it. Raises ConfigError
    that names both where it does not; a device that fails to load is a failure with its reason.
    """
    failures: dict[str, str] = {}
    found = _from_entry_points(failures) + _from_folders(device_path, failures)
    offers: dict[str, list[Found]] = {}
    for each in found:
        others = offers.setdefault(each.name, [])
        if all(other.source != each.source for other in others):
            others.append(each)
    devices = {name: _choose(name, these, choices.get(name)) for name, these in offers.items()}
    for name, reason in failures.items():
        log.error("device %s does not load: %s", name, reason)
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


def _from_entry_points(failures: dict[str, str]) -> list[Found]:
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        source = entry.dist.name if entry.dist is not None else entry.value
        try:
            device = entry.load()
            _check(device)
        except (Exception, SystemExit) as error:  # a plugin may raise anything at import
            failures[entry.name] = f"{source} ({entry.value}): {_reason(error)}"
            continue
        if device.name != entry.name:
            failures[entry.name] = f"{source}: the class is named {device.name!r}"
            continue
        found.append(Found(entry.name, device, source, entry.module))
    return found


def _from_folders(device_path: Sequence[str], failures: dict[str, str]) -> list[Found]:
    found = []
    for folder in map(Path, device_path):
        if not folder.is_dir():
            raise ConfigError(f"device_path: {folder} is not a folder")
        for file in sorted(folder.glob("*.py")):
            if file.name.startswith(("_", ".")):
                continue
            try:
                classes = _load_file(file)
            except (Exception, SystemExit) as error:
                failures[str(file)] = _reason(error)
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
        raise ImportError("it defines no Device class")
    for device in classes:
        _check(device)
    return classes


def _check(device: Any) -> None:
    if not (inspect.isclass(device) and issubclass(device, Device)):
        raise TypeError(f"{device!r} is not a Device class")
    if not is_device_name(device.name):
        raise ValueError(
            f"{device.__name__}.name is {device.name!r}; write a name such as greeter@1.0"
        )


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
