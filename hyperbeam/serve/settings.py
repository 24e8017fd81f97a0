"""What of new settings a running node can take, and what has to wait for its next start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ..config import Config

CHANGEABLE = ("access", "log", "print", "tracing")
"""Settings of the kernel that new workers take, beside `[http]`."""
FIXED_HTTP = ("host", "port")
_NOT_SETTINGS = ("file", "sections")


def differences(old: Config, new: Config) -> list[str]:
    """The dotted names of settings that differ."""
    names = []
    for name in Config.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if name not in _NOT_SETTINGS and before != after:
            names += _inside(name, before, after)
    for name in sorted(old.sections.keys() | new.sections.keys()):
        names += _inside(name, old.sections.get(name, {}), new.sections.get(name, {}))
    return names


def merged(old: Config, new: Config, fixed: Collection[str]) -> tuple[Config, list[str]]:
    """`new` as far as workers can take it while the node runs, and the names of the rest.

    `fixed` are the sections that count as they were when the node started.
    """
    changes: dict[str, Any] = {name: getattr(new, name) for name in CHANGEABLE}
    http = {name: getattr(old.http, name) for name in FIXED_HTTP}
    changes["http"] = msgspec.structs.replace(new.http, **http)
    changes["sections"] = {
        **{name: values for name, values in new.sections.items() if name not in fixed},
        **{name: values for name, values in old.sections.items() if name in fixed},
    }
    result = msgspec.structs.replace(old, **changes, file=new.file)
    return result, differences(result, new)


def _inside(name: str, before: Any, after: Any) -> list[str]:
    one, other = _fields(before), _fields(after)
    if one is None or other is None:
        return [name] if before != after else []
    keys = [*one, *(key for key in other if key not in one)]
    return [f"{name}.{key}" for key in keys if one.get(key) != other.get(key)]


def _fields(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return value if isinstance(value, Mapping) else None
