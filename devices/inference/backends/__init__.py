"""Backends: what does the work behind inference@1.0, each an HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hyperbeam import Message

State = Literal["off", "loading", "ready", "failed"]
Where = Literal["child", "url"]
BeforeReady = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model runs. `by`: `hashed` where this node has read the files that are open.

    `sha256`: over all files of the model (`hyperbeam.models.manifest`), in hex; `size`: their
    bytes.
    """

    name: str
    sha256: str | None = None
    size: int | None = None
    by: Literal["hashed", "declared"] = "declared"

    def as_dict(self) -> dict[str, Any]:
        """As statements and receipts have it."""
        return {"name": self.name, "sha256": self.sha256, "size": self.size, "by": self.by}


class Backend(Protocol):
    """An OpenAI-shaped HTTP server under the node's care."""

    kind: str
    where: Where
    """`child`: a process of this node's on this machine; only such a one is attested."""

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

    @property
    def settings(self) -> dict[str, Any]:
        """On what the bytes of an answer depend beside the model; known once it is ready.

        As statements have it: what canonical JSON can hold (`hyperbeam.declared.canonical`).
        """

    def identity(self) -> ModelIdentity:
        """What is known now of the model that runs."""

    async def unknown_model(self) -> str:
        """Why it cannot be said now which files run, looked at again; "" where it can."""

    async def start(self, before_ready: BeforeReady | None = None) -> None:
        """Begin to load and return at once; later trouble shows in `state` and `detail`.

        `before_ready` is awaited each time it has loaded, before `state` is ready.
        Raises ConfigError for what the operator has to mend first.
        """

    async def settled(self) -> None:
        """Wait while it is loading."""

    async def stop(self, grace: float) -> None:
        """End it and all its processes: TERM, up to `grace` seconds, KILL."""

    def describe(self) -> Message:
        """Kind, model, engine, and the settings on which the bytes of an answer depend."""
