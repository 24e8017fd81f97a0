"""A route that the operator adds over HTTP, at the end of the table's file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadRequest, ConfigError, Forbidden, HyperbeamError
from ..message import Message
from ..routing import RouteTable, parse_routes

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_SAFE_AUTH = ("none", "forward")
_DEPTH = 6
_MAX = 64 * 1024


Write = Callable[[], None]


def appended(
    path: Path, route: Message, *, named: bool = True
) -> tuple[RouteTable, Path, Write, Write]:
    """The table of the file `path` with `route` behind the others, what writes it there, and what
    writes there again what there was. `named`: whether the configuration names the file.

    Raises BadRequest or ConfigError for a route that cannot be read, Forbidden for what is set in
    the file alone, 409 where the table is no file of the operator's.
    """
    if _is_of_software(path.resolve(), named=named):
        raise HyperbeamError(
            f"this node runs with the table that comes with the software, {path}: give it its own "
            "by `routes` in hyperbeam.toml or --routes FILE",
            status=409,
            error="no_route_file",
        )
    if not route:
        raise BadRequest("a route has a template and nodes", error="bad_route")
    _check(route)
    try:
        before = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the route table cannot be read: {error}") from None
    text = f"{before.rstrip()}\n\n[[routes]]\n{_table(route)}".lstrip()
    if len(text) > len(before) + _MAX:
        raise BadRequest("the route is too long", error="bad_route")
    table = parse_routes(text, str(path))
    file = path.resolve()  # a link to it stays one
    return table, path, lambda: _write(file, text), lambda: _write(file, before)


def _is_of_software(file: Path, *, named: bool) -> bool:
    package = Path(__file__).resolve().parents[1]
    shipped = file.parent / package.name / "routing" / "routes.toml"
    return file.is_relative_to(package) or (not named and shipped.is_file())


def _write(path: Path, text: str) -> None:
    """All of it or nothing, under the mode that the file has."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise HyperbeamError(
            f"the route table cannot be written: {error.strerror}", status=507, error="disk_full"
        ) from None


def _check(route: Message) -> None:
    nodes = route.get("nodes", [])
    for node in [route.get("node"), *(nodes if isinstance(nodes, list) else [nodes])]:
        fields = {"prefix": node} if isinstance(node, str) else node
        if not isinstance(fields, Mapping):
            continue
        options = fields.get("opts")
        for given in (fields, options if isinstance(options, Mapping) else {}):
            # Secrets and sockets of this machine are nobody's to reach over HTTP.
            if given.get("auth", "none") not in _SAFE_AUTH or given.get("headers"):
                raise Forbidden("auth and headers of a node are set in the file alone")
        if str(fields.get("prefix", "")).lower().startswith("http+unix"):
            raise Forbidden("a unix socket is named in the file alone")


def _table(values: Mapping[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_value(value, 0)}\n" for name, value in values.items())


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("half of a surrogate pair", error="bad_route") from None
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, depth: int) -> str:
    """A value of TOML on one line. Raises BadRequest for what has none."""
    if depth > _DEPTH:
        raise BadRequest(f"a route is at most {_DEPTH} levels deep", error="bad_route")
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(_value(item, depth + 1) for item in value)}]"
        case dict():
            pairs = (f"{_key(name)} = {_value(item, depth + 1)}" for name, item in value.items())
            return f"{{ {', '.join(pairs)} }}"
    raise BadRequest(f"a {type(value).__name__} cannot stand in a route table", error="bad_route")
