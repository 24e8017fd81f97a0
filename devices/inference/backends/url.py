"""A server that runs already, ours or anybody's: looked at, never started or stopped.

Also the example of a backend: what a further one needs is what `UrlBackend` has. Where
it differs only in what it asks the server, a subclass says `kind`, `health` and `look`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from hyperbeam import ConfigError, Message, Unavailable
from hyperbeam.routing.auth import Credentials

from . import BeforeReady, ModelIdentity, OnChange, State, Where
from .asking import Server, Trouble

INTERVAL = 1.0
FAILURES = 2
"""So many in a row make a server that was ready `down`."""
LOOK_AGAIN = 30
"""After so many good answers is asked anew what runs there."""

log = logging.getLogger("hyperbeam.backend.url")


class UrlConfig(Protocol):
    """What this backend reads of `[inference]`."""

    @property
    def url(self) -> str: ...
    @property
    def auth(self) -> str:
        """`env:NAME`, `file:PATH` or nothing."""

    @property
    def health(self) -> str: ...
    @property
    def served_name(self) -> str: ...
    @property
    def start_timeout(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What runs at an address; `single_choice` as `Backend` has it."""

    model: str
    context: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    single_choice: bool = False


class UrlBackend:
    """A server with OpenAI's API. Ready while GET `health` answers 200 to 399."""

    kind = "url"
    where: Where = "url"
    assembled = False
    max_seed = 2**63 - 1
    endpoints: frozenset[str] | None = None
    tools = True
    health = "/health"

    def __init__(self, config: UrlConfig) -> None:
        self._config = config
        self.single_choice = False
        self._url = _base(config.url)
        self._health = "/" + (config.health or self.health).lstrip("/")
        self._auth = _checked(config.auth)
        self._credentials = Credentials()
        self._server = Server(self._url)
        self._state: State = "off"
        self._trouble = ""
        self._seen = Seen(config.served_name)
        self._settled = asyncio.Event()
        self._before_ready: BeforeReady | None = None
        self._on_change: OnChange | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def detail(self) -> str:
        if self._state == "off":
            return "the backend is not asked yet"
        if self._state == "ready":
            return f"the model {self.model} is ready at {self._url}"
        return f"{self._url} is not ready: {self._trouble or 'it is asked for the first time'}"

    @property
    def url(self) -> str:
        return self._url

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._server.headers

    @property
    def model(self) -> str:
        return self._seen.model

    @property
    def context(self) -> int:
        return self._seen.context

    @property
    def settings(self) -> dict[str, Any]:
        """As far as the server tells them; nobody has checked."""
        return self._seen.settings

    def identity(self) -> ModelIdentity:
        """By name: its files are not this node's to read."""
        return ModelIdentity(self.model)

    async def unknown_model(self) -> str:
        """Always: nobody here can read its files."""
        return f"the model runs elsewhere, at {self._url}"

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Begin to ask. Raises ConfigError where the key is not to be had."""
        if self._task is not None:
            return
        self._before_ready = before_ready
        self._on_change = on_change
        try:
            self._authorize()
        except Trouble as error:
            raise ConfigError(f"[inference] {error}") from None
        self._settled.clear()
        self._set("loading")
        self._task = asyncio.create_task(self._watch(), name=f"{self.kind} watch")

    async def settled(self) -> None:
        """Wait until it has answered, or did not in `start_timeout` seconds."""
        await self._settled.wait()

    async def stop(self, grace: float) -> None:
        """Ask no longer; the server goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._server.close()
        self._set("off")

    def describe(self) -> Message:
        about: Message = {"kind": self.kind, "model": self.model, "address": self._url}
        if self.settings:
            about["settings"] = self.settings
        return about

    async def look(self, server: Server) -> Seen:
        """What runs there. Raises Trouble. Source: OpenAI API reference, "List models"."""
        listed = (await server.json("/v1/models")).get("data")
        found = [one for one in listed or () if isinstance(one, Mapping) and one.get("id")]
        wanted = self._config.served_name
        for one in found:
            if wanted in ("", one["id"]):
                length = one.get("max_model_len")
                return Seen(str(one["id"]), length if isinstance(length, int) else 0)
        names = ", ".join(str(one["id"]) for one in found[:10]) or "none"
        raise Trouble(f"it has no model {wanted!r}; there is: {names}" if wanted else "no model")

    def _authorize(self) -> None:
        if not self._auth:
            return
        try:
            value = self._credentials.authorization(self._auth, {})
        except Unavailable:
            kind = self._auth.partition(":")[0]
            what = "the variable is not set" if kind == "env" else "the file cannot be read"
            raise Trouble(f"auth = {self._auth!r}: {what}, or it is empty") from None
        header = [(b"authorization", value.encode())]
        if header != self._server.headers:
            self._server.headers = header
            self._tell()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.start_timeout
        failures = good = 0
        while True:
            try:
                self._authorize()
                status = await self._server.status(self._health)
                if not 200 <= status < 400:
                    raise Trouble(f"{self._health} answers {status}")
                if self._state != "ready" or failures or good % LOOK_AGAIN == 0:
                    await self._see(await self.look(self._server))
                good += 1
                failures = 0
            except Trouble as error:
                failures += 1
                if self._state != "ready" or failures >= FAILURES:
                    first = self._state == "loading" and loop.time() < until
                    self._fell(str(error), "loading" if first else "down")
            await asyncio.sleep(INTERVAL)

    async def _see(self, seen: Seen) -> None:
        changed = seen != self._seen
        self._seen = seen
        self.single_choice = seen.single_choice
        if self._state != "ready" or changed:
            if self._before_ready is not None:
                await self._before_ready()
            log.info("%s is ready: %s", self._url, seen.model)
            self._set("ready")

    def _fell(self, trouble: str, state: State) -> None:
        if (trouble, state) != (self._trouble, self._state):
            log.warning("%s is not ready: %s", self._url, trouble)
            self._trouble = trouble
            self._set(state)

    def _set(self, state: State) -> None:
        self._state = state
        if state != "loading":
            self._settled.set()
        self._tell()

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()


def _base(url: str) -> str:
    """`url` without a last slash or `/v1`, which requests bring. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise ConfigError(
            f"[inference] url is {url[:200]!r}: give the address of a server, such as "
            "http://127.0.0.1:30000"
        )
    if parts.username or parts.password:
        raise ConfigError("[inference] url holds a name or password: give the key by `auth`")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _checked(auth: str) -> str:
    kind, _, name = auth.partition(":")
    if auth and (kind not in ("env", "file") or not name):
        # it may be the key itself, which is not to be repeated
        raise ConfigError("[inference] auth has to be env:NAME or file:PATH, not the key itself")
    return auth
