"""No backend: a node that only routes."""

from __future__ import annotations

from typing import Any

from hyperbeam import Message

from . import BeforeReady, ModelIdentity, OnChange, State, Where


class NoBackend:
    """Stands where a backend would: always off."""

    kind = "none"
    where: Where = "url"
    assembled = False
    single_choice = False
    max_seed = 2**63 - 1
    endpoints: frozenset[str] | None = frozenset()
    state: State = "off"
    detail = "this node runs no model: start it with `hyperbeam serve --profile inference`"
    url = ""
    model = ""
    context = 0
    tools = True

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def identity(self) -> ModelIdentity:
        """Of no model."""
        return ModelIdentity("")

    async def unknown_model(self) -> str:
        """There is none."""
        return self.detail

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Nothing to start."""

    async def settled(self) -> None:
        """Off from the beginning."""

    async def stop(self, grace: float) -> None:
        """Nothing to stop."""

    def describe(self) -> Message:
        return {"kind": self.kind}
