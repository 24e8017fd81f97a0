"""Model files on the disk: whether they are GGUF, their digests, and stamps that remember these."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import IO

from ..errors import ConfigError
from .catalogue import known_names

_MAGIC = b"GGUF"
_CHUNK = 1 << 20


def checked_gguf(path: Path) -> Path:
    """`path` in full, or ConfigError where that is no GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; models by name are {known_names()}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if magic != _MAGIC:
        raise ConfigError(f"{path} is no GGUF file: it does not begin with GGUF")
    return path.resolve()


def sha256_file(path: Path) -> str:
    """SHA-256 in hex of the whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_hashed(source: IO[bytes], target: Path) -> str:
    """Write `source` to `target`, durably; SHA-256 in hex of what was written."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _stamp_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.stamp")


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [
        *(status.st_dev, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    ]


def stamp(path: Path, digest: str) -> None:
    """Note that the file as it lies there has this digest; a read-only folder stays unstamped."""
    with contextlib.suppress(OSError):
        _stamp_file(path).write_text(json.dumps({"sha256": digest, "file": _identity(path)}))


def stamped_sha256(path: Path) -> str | None:
    """The digest that was noted for the file, if it is still the same file."""
    try:
        noted = json.loads(_stamp_file(path).read_text())
        return str(noted["sha256"]) if noted["file"] == _identity(path) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
