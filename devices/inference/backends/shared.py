"""In a worker process: the backend that the supervisor runs, as it says that it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import Message

from . import Backend, BeforeReady, ModelIdentity, OnChange, State, Where

if TYPE_CHECKING:
    from hyperbeam.serve.board import Board

NAME = "inference"
"""The board's entry."""


def published(backend: Backend, unknown: str) -> dict[str, Any]:
    """What the board shows of `backend`; `unknown`: why it cannot be said which files run."""
    endpoints = backend.endpoints
    return {
        "kind": backend.kind,
        "where": backend.where,
        "assembled": backend.assembled,
        "single_choice": backend.single_choice,
        "max_seed": str(backend.max_seed),
        "endpoints": None if endpoints is None else sorted(endpoints),
        "state": backend.state,
        "detail": backend.detail,
        "url": backend.url,
        "headers": [[name.decode(), value.decode("latin-1")] for name, value in backend.headers],
        "model": backend.model,
        "context": backend.context,
        "tools": backend.tools,
        "settings": backend.settings,
        "identity": backend.identity().as_dict(),
        "describe": backend.describe(),
        "unknown": unknown,
    }


class SharedBackend:
    """Follows what the board shows; before anything is shown it is loading."""

    kind = "none"
    where: Where = "child"
    assembled = True
    single_choice = True
    max_seed = 2**31 - 1
    endpoints: frozenset[str] | None = frozenset()

    def __init__(self, board: Board) -> None:
        self._board = board
        self._said: Mapping[str, Any] = {}
        self._headers: list[tuple[bytes, bytes]] = []
        self._settled = asyncio.Event()
        self._tell: OnChange | None = None

    @property
    def state(self) -> State:
        state: State = self._said.get("state", "loading")
        return state

    @property
    def detail(self) -> str:
        return str(self._said.get("detail", "the node starts"))

    @property
    def url(self) -> str:
        return str(self._said.get("url", ""))

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._headers

    @property
    def model(self) -> str:
        return str(self._said.get("model", ""))

    @property
    def context(self) -> int:
        return int(self._said.get("context", 0))

    @property
    def tools(self) -> bool:
        return bool(self._said.get("tools", True))

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._said.get("settings", {}))

    def identity(self) -> ModelIdentity:
        """As the supervisor knows it."""
        return ModelIdentity(**self._said.get("identity", {"name": ""}))

    async def unknown_model(self) -> str:
        """As the supervisor found it when it looked last."""
        return str(self._said.get("unknown", self.detail))

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Follow the board from now on. The supervisor has called `before_ready` itself."""
        self._tell = on_change
        self._board.subscribe(NAME, self._changed)
        shown = self._board.get(NAME)
        if shown is not None:
            self._changed(shown)

    async def settled(self) -> None:
        """Wait while it is loading."""
        await self._settled.wait()

    async def stop(self, grace: float) -> None:
        """It is the supervisor's to end."""
        self._tell = None

    def describe(self) -> Message:
        return dict(self._said.get("describe", {}))

    def _changed(self, said: Mapping[str, Any]) -> None:
        self._said = said
        self.kind = said["kind"]
        self.where = said["where"]
        self.assembled = said["assembled"]
        self.single_choice = said["single_choice"]
        self.max_seed = int(said["max_seed"])
        endpoints = said["endpoints"]
        self.endpoints = None if endpoints is None else frozenset(endpoints)
        self._headers = [
            (name.encode(), value.encode("latin-1")) for name, value in said["headers"]
        ]
        if said["state"] == "loading":
            self._settled.clear()
        else:
            self._settled.set()
        if self._tell is not None:
            self._tell()
