"""Which settings the operator may change while the node runs, and the configuration with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import KERNEL_KEYS, Config, convert, from_text
from ..errors import BadRequest, Forbidden, HyperbeamError
from ..home import home_of
from ..http.hosts import Hosts, host_name, is_loopback
from ..message import Message
from . import state

if TYPE_CHECKING:
    from ..device import Device

_OPEN: Mapping[str, frozenset[str]] = {
    "access": frozenset({"required", "open"}),
    "http": frozenset(
        {
            "body_limit",
            "body_timeout",
            "cors",
            "header_timeout",
            "hosts",
            "keep_alive_comment",
            "send_timeout",
        }
    ),
    "log": frozenset({"access", "format", "level"}),
}
_ALONE = frozenset({"print"})
_LEAST: Mapping[str, float] = {
    "http.body_limit": 4096,
    "http.body_timeout": 1,
    "http.header_timeout": 1,
    "http.send_timeout": 1,
}
"""What an order itself needs: with less, none could take it back."""


def changeable(sections: Mapping[str, frozenset[str]]) -> list[str]:
    """The dotted names of all such settings; `sections` are those of the devices' own."""
    named = {**_OPEN, **sections}
    return sorted([*_ALONE, *(f"{name}.{key}" for name, keys in named.items() for key in keys)])


def values(config: Config, names: list[str], devices: Mapping[str, Device]) -> dict[str, Any]:
    """What the settings `names` are now."""
    own = {name.partition("@")[0]: device.config for name, device in devices.items()}
    found: dict[str, Any] = {}
    for dotted in names:
        section, dot, name = dotted.partition(".")
        place = getattr(config, section) if hasattr(config, section) else own[section]
        value = getattr(place, name) if dot else place
        plain = msgspec.to_builtins(value)
        found[dotted] = list(plain) if isinstance(plain, tuple) else plain
    return found


def flattened(wanted: Message, names: list[str], known: Collection[str] = ()) -> dict[str, Any]:
    """What is wanted by dotted name. `known` are all settings of devices. Raises Forbidden naming
    what may not change, BadRequest for what there is not."""
    found: dict[str, Any] = {}
    for name, value in _flat(wanted):
        if name not in names:
            may = f"these may change over HTTP: {', '.join(names)}"
            if name in known or _is_of_kernel(name):
                told = f"{name[:100]} is set in hyperbeam.toml alone; {may}"
                raise Forbidden(told, param=name[:100])
            raise BadRequest(f"there is no setting {name[:100]!r}; {may}", param=name[:100])
        if name in found:
            raise BadRequest(f"{name} is said twice", param=name)
        found[name] = _plain(name, from_text(name, str(value)) if isinstance(value, str) else value)
    return found


def overlaid(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with `settings` by dotted name. Raises ConfigError for a value that cannot be."""
    values = msgspec.to_builtins(config)
    for dotted, value in settings.items():
        section, dot, name = dotted.partition(".")
        if not dot:
            values[dotted] = value
        elif section in Config.__struct_fields__:
            values[section] = {**values[section], name: value}
        else:
            values["sections"] = {
                **values["sections"],
                section: {**values["sections"].get(section, {}), name: value},
            }
    return convert(values, Config, "the operator's settings")


def check(config: Config, changed: Iterable[str], host: str) -> None:
    """Raises BadRequest where the settings `changed` have `config` take no more orders that come
    under the name `host`."""
    for name in changed:
        section, _, field = name.partition(".")
        value: Any = getattr(config.http, field) if section == "http" else None
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest(f"{name} is a finite number", param=name, error="bad_setting")
        if name in _LEAST and value < _LEAST[name]:
            raise BadRequest(
                f"{name} is at least {_LEAST[name]} over HTTP: with less the node would take no "
                "order any more",
                param=name,
                error="bad_setting",
            )
        if name == "http.hosts" and host and is_loopback(config.http.host):
            try:
                Hosts(config.http.hosts).check(host)
            except HyperbeamError:
                raise BadRequest(
                    f"http.hosts has to keep {host_name(host)[:200]!r}: this order came under that "
                    "name, and the next one would be refused",
                    param=name,
                    error="bad_setting",
                ) from None


def with_orders(config: Config) -> Config:
    """`config` with what the operator has changed while a node of that home ran.

    Raises ConfigError.
    """
    changed = state.load(home_of(config)).settings
    return overlaid(config, changed) if changed else config


def _plain(name: str, value: Any) -> Any:
    """`value` as JSON would have it: it is kept, and shown, so."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            with_halves = any("\ud800" <= one <= "\udfff" for one in value)
            if not with_halves:
                return str(value)
        case list():
            return [_plain(name, item) for item in value]
        case dict():
            return {str(key): _plain(name, item) for key, item in value.items()}
    raise BadRequest(f"{name} cannot be such a value", param=name, error="bad_setting")


def _is_of_kernel(name: str) -> bool:
    section, dot, field = name.partition(".")
    if section not in KERNEL_KEYS:
        return False
    place = getattr(Config(), section)
    if isinstance(place, msgspec.Struct):
        return field in place.__struct_fields__
    return not dot or isinstance(place, dict)


def _flat(wanted: Message) -> Iterator[tuple[str, Any]]:
    for name, value in wanted.items():
        if isinstance(value, dict) and value:
            for inner, own in value.items():
                yield f"{name}.{inner.replace('-', '_')}", own
        else:
            section, dot, inner = name.partition(".")
            yield (f"{section}.{inner.replace('-', '_')}" if dot else name), value
