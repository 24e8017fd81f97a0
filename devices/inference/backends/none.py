"""No backend: a node that only routes."""

from __future__ import annotations

from hyperbeam import Message

from . import State


class NoBackend:
    """Stands where a backend would: always off."""

    kind = "none"
    state: State = "off"
    detail = "this node runs no model: start it with `hyperbeam serve --profile inference`"
    url = ""
    model = ""
    tools = True

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    async def start(self) -> None:
        """Nothing to start."""

    async def settled(self) -> None:
        """Off from the beginning."""

    async def stop(self, grace: float) -> None:
        """Nothing to stop."""

    def describe(self) -> Message:
        return {"kind": self.kind}
