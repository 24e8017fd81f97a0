"""Which model a child runs: its files are read beside it, and looked at again when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from hyperbeam.models.manifest import Changed, Manifest, ModelFiles

from . import ModelIdentity

NOT_LOADED = "the model is not loaded"


class ModelDigest:
    """The manifest of `files`, as the child opened them. `tell` is called when it changes."""

    def __init__(self, name: str, files: Mapping[str, Path], tell: Callable[[], None]) -> None:
        self.manifest: Manifest | None = None
        self._name = name
        self._files = ModelFiles(files)
        self._tell = tell
        self._unknown = NOT_LOADED
        self._refused = ""
        self._task: asyncio.Task[None] | None = None

    def opening(self) -> None:
        """The child opens the files now: read them."""
        self._end()
        self.manifest = None
        if self._refused:
            return
        self._unknown = "the model's files are still being read for their digest"
        try:
            self._files.opening()
        except OSError as error:
            self._unknown = f"the model's files cannot be read: {error}"
        else:
            self._task = asyncio.create_task(self._hash(), name="model digest")

    def refuse(self, reason: str) -> None:
        """The files are not all that the child opens, or not known: no digest stands for it."""
        self._end()
        self.manifest = None
        self._refused = self._unknown = reason

    def identity(self) -> ModelIdentity:
        """By its digest as long as the files are known to be those that were opened."""
        if self.manifest is None:
            return ModelIdentity(self._name)
        return ModelIdentity(self._name, self.manifest.sha256, self.manifest.size, "hashed")

    async def unknown(self) -> str:
        """Why the model is not known now, looked at again; "" where it is."""
        if self.manifest is not None:
            changed = await asyncio.to_thread(self._files.changed)
            if changed:
                self.manifest = None
                self._unknown = f"{changed} was changed while it is in use: restart the node"
                self._tell()
        return "" if self.manifest is not None else self._unknown

    def close(self) -> None:
        """The child is gone."""
        self._end()
        self.manifest = None
        self._unknown = self._refused or NOT_LOADED

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._files.close()

    async def _hash(self) -> None:
        try:
            self.manifest = await asyncio.to_thread(self._files.hash)
        except Changed as error:
            self._unknown = f"{error} was changed while it was loaded: restart the node"
        except OSError as error:
            self._unknown = f"the model's files cannot be read: {error}"
        self._tell()
