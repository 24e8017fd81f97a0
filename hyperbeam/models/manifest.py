"""Which model runs: a digest over all files that a backend opens, and whether they are still those.

The digest is the SHA-256 of the canonical JSON of
`{"v": "hyperbeam.model/1", "files": [{"name", "sha256", "size"}, ...]}`, sorted by name. A name
says what the file is for (`weights`, `template`), so a file that is moved keeps its digest.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..verify import jcs

V = "hyperbeam.model/1"
_CHUNK = 1 << 20
_DOCUMENTS = frozenset({".gif", ".jpeg", ".jpg", ".md", ".pdf", ".png", ".svg", ".webp"})
_NOTICES = frozenset({"LICENCE", "LICENSE", "NOTICE", "README"})
_PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf\Z")

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last change of content and of inode (ns)."""


class Changed(Exception):
    """A file is not the one that the backend opened. The text names it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the manifest; `size` in bytes, `sha256` in hex."""

    name: str
    sha256: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self.sha256, "size": self.size}


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a model, sorted by name."""

    files: tuple[File, ...]

    @property
    def sha256(self) -> str:
        """The model's digest, in hex."""
        return jcs.digest({"v": V, "files": [file.as_dict() for file in self.files]})

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def gguf_files(path: Path) -> dict[str, Path]:
    """The files that llama.cpp opens for the weights at `path`: all parts of a split model."""
    found = _PART.match(path.name)
    if found is None:
        return {"weights": path}
    count = found["count"]
    return {
        f"weights/{part:05}": path.with_name(f"{found['stem']}-{part:05}-of-{count}.gguf")
        for part in range(1, int(count) + 1)
    }


def folder_files(folder: Path) -> dict[str, Path]:
    """The files of a model's folder, by their paths in it, without hidden ones and documents."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not _is_aside(name):
            files[name.as_posix()] = path
    return files


def _is_aside(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return hidden or name.suffix.lower() in _DOCUMENTS or name.stem.upper() in _NOTICES


class ModelFiles:
    """The files that a backend opens, by their names in the manifest.

    `opening` when the backend is about to open them, then `hash` in a worker thread; `changed`
    looks again. A file is read once as long as its stamp stays the same.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(sorted(files.items()))
        self._opened: dict[str, Stamp] = {}
        self._digests: dict[Stamp, str] = {}

    def opening(self) -> None:
        """The backend opens the files now. Raises OSError where one cannot be had."""
        self.close()
        self._opened = {name: _stamp(path.stat()) for name, path in self._files.items()}

    def hash(self) -> Manifest:
        """Read the files as they were opened. Raises Changed, OSError."""
        opened = self._opened
        return Manifest(tuple(self._hash(name, path, opened) for name, path in self._files.items()))

    def changed(self) -> str:
        """Which file is no longer the one that was opened; "" where all are."""
        for name, path in self._files.items():
            try:
                same = _stamp(path.stat()) == self._opened.get(name)
            except OSError:
                same = False
            if not same:
                return _said(name, path)
        return ""

    def close(self) -> None:
        """The backend has them open no longer; a `hash` that runs ends with Changed."""
        self._opened = {}

    def _read(self, file: BinaryIO, opened: Mapping[str, Stamp]) -> str:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            if self._opened is not opened:
                raise Changed("the model's files are no longer those that are open")
            digest.update(chunk)
        return digest.hexdigest()

    def _hash(self, name: str, path: Path, opened: Mapping[str, Stamp]) -> File:
        expected = opened.get(name)
        with path.open("rb") as file:
            if expected is None or _stamp(os.fstat(file.fileno())) != expected:
                raise Changed(_said(name, path))
            digest = self._digests.get(expected)
            if digest is None:
                digest = self._read(file, opened)
            if _stamp(os.fstat(file.fileno())) != expected:
                raise Changed(_said(name, path))
        self._digests[expected] = digest
        return File(name, digest, expected[2])


def _stamp(status: os.stat_result) -> Stamp:
    return (
        *(status.st_dev, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    )


def _said(name: str, path: Path) -> str:
    kind = name.partition("/")[0]
    return (
        f"the model's file {name}"
        if name.endswith(path.name)
        else (f"the model's {kind} file {path.name}")
    )
