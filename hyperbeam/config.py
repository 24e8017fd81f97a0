"""What the operator may set, and where it is taken from.

Order of precedence, the first that says something wins: flags of the command line,
environment (`HB_<SECTION>_<KEY>`, with `__` between the two where the section has a `_`;
`HB_HOME`, `HB_PROFILE`, `HB_PRINT`), the file hyperbeam.toml, the profile, the defaults
below. A table of the file that is no section of the kernel belongs to the device of that
name, which reads it by its own `Config`.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import msgspec
from msgspec import Meta

from .errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
MAX_WORKERS = 256

PROFILES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "inference": {"inference": {"backend": "llama"}},
}


class HTTPConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[http]`: the listening socket and its limits."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """The address to listen on."""
    hosts: tuple[str, ...] = ()
    """Names beside localhost that a request's Host may have while the node listens on
    loopback: others are refused, so that a web page cannot reach it under a name of its own."""
    port: Port = 8734
    """The port to listen on; 0 takes a free one."""
    body_limit: Positive = 32 * 1024 * 1024
    """Bytes of a request's body."""
    header_timeout: Seconds = 10.0
    """Seconds for a request's head to arrive."""
    body_timeout: Seconds = 60.0
    """Seconds without a byte of a request's body."""
    send_timeout: Seconds = 60.0
    """Seconds in which a client takes nothing of its reply; then it is cut, and its work ended."""
    keep_alive_comment: Seconds = 15.0
    """Seconds of silence in a stream before a comment is sent."""
    drain: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds that running answers may take after Ctrl-C or SIGTERM."""
    cors: tuple[str, ...] = ("*",)
    """Origins whose web pages may read the node's replies; `*` is all, an empty list none."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose x-forwarded-for is believed, such as 10.0.0.0/8."""


class AccessConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[access]`: who may use inference and the relay."""

    required: Literal["auto", "always", "never"] = "auto"
    """Whether an API key is needed: `auto` as soon as there is one (`hyperbeam keys add`)."""
    open: bool = False
    """Whether the node may listen beyond loopback while no key is needed."""


class StoreConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[store]`: where messages are kept."""

    kind: Literal["lmdb", "memory"] = "lmdb"
    """`lmdb` is a file in the home folder; `memory` ends with the node."""
    map_size: Annotated[int, Meta(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """Bytes; the map grows when it is full."""
    max_readers: Positive = 512
    """Processes that may have the store open at a time."""
    sync: bool = True
    """Whether a write counts as done only once the disk has it."""
    recent: Annotated[int, Meta(ge=1024 * 1024)] = 32 * 1024 * 1024
    """Bytes of memory for what is kept a while: nested messages that replies link to, and results
    that a request asked to have kept (`cache-control: store`)."""
    remotes: tuple[str, ...] = ()
    """Nodes that are asked for messages which are not here, such as https://node.example; what
    they send has to have the id that was asked for."""
    remote_timeout: Seconds = 5.0
    """Seconds that one of them has for its answer."""
    remote_limit: Positive = 8 * 1024 * 1024
    """Bytes of its answer."""
    results: Literal["memory", "disk", "none"] = "memory"
    """Where those results are kept; on the `disk` they stay for good, whoever asked."""


class ReceiptsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[receipts]`: how many receipts are kept, and for how long."""

    keep: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 100_000
    """The last so many, and up to a tenth more (at least 10, at most 1000) until older ones are
    dropped; each takes a little over 1 KiB in the home folder. The last 10000 that are not in the
    log yet are kept in any case."""
    days: Annotated[int, Meta(ge=1, le=36_500)] = 30
    """Those of the last so many days, and up to ten minutes more."""


class LogConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[log]`: what is written to stderr, and how."""

    format: Literal["console", "json"] = "console"
    """`console`: a line for people; `json`: one object a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written of every topic; `print` shows single topics in full."""
    access: bool = False
    """One line a request: its id, path without query, status, milliseconds, bytes, client."""


class TracingConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[tracing]`: traces by OpenTelemetry; needs the extra `otel`."""

    endpoint: str = ""
    """The address of an OTLP receiver (HTTP), such as http://127.0.0.1:4318; empty: none."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """The share of requests that are traced; a caller's own decision counts first."""
    service: Annotated[str, Meta(min_length=1)] = "hyperbeam"
    """The name under which this node's spans stand."""


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole of hyperbeam.toml but for the devices' sections, which are in `sections`."""

    home: str = ""
    """The folder that the node keeps its own things in; empty: the user data folder."""
    profile: str = ""
    """A set of defaults: `inference` starts the embedded model."""
    print: tuple[str, ...] = ()
    """Log topics that are shown in full; `all` shows every one."""
    routes: str = ""
    """Path of the route table, from the working folder on; empty: routes.toml there, else the
    default."""
    device_path: tuple[str, ...] = ()
    """Folders whose .py files are devices, from the working folder on."""
    required: tuple[str, ...] = ()
    """Devices without which the node does not start."""
    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] = 1
    """Processes that answer requests; with more than one there is one besides that starts the
    backend, keeps the log of receipts and looks after the others."""
    devices: dict[str, str] = {}
    """Which distribution or file a device comes from, where two offer one name."""
    operator: str = ""
    """The address of who may change the node over HTTP (`hyperbeam operator key` shows one);
    empty: whoever claims it with the token that it prints at its start."""
    initialized: Literal["", "permanent"] = ""
    """`permanent`: nothing changes over HTTP, whoever signs it."""
    sign_replies: bool = False
    """Whether replies are signed (RFC 9421) by the node's key; streams never are."""
    wallet: str = ""
    """Path of an Arweave wallet (JWK) that signs replies, and commits, instead of that key."""
    hooks: dict[str, Any] = {}
    """What is done to each request, step and response and at the start: by hook a handler or a
    list of them, each a device, device/key, or a table with `device`, `path`, `hook/result`."""
    on: dict[str, Any] = {}
    """Another name for `hooks`."""
    http: HTTPConfig = HTTPConfig()
    store: StoreConfig = StoreConfig()
    receipts: ReceiptsConfig = ReceiptsConfig()
    access: AccessConfig = AccessConfig()
    log: LogConfig = LogConfig()
    tracing: TracingConfig = TracingConfig()
    sections: dict[str, dict[str, Any]] = {}
    file: str = ""
    """The file that was read, for messages."""


