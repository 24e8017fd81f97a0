"""The configuration as a commented hyperbeam.toml, made from the Structs that read it."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .config import (
    AccessConfig,
    Config,
    HTTPConfig,
    LogConfig,
    ReceiptsConfig,
    StoreConfig,
    TracingConfig,
)
from .observe.logging import TOPICS
from .registry import discover

_HEAD = """\
# Settings of the node. What is commented out is the default.
# A flag of `hyperbeam serve` beats the environment (HB_<SECTION>_<KEY>, as HB_HTTP_PORT),
# which beats this file, which beats the profile. What the operator has changed over HTTP
# beats them all.
"""
_INTRODUCTION = """\
# Configuration

`hyperbeam serve` reads `hyperbeam.toml` in the working folder, or the file that `--config` or
`HB_CONFIG` names. `hyperbeam init` writes one with everything below. The first that says
something wins:

1. a flag: `--port 9000`, or for any setting `--set http.port=9000`
2. the environment: `HB_HTTP_PORT=9000` (`HB_<SECTION>_<KEY>`; `HB_SEV_GPU__BACKEND` where the
   section has a `_` or a `-`), and `HB_HOME`, `HB_PROFILE`,
   `HB_ROUTES`, `HB_PRINT` and `HB_DEVICE_PATH` (lists by comma, folders by colon)
3. the file
4. the profile: `--profile inference` is `inference.backend = "llama"`
5. the default

What the operator has changed over HTTP beats them all ([operator.md](operator.md)).

A setting that does not exist or does not fit is refused by name, exit status 2. `HB_MODELS` is
the folder of the model files.

`HB_PRINT=http,inference` shows log topics in full, `all` every one. There is:
{topics}.
None shows a prompt, an answer or a secret, but `backend.llama`: the engine quotes what it cannot
read of a request. [observe.md](observe.md) has the rest of the log.
"""
_NOT_IN_FILE = frozenset(
    {"access", "http", "store", "receipts", "log", "tracing", "sections", "file"}
)


def commented_config() -> str:
    """Every setting of the kernel and of the devices that load, with its default and meaning."""
    sections: dict[str, type[msgspec.Struct]] = {
        "http": HTTPConfig,
        "store": StoreConfig,
        "receipts": ReceiptsConfig,
        "access": AccessConfig,
        "log": LogConfig,
        "tracing": TracingConfig,
    }
    for name, found in sorted(discover((), {}).devices.items()):
        if found.device.Config is not None:
            sections[name.partition("@")[0]] = found.device.Config
    parts = [_HEAD, "\n".join(_lines(Config))]
    parts += [f"[{name}]\n" + "\n".join(_lines(struct)) for name, struct in sections.items()]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _lines(struct: type[msgspec.Struct]) -> Iterator[str]:
    docs = _field_docs(struct)
    for field in msgspec.structs.fields(struct):
        if struct is Config and field.name in _NOT_IN_FILE:
            continue
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for line in textwrap.wrap(docs.get(field.name, ""), 90):
            yield f"# {line}"
        yield f"# {field.encode_name} = {_toml(default)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _field_docs(struct: type) -> dict[str, str]:
    """The string that follows each field in the class's source: attribute docstrings of PEP 258."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


def markdown() -> str:
    """docs/config.md."""
    topics = textwrap.fill(", ".join(f"`{topic}`" for topic in TOPICS), 98)
    introduction = _INTRODUCTION.replace("{topics}", topics)
    return f"{introduction}\n```toml\n{commented_config()}```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
