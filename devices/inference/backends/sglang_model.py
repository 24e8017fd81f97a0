"""Which model SGLang is to run: the path or hub id that the config names, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from hyperbeam import ConfigError
from hyperbeam.models.manifest import folder_files, gguf_files

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Source:
    """`argument`: what SGLang is given as the model; `files`: what it opens, by their names.

    `unknown`: why the files are not known; "" where they are.
    """

    argument: str
    name: str
    files: Mapping[str, Path]
    unknown: str = ""


def find(model: str, args: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Look for `model`. Raises ConfigError where there is none, or its name is none."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file() and not any(path.glob("*.json")):
            raise ConfigError(
                f"[inference] model: {path} is no model's folder: it has no config.json"
            )
        return Source(str(path), path.resolve().name, _files(path, args))
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"[inference] model: {path} is a file: name the model's folder")
        return Source(str(path), path.stem, {**gguf_files(path), **_more(args)})
    if model.startswith(("/", ".", "~")) or not _HUB_ID.match(model):
        raise ConfigError(
            f"[inference] model: there is no folder {model[:200]!r}: give the path of a model's "
            "folder, or a hub id as owner/name"
        )
    snapshot = _snapshot(model, args, environment)
    if snapshot is None:
        reason = f"{model} was not on this machine when the node started: restart the node"
        return Source(model, model, {}, reason)
    return Source(str(snapshot), model, _files(snapshot, args))


def value_of(args: Sequence[str], flag: str) -> str:
    """The value of `flag` among command line arguments, the last one; "" without it."""
    found = ""
    for word, following in zip_longest(args, args[1:], fillvalue=""):
        if word == flag:
            found = following
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def _files(folder: Path, args: Sequence[str]) -> dict[str, Path]:
    return {**folder_files(folder), **_more(args)}


def _more(args: Sequence[str]) -> dict[str, Path]:
    """Files that are opened instead of the folder's own."""
    files: dict[str, Path] = {}
    for flag in ("--chat-template", "--tokenizer-path"):
        path = Path(value_of(args, flag)).expanduser()
        name = flag.removeprefix("--").removesuffix("-path")
        if path == Path():
            continue
        if path.is_file():
            files[name] = path
        elif path.is_dir():
            files |= {f"{name}/{part}": file for part, file in folder_files(path).items()}
    return files


def _snapshot(model: str, args: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """The whole model in the hub's cache, as huggingface_hub keeps it; None where it is not."""
    if environment.get("SGLANG_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    if value_of(args, "--download-dir"):
        return None
    cache = _cache(environment) / f"models--{model.replace('/', '--')}"
    revision = value_of(args, "--revision") or "main"
    try:
        commit = (cache / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    folder = cache / "snapshots" / commit
    return folder if _is_whole(folder) else None


def _cache(environment: Mapping[str, str]) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    kept = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(kept).expanduser() / "huggingface" / "hub"


def _is_whole(folder: Path) -> bool:
    """Whether nothing of it is left to download."""
    if not (folder / "config.json").is_file():
        return False
    try:
        parts = set(json.loads((folder / _INDEX).read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return any(path.is_file() for pattern in _WEIGHTS for path in folder.glob(pattern))
    return all((folder / part).is_file() for part in parts)
