"""inference@1.0: OpenAI's API in front of the model that this node runs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import (
    BadRequest,
    Device,
    HyperbeamError,
    Message,
    MethodNotAllowed,
    NotFound,
    Stream,
    Unavailable,
    key,
)

from . import generate
from . import request as requests
from .backends import Backend, none
from .config import InferenceConfig
from .errors import JSON, NO_RETRY, render
from .validate import API

if TYPE_CHECKING:
    from hyperbeam.node import Node

OWNER = "hyperbeam"
_READ = ("GET", "HEAD")
_MARK = "inference.api"
_LATER = 2
_OFF_LATER = 60

log = logging.getLogger("hyperbeam.inference")


class Inference(Device):
    """Chat and text completions by a model of this node's own, in OpenAI's shapes.

    `chat/completions`, `completions`, `models`, `models/<id>`, `health`; each of them
    also behind `v1`, so that an SDK may use either as its base URL.
    """

    name = "inference@1.0"
    Config = InferenceConfig

    def __init__(
        self, node: Node, config: InferenceConfig | None = None, backend: Backend | None = None
    ) -> None:
        super().__init__(node, config or InferenceConfig())
        self.backend: Backend = backend or self._make_backend()
        self._created = int(time.time())

    def _make_backend(self) -> Backend:
        if self.config.backend == "llama":
            from .backends.llama import LlamaBackend

            return LlamaBackend(self.config)
        return none.NoBackend()

    async def start(self) -> None:
        """Begin to load the model; requests meanwhile get 503 `loading`."""
        self._created = int(time.time())
        await self.backend.start()

    async def ready(self, url: str) -> str:
        """Wait until the model answers, or cannot."""
        backend = self.backend
        await backend.settled()
        if backend.state == "off":
            return ""
        if backend.state == "failed":
            return f"{self.name} cannot answer: {backend.detail}"
        return (
            f"{self.name} is ready: {backend.model}\n"
            f"try: curl {url}/~{self.name}/chat/completions -d "
            """'{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'"""
        )

    async def stop(self) -> None:
        """End the backend and all its processes."""
        await self.backend.stop(self.config.stop_grace)

    def describe(self) -> Message:
        """State, and the settings on which the bytes of an answer depend."""
        return {"state": self.backend.state, **self.backend.describe()}

    def render_error(self, error: HyperbeamError) -> Message:
        """OpenAI's error object."""
        return render(error)

    @key
    async def index(self, base: Message, request: Message) -> Message:
        """404: the device's own path is no endpoint."""
        raise self._unknown("", request)

    @key(last=False)
    async def v1(self, base: Message, request: Message) -> Message:
        """Nothing of its own: `v1/completions` is `completions`."""
        if _mark(base):
            raise self._unknown("v1", request)
        return _marked(base, "v1")

    @key(last=False)
    async def chat(self, base: Message, request: Message) -> Message:
        """The part before `completions` that makes it the chat API."""
        if _mark(base) == "chat":
            raise self._unknown("chat", request)
        return _marked(base, "chat")

    @key(last=True)
    async def completions(self, base: Message, request: Message) -> Message | Stream:
        """POST: an answer to `messages` (behind `chat`), or the text that follows `prompt`.

        The reply's headers say which seed it was made with (`x-seed`) and whose it is
        (`x-seed-by`: client or node).
        """
        _allow(request, "POST")
        wanted = requests.read(
            _api(base) or "completions",
            request,
            model=self.backend.model,
            max_tokens=self.config.max_tokens,
            tools=self.backend.tools,
        )
        self._require_ready()
        log.debug(
            "%d choices, stream %s, seed %d by the %s",
            len(wanted.calls), wanted.stream, wanted.seed, wanted.seed_by,
        )  # fmt: skip
        headers = {"x-seed": str(wanted.seed), "x-seed-by": wanted.seed_by}
        if wanted.stream:
            source = await generate.streamed(self.node.upstream, self.backend, wanted)
            return Stream(source, headers=headers)
        answer = await generate.plain(self.node.upstream, self.backend, wanted, self.config.slots)
        return _reply(answer, headers=headers)

    @key(last=True)
    async def embeddings(self, base: Message, request: Message) -> Message:
        """400: the embedded model writes text and makes no vectors."""
        self._not_in_chat("embeddings", base, request)
        _allow(request, "POST")
        raise BadRequest(
            "This node's model makes no embeddings: it writes text only. "
            "Ask a node that runs an embedding model.",
            error="embeddings_not_supported",
            param="model",
        )

    @key(rest=True)
    async def models(self, base: Message, request: Message) -> Message:
        """GET: the list of the one model; `models/<id>`: that model, ids with slashes too."""
        self._not_in_chat("models", base, request)
        _allow(request, *_READ)
        name = "/".join(request.get("rest") or ())
        running = self._model()
        if not name:
            return _reply({"object": "list", "data": [running] if running else []})
        if running is None or name != running["id"]:
            there = f"this node runs '{running['id']}'" if running else "this node runs no model"
            raise NotFound(
                name,
                f"The model '{name[:200]}' does not exist: {there}.",
                error="model_not_found",
                param="model",
            )
        return _reply(running)

    @key(last=True)
    async def health(self, base: Message, request: Message) -> Message:
        """GET: 200 when the model answers, else 503.

        `status` is ok, loading, failed or no_backend.
        """
        self._not_in_chat("health", base, request)
        _allow(request, *_READ)
        backend = self.backend
        state: Mapping[str, Any] = {
            "model": backend.model or None,
            "backend": backend.kind,
        }
        if backend.state == "ready":
            return _reply({"status": "ok", **state})
        words = {"off": "no_backend"}
        answer = {
            "status": words.get(backend.state, backend.state),
            **state,
            "detail": backend.detail,
        }
        headers = {"retry-after": str(_LATER)} if backend.state == "loading" else {}
        return _reply(answer, status=503, headers=headers)

    def default(self, called: str, base: Message, request: Message) -> Message:
        """404 in OpenAI's words for everything else."""
        raise self._unknown(called, request)

    def _unknown(self, called: str, request: Message) -> NotFound:
        method = str(request.get("method") or "GET")
        return NotFound(
            called,
            f"Unknown request URL: {method} .../{called[:100]}. There is chat/completions, "
            "completions, models and health, each also behind v1.",
            error="unknown_url",
        )

    def _not_in_chat(self, called: str, base: Message, request: Message) -> None:
        if _api(base) is not None:
            raise self._unknown(f"chat/{called}", request)

    def _model(self) -> dict[str, Any] | None:
        name = self.backend.model
        if not name:
            return None
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "max_model_len": self.config.context,
        }

    def _require_ready(self) -> None:
        backend = self.backend
        if backend.state == "ready":
            return
        if backend.state == "loading":
            raise Unavailable(
                f"The model is loading: {backend.detail or 'try again in a moment'}.",
                error="loading",
                retry_after=_LATER,
            )
        if backend.state == "failed":
            raise Unavailable(
                f"The model cannot be run: {backend.detail}",
                error="backend_failed",
                retry_after=_OFF_LATER,
                headers=NO_RETRY,
            )
        raise Unavailable(
            f"No model runs: {backend.detail or 'the backend is off'}",
            error="no_backend",
            retry_after=_OFF_LATER,
            headers=NO_RETRY,
        )


def _api(base: Message) -> API | None:
    return "chat" if _mark(base) == "chat" else None


def _mark(base: Message) -> str:
    """The part of the path that was taken before, `v1` or `chat`."""
    return str(_private(base).get(_MARK, ""))


def _marked(base: Message, part: str) -> Message:
    return {**base, "priv": {**_private(base), _MARK: part}}


def _private(base: Message) -> Mapping[str, Any]:
    private = base.get("priv")
    return private if isinstance(private, Mapping) else {}


def _allow(request: Message, *methods: str) -> None:
    method = str(request.get("method") or "GET").upper()
    if method not in methods:
        raise MethodNotAllowed(
            f"Not allowed to {method} here: use {' or '.join(methods)}.",
            headers={"allow": ", ".join(methods)},
        )


def _reply(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Message:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return {
        **(headers or {}),
        "status": status,
        "content-type": JSON,
        "body": body.encode("utf-8", "replace"),
    }
