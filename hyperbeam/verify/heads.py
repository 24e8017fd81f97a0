"""What a verifier remembers of logs: the heads it has seen, so that none can be taken back."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

from . import shape
from .checks import Malformed
from .reading import read_json

KEPT = 256
"""Heads of one log that are remembered, the largest."""
MALFORMED = "state-malformed"

_HEAD = shape.record(size=shape.natural, root=shape.digest)
_SHAPE = shape.record(origin=shape.text(), heads=shape.listing(_HEAD, 0, KEPT))


class Heads(Protocol):
    """A memory of heads: a log's origin to {size: root}."""

    def seen(self, origin: str) -> dict[int, bytes]:
        """The heads of a log that were seen before."""

    def remember(self, origin: str, size: int, root: bytes) -> None:
        """Keep a head whose signature was good. The first root for a size stays."""

    def origins(self) -> list[str]:
        """The logs of which heads were seen."""


class MemoryHeads:
    """Heads of this process."""

    def __init__(self) -> None:
        self._logs: dict[str, dict[int, bytes]] = {}

    def seen(self, origin: str) -> dict[int, bytes]:
        return dict(self._logs.get(origin, {}))

    def remember(self, origin: str, size: int, root: bytes) -> None:
        self._logs.setdefault(origin, {}).setdefault(size, root)

    def origins(self) -> list[str]:
        return list(self._logs)


class FileHeads:
    """Heads in a folder, a file for each log; the folder is made when there is one to keep.

    Raises OSError, and Malformed `state-malformed` for a file that was damaged: taking it for
    empty would hide what it is there to show.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def seen(self, origin: str) -> dict[int, bytes]:
        path = self._path(origin)
        value = _read(path)
        if value is None:
            return {}
        if value["origin"] != origin:
            raise Malformed(f"{path} is about another log", MALFORMED)
        return {head["size"]: bytes.fromhex(head["root"]) for head in value["heads"]}

    def remember(self, origin: str, size: int, root: bytes) -> None:
        heads = self.seen(origin)
        if size in heads:
            return
        heads[size] = root
        kept = sorted(heads.items())[-KEPT:]
        value = {
            "origin": origin,
            "heads": [{"size": size, "root": root.hex()} for size, root in kept],
        }
        self._write(self._path(origin), value)

    def origins(self) -> list[str]:
        found = map(_read, sorted(self._folder.glob("*.json")))
        return [value["origin"] for value in found if value is not None]

    def _path(self, origin: str) -> Path:
        return self._folder / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.json"

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        """Whole or not at all."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self._folder, suffix=".new")
        try:
            with os.fdopen(number, "w") as file:
                json.dump(value, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    value: dict[str, Any] = read_json(data, str(path), MALFORMED)
    shape.check(value, _SHAPE, str(path), MALFORMED)
    return value
