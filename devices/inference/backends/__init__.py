"""Backends: what does the work behind inference@1.0, each an HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hyperbeam import Message

State = Literal["off", "loading", "ready", "down", "failed"]
"""`down`: it answered before and is looked at again; `failed`: somebody has to mend it."""
Where = Literal["child", "url"]
BeforeReady = Callable[[], Awaitable[None]]
OnChange = Callable[[], None]


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
    assembled: bool
    """Whether it is always asked for a stream, from which the device puts plain answers together,
    after checks of its own of each field. Else it gets the client's bytes, and the client its."""
    single_choice: bool
    """Whether several choices have to be several calls, choice k with the seed + k."""
    max_seed: int
    """The largest seed that it takes as it is."""
    endpoints: frozenset[str] | None
    """Paths (`/v1/embeddings`, `/tokenize`) that it serves beside chat/completions, completions
    and models; None: any that is asked for, it refuses itself."""

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
    def context(self) -> int:
        """Tokens of prompt and answer together; 0 unknown."""

    @property
    def tools(self) -> bool:
        """Whether the model's chat template knows tools; asked where it is `assembled`."""

    @property
    def settings(self) -> dict[str, Any]:
        """On what the bytes of an answer depend beside the model; known once it is ready.

        As statements have it: what canonical JSON can hold (`hyperbeam.declared.canonical`).
        """

    def identity(self) -> ModelIdentity:
        """What is known now of the model that runs."""

    async def unknown_model(self) -> str:
        """Why it cannot be said now which files run, looked at again; "" where it can."""

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Begin to load and return at once; later trouble shows in `state` and `detail`.

        `before_ready` is awaited each time it has loaded, before `state` is ready; `on_change`
        is called after each change of what the properties and `identity` say.
        Raises ConfigError for what the operator has to mend first.
        """

    async def settled(self) -> None:
        """Wait while it is loading."""

    async def stop(self, grace: float) -> None:
        """End it and all its processes: TERM, up to `grace` seconds, KILL."""

    def describe(self) -> Message:
        """Kind, model, engine, and the settings on which the bytes of an answer depend."""