KERNEL_KEYS = frozenset(Config.__struct_fields__) - {"sections", "file"}
_PLAIN_ENVIRONMENT = {
    "HB_HOME": "home",
    "HB_PROFILE": "profile",
    "HB_ROUTES": "routes",
    "HB_PRINT": "print",
    "HB_DEVICE_PATH": "device_path",
    "HB_REQUIRED": "required",
    "HB_WORKERS": "workers",
}
_SEPARATORS: Mapping[str, str] = {
    "print": ",",
    "required": ",",
    "device_path": os.pathsep,
    "http.hosts": ",",
    "http.cors": ",",
    "http.trusted_proxies": ",",
    "store.remotes": ",",
}
"""Settings that are lists, and what parts them where they are written as text."""
_NOT_SETTINGS = frozenset({"HB_CONFIG", "HB_MODELS"})


def load(
    file: str | os.PathLike[str] | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration. `flags` are dotted names with values (`{"http.port": 1}`).

    Raises ConfigError that names the file, variable or flag at fault.
    """
    environment = os.environ if environment is None else environment
    path = _find_file(file, environment)
    from_file = _read_file(path) if path else {}
    from_environment = _read_environment(environment, from_file)
    from_flags = _nest(flags or {})
    # A variable's name has no dash: `HB_RECEIPT_LOG__GATHER` is for `[receipt-log]`.
    spelled = {name.replace("-", "_"): name for layer in (from_file, from_flags) for name in layer}
    from_environment = {spelled.get(name, name): value for name, value in from_environment.items()}
    profile = next(
        (
            layer["profile"]
            for layer in (from_flags, from_environment, from_file)
            if layer.get("profile")
        ),
        "",
    )
    if profile and profile not in PROFILES:
        raise ConfigError(f"no profile {profile!r}; there is: {', '.join(sorted(PROFILES))}")
    merged: dict[str, Any] = {}
    for layer in (PROFILES.get(profile, {}), from_file, from_environment, from_flags):
        merged = _merge(merged, layer)
    kernel = {name: value for name, value in merged.items() if name in KERNEL_KEYS}
    sections = {name: value for name, value in merged.items() if name not in KERNEL_KEYS}
    if path is not None:
        of_file = {name: value for name, value in from_file.items() if name in KERNEL_KEYS}
        convert(of_file, Config, str(path))
    source = str(path) if path else "the configuration"
    for name, value in sections.items():
        if not isinstance(value, dict):
            known = ", ".join(sorted(KERNEL_KEYS))
            raise ConfigError(f"{source}: unknown setting {name!r}; there is: {known}")
    config = convert(kernel, Config, "the environment (HB_...) or a flag")
    return msgspec.structs.replace(config, sections=sections, file=str(path or ""))


def convert(values: Mapping[str, Any], type_: type[T], source: str) -> T:
    """`values` as a Struct. Raises ConfigError that names `source` and the setting.

    A list may be written as text, its parts by comma.
    """
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}
    given = {
        name: _parts(value) if isinstance(value, str) and _is_list(fields.get(name)) else value
        for name, value in values.items()
    }
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        detail = (
            str(error)
            .replace("`$.", "`")
            .replace("Object contains unknown field", "unknown setting")
        )
        raise ConfigError(f"{source}: {detail}") from None


def _is_list(type_: Any) -> bool:
    return get_origin(type_) in (tuple, list)


def _parts(text: str, separator: str = ",") -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def _find_file(file: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> Path | None:
    named = file or environment.get("HB_CONFIG")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such configuration file")
        return path
    path = Path("hyperbeam.toml")
    return path if path.is_file() else None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _read_environment(environment: Mapping[str, str], file: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith("HB_") or variable in _NOT_SETTINGS or text == "":
            continue
        if variable in _PLAIN_ENVIRONMENT:
            name = _PLAIN_ENVIRONMENT[variable]
            settings[name] = from_text(name, text)
            continue
        words = variable[len("HB_") :].lower()
        section, found, name = words.partition("__" if "__" in words else "_")
        if not found or not name:
            known = ", ".join(sorted(_PLAIN_ENVIRONMENT))
            raise ConfigError(
                f"{variable}: no such variable; it is HB_<SECTION>_<KEY> or one of {known}"
            )
        settings.setdefault(section, {})[name] = from_text(f"{section}.{name}", text)
    return settings


def from_text(name: str, text: str) -> Any:
    """A setting written as text: JSON where it looks like it, parts of a list, or the text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    if name in _SEPARATORS:
        return _parts(text, _SEPARATORS[name])
    return text


def _nest(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for dotted, value in flags.items():
        if value is None:
            continue
        section, _, name = dotted.rpartition(".")
        value = from_text(dotted, value) if isinstance(value, str) else value
        if section:
            nested.setdefault(section, {})[name] = value
        else:
            nested[name] = value
    return nested


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for name, value in high.items():
        below = merged.get(name)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[name] = _merge(below, value)
        else:
            merged[name] = value
    return merged
