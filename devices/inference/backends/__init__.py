"""Backends: what does the work behind inference@1.0, each an HTTP server."""

from __future__ import annotations

from typing import Literal, Protocol

from hyperbeam import Message

State = Literal["off", "loading", "ready", "failed"]


class Backend(Protocol):
    """An OpenAI-shaped HTTP server under the node's care."""

    kind: str

    @property
    def state(self) -> State: ...

    @property
    def detail(self) -> str:
        """Why it is not ready, for the message of the 503."""

    @property
    def url(self) -> str:
        """Base for `Upstream.request`, without a path; the same across restarts."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every request to it must carry."""

    @property
    def model(self) -> str:
        """The name of the model that runs."""

    @property
    def tools(self) -> bool:
        """Whether the model's chat template knows tools."""

    async def start(self) -> None:
        """Begin to load and return at once; later trouble shows in `state` and `detail`.

        Raises ConfigError for what the operator has to mend first.
        """

    async def settled(self) -> None:
        """Wait while it is loading."""

    async def stop(self, grace: float) -> None:
        """End it and all its processes: TERM, up to `grace` seconds, KILL."""

    def describe(self) -> Message:
        """Kind, model, engine, and the settings on which the bytes of an answer depend."""
