"""inference@1.0: OpenAI's API in front of the model that this node runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import (
    BadRequest,
    Device,
    HyperbeamError,
    Message,
    NotFound,
    Stream,
    Unavailable,
    key,
)
from hyperbeam.verify import jcs

from . import marks, options
from . import request as requests
from .answering import Answering
from .backends import Backend, none
from .config import InferenceConfig
from .errors import NO_RETRY, render
from .replay import Replays
from .reply import NO_STORE, allow, reply

if TYPE_CHECKING:
    from hyperbeam.node import Node

OWNER = "hyperbeam"
_READ = ("GET", "HEAD")
_ID_LENGTH = 32
_LATER = 2
_OFF_LATER = 60

log = logging.getLogger("hyperbeam.inference")


class Inference(Device):
    """Chat and text completions by a model of this node's own, in OpenAI's shapes.

    `chat/completions`, `completions`, `models`, `models/<id>`, `health`; each of them
    also behind `v1`, so that an SDK may use either as its base URL. `receipt/<id>` gives what
    the node signed about an answer, `replay` makes it again.
    """

    name = "inference@1.0"
    fixed = True
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
        await self.backend.start(self._declare)

    async def _declare(self) -> None:
        """State in the key set how the backend runs, before anything is answered by it."""
        stated = self._inference_opts()
        await asyncio.to_thread(self.node.keys.declare, self.name, stated["backend"])

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
        return {
            "state": self.backend.state,
            **self.backend.describe(),
            "inference_opts": self._inference_opts(),
        }

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
        if marks.mark(base):
            raise self._unknown("v1", request)
        return marks.marked(base, "v1", request)

    @key(last=False)
    async def chat(self, base: Message, request: Message) -> Message:
        """The part before `completions` that makes it the chat API."""
        if marks.mark(base) == "chat":
            raise self._unknown("chat", request)
        return marks.marked(base, "chat", request)

    @key(last=True)
    async def completions(self, base: Message, request: Message) -> Message | Stream:
        """POST: an answer to `messages` (behind `chat`), or the text that follows `prompt`.

        The reply's headers say which seed it was made with (`x-seed`), whose it is (`x-seed-by`:
        client or node) and under which id its receipt is kept (`x-receipt-id`).
        """
        allow(request, "POST")
        wanted = requests.read(
            marks.api(base) or "completions",
            request,
            model=self.backend.model,
            max_tokens=self.config.max_tokens,
            tools=self.backend.tools,
        )
        if marks.tee_before(base) and not marks.asks_tee(request):
            raise options.misplaced("tee")
        self._require_ready()
        log.debug(
            "%d choices, stream %s, seed %d by the %s",
            len(wanted.calls), wanted.stream, wanted.seed, wanted.seed_by,
        )  # fmt: skip
        return await self._answering().answer(wanted, marks.client(request), marks.target(request))

    @key(rest=True)
    async def receipt(self, base: Message, request: Message) -> Message:
        """GET `receipt/<id>`: what this node signed about the answer with that `x-receipt-id`."""
        self._not_in_chat("receipt", base, request)
        allow(request, *_READ)
        id = "/".join(request.get("rest") or ())
        found = await self.node.receipts.get(id)
        if found is None:
            raise NotFound(
                id,
                f"There is no receipt {id[:100]!r} here: none of that id was given out, it is no "
                "longer kept, or the node was killed within a moment of giving it out."
                if len(id) == _ID_LENGTH
                else "A receipt's id is the 32 hex digits of a reply's x-receipt-id.",
                error="receipt_not_found",
                headers=NO_STORE,
            )
        return reply(jcs.encode(found), headers=NO_STORE)

    @key(last=True)
    async def replay(self, base: Message, request: Message) -> Message:
        """POST a receipt with its request: is the answer, made again, the same?"""
        self._not_in_chat("replay", base, request)
        allow(request, "POST")
        replays = Replays(self.node, self._answering())
        asked = replays.read(request)
        self._require_ready()
        return await replays.run(asked)

    @key(name="inference_opts", last=True)
    async def inference_opts(self, base: Message, request: Message) -> Message:
        """GET: which model answers, by the digest over its files, and with which settings."""
        self._not_in_chat("inference_opts", base, request)
        allow(request, *_READ)
        return reply(self._inference_opts())

    def _inference_opts(self) -> dict[str, Any]:
        backend = self.backend
        return {
            "model": backend.identity().as_dict(),
            "backend": {
                "kind": backend.kind,
                "where": backend.where,
                "settings": backend.settings,
            },
        }

    def _answering(self) -> Answering:
        return Answering(self.node, self.backend, self.config, self.render_error)

    @key(last=True)
    async def embeddings(self, base: Message, request: Message) -> Message:
        """400: the embedded model writes text and makes no vectors."""
        self._not_in_chat("embeddings", base, request)
        allow(request, "POST")
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
        allow(request, *_READ)
        name = "/".join(request.get("rest") or ())
        running = self._model()
        if not name:
            return reply({"object": "list", "data": [running] if running else []})
        if running is None or name != running["id"]:
            there = f"this node runs '{running['id']}'" if running else "this node runs no model"
            raise NotFound(
                name,
                f"The model '{name[:200]}' does not exist: {there}.",
                error="model_not_found",
                param="model",
            )
        return reply(running)

    @key(last=True)
    async def health(self, base: Message, request: Message) -> Message:
        """GET: 200 when the model answers, else 503.

        `status` is ok, loading, failed or no_backend.
        """
        self._not_in_chat("health", base, request)
        allow(request, *_READ)
        backend = self.backend
        state: Mapping[str, Any] = {
            "model": backend.model or None,
            "backend": backend.kind,
        }
        if backend.state == "ready":
            return reply({"status": "ok", **state})
        words = {"off": "no_backend"}
        answer = {
            "status": words.get(backend.state, backend.state),
            **state,
            "detail": backend.detail,
        }
        headers = {"retry-after": str(_LATER)} if backend.state == "loading" else {}
        return reply(answer, status=503, headers=headers)

    def default(self, called: str, base: Message, request: Message) -> Message:
        """404 in OpenAI's words for everything else."""
        raise self._unknown(called, request)

    def _unknown(self, called: str, request: Message) -> NotFound:
        method = str(request.get("method") or "GET")
        return NotFound(
            called,
            f"Unknown request URL: {method} .../{called[:100]}. There is chat/completions, "
            "completions, models, health, receipt, replay and inference_opts, each also behind v1.",
            error="unknown_url",
        )

    def _not_in_chat(self, called: str, base: Message, request: Message) -> None:
        if marks.api(base) is not None:
            raise self._unknown(f"chat/{called}", request)

    def _model(self) -> dict[str, Any] | None:
        name = self.backend.model
        if not name:
            return None
        identity = self.backend.identity().as_dict()
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "max_model_len": self.config.context,
            **{name: value for name, value in identity.items() if name != "name"},
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
