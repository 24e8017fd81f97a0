"""inference@1.0: OpenAI's API in front of the models that can be asked from here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import Device, HyperbeamError, Message, NotFound, Stream, key
from hyperbeam.access import Grant
from hyperbeam.observe.request_id import current
from hyperbeam.verify import jcs

from . import marks, options
from . import request as requests
from .answering import Answering
from .backends import Backend, shared
from .backends.choice import make_backend
from .backends.shared import SharedBackend
from .config import InferenceConfig
from .endpoints import CHAT, COMPLETIONS, EMBEDDINGS, LIMITS, OTHERS, Endpoint, is_messages, other
from .errors import render
from .replay import Replays
from .reply import NO_STORE, allow, reply
from .request import Asked
from .serving import LOCAL, OWNER, Serving, unknown

if TYPE_CHECKING:
    from hyperbeam.node import Node

_READ = ("GET", "HEAD")
_LOOK = 2.0
"""Seconds between two looks at the model's files for other processes."""
_ID_LENGTH = 32
_LATER = 2


def _passed(name: str, what: str) -> Any:
    """A key that passes all behind it through, to a node that serves it."""

    async def call(self: Inference, base: Message, request: Message) -> Message | Stream:
        return await self._pass(name, base, request)

    call.__name__ = name
    call.__doc__ = f"{what}: passed through to a node that serves it."
    return key(rest=True)(call)


class Inference(Device):
    """OpenAI's API in front of a model of this node's own, and of the nodes of the route table.

    `chat/completions`, `completions`, `embeddings`, `models`, `models/<id>`, `health` and what
    backends serve beside; each also behind `v1`, so that an SDK may use either as its base URL.
    `receipt/<id>` gives what the node signed about an answer, `replay` makes it again.
    """

    name = "inference@1.0"
    raw_body = True
    sealed = True
    fixed = True
    Config = InferenceConfig

    def __init__(
        self, node: Node, config: InferenceConfig | None = None, backend: Backend | None = None
    ) -> None:
        super().__init__(node, config or InferenceConfig())
        self.backend: Backend = backend or self._make_backend()
        self.serving = Serving(node, self.name, self.backend)
        self._created = int(time.time())
        self._why = "it is not known yet which files run"
        self._looking: asyncio.Task[None] | None = None

    def _make_backend(self) -> Backend:
        if self.node.role == "worker":
            return SharedBackend(self.node.board)
        return make_backend(self.config)

    async def start(self) -> None:
        """Begin to load the model; requests meanwhile get 503 `loading`."""
        self._created = int(time.time())
        await self.backend.start(self._declare, self._changed)
        self._changed()
        if self.node.role == "supervisor":
            self._looking = asyncio.create_task(self._look(), name="model files")

    def _changed(self) -> None:
        """Let routes know where the backend is, and other processes how it is."""
        backend = self.backend
        self.node.backends.register(
            LOCAL, backend.url, backend.headers, lambda: backend.state == "ready"
        )
        if self.node.role != "worker":
            if backend.identity().by == "hashed":
                self._why = ""
            self.node.board.publish(shared.NAME, shared.published(backend, self._why))

    async def _look(self) -> None:
        """Say to the workers whether the model's files are still those that the backend opened."""
        while True:
            why = await self.backend.unknown_model()
            if why != self._why:
                self._why = why
                self._changed()
            await asyncio.sleep(_LOOK)

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
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.serving.stop()
        await self.backend.stop(self.config.stop_grace)

    def describe(self) -> Message:
        """State, and the settings on which the bytes of an answer depend."""
        return {
            "state": self.backend.state,
            **self.backend.describe(),
            "inference_opts": self._inference_opts(),
        }

    def render_error(self, error: HyperbeamError) -> Message:
        """OpenAI's error object, or Anthropic's on the paths of its API."""
        info = current()
        return render(error, info is not None and is_messages(info.path))

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
        grant = self.node.access.check(request)
        allow(request, "POST")
        asked = requests.take(request)
        if marks.tee_before(base) and not marks.asks_tee(request):
            raise options.misplaced("tee")
        endpoint = CHAT if marks.api(base) == "chat" else COMPLETIONS
        return await self._answer(endpoint, asked, request, grant)

    @key(last=True)
    async def embeddings(self, base: Message, request: Message) -> Message | Stream:
        """POST: vectors for `input`, by a node that runs an embedding model."""
        self._not_in_chat("embeddings", base, request)
        grant = self.node.access.check(request)
        allow(request, "POST")
        return await self._answer(EMBEDDINGS, requests.take_any(request), request, grant)

    async def _pass(self, first: str, base: Message, request: Message) -> Message | Stream:
        self._not_in_chat(first, base, request)
        grant = self.node.access.check(request)
        endpoint = other(first, request.get("rest") or (), request)
        here = self.backend.assembled and endpoint.path in LIMITS
        asked = requests.take_any(request, seeded=here)
        return await self._answer(endpoint, asked, request, grant)

    async def _answer(
        self, endpoint: Endpoint, asked: Asked, request: Message, grant: Grant
    ) -> Message | Stream:
        if grant.models:
            grant.require_model(asked.model)
        route = self.serving.route(endpoint.path, request)
        info = current()
        if info is not None:
            info.route = route.id
        chosen = await self.serving.choose(route, endpoint, asked.model)
        if grant.models and chosen.runs:
            grant.require_model(chosen.runs)
        answer = await self._answering().answer(
            endpoint,
            asked,
            chosen,
            request,
            client=grant.client,
            owner=grant.id,
            used=grant.used,
        )
        if grant.headers:
            _add_headers(answer, grant.headers)
        return answer

    @key(rest=True)
    async def receipt(self, base: Message, request: Message) -> Message:
        """GET `receipt/<id>`: what this node signed about the answer with that `x-receipt-id`."""
        self._not_in_chat("receipt", base, request)
        allow(request, *_READ)
        id = "/".join(request.get("rest") or ())
        owner = self.node.access.grant_of(request).id
        found = await self.node.receipts.get(id, owner)
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
        grant = self.node.access.check(request)
        allow(request, "POST")
        if grant.models:
            grant.require_model(self.backend.model)
        answering = self._answering()
        replays = Replays(self.node, answering)
        asked = replays.read(request)
        answering.require_ready()
        return await replays.run(asked, grant.id, grant.used)

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
        return Answering(self.node, self.backend, self.config, self.serving, self.render_error)

    @key(rest=True)
    async def models(self, base: Message, request: Message) -> Message:
        """GET: all models that can be asked for here; `models/<id>`: one, ids with slashes too."""
        self._not_in_chat("models", base, request)
        allow(request, *_READ)
        grant = self.node.access.grant_of(request)
        name = "/".join(request.get("rest") or ())
        found = await self.serving.models(self._model(), request)
        if grant.models:
            found = [model for model in found if model["id"] in grant.models]
        if not name:
            return reply({"object": "list", "data": found})
        for model in found:
            if model["id"] == name:
                return reply(model)
        raise unknown(name, [model["id"] for model in found])

    @key(last=True)
    async def health(self, base: Message, request: Message) -> Message:
        """GET: 200 when the model answers, or a node of the routes can be asked, else 503.

        `status` is ok, loading, failed or no_backend; `detail` says why this node's own model
        does not answer, or only other nodes do.
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
        if self.serving.others_up():
            return reply({"status": "ok", **state, "detail": f"by other nodes: {backend.detail}"})
        words = {"off": "no_backend"}
        answer = {
            "status": words.get(backend.state, backend.state),
            **state,
            "detail": backend.detail,
        }
        headers = {"retry-after": str(_LATER)} if backend.state == "loading" else {}
        return reply(answer, status=503, headers=headers)

    responses = _passed("responses", "OpenAI's Responses API")
    messages = _passed("messages", "Anthropic's Messages API; its errors have that API's shape")
    tokenize = _passed("tokenize", "The tokens of a text")
    detokenize = _passed("detokenize", "The text of tokens")
    rerank = _passed("rerank", "Documents, ordered by how well they answer a query")
    score = _passed("score", "How alike texts are")
    audio = _passed("audio", "`audio/transcriptions`, `audio/speech` and the like")
    images = _passed("images", "`images/generations` and the like")
    moderations = _passed("moderations", "Whether a text is harmful")

    def default(self, called: str, base: Message, request: Message) -> Message:
        """404 in OpenAI's words for everything else."""
        raise self._unknown(called, request)

    def _unknown(self, called: str, request: Message) -> NotFound:
        method = str(request.get("method") or "GET")
        return NotFound(
            called,
            f"Unknown request URL: {method} .../{called[:100]}. There is chat/completions, "
            f"completions, embeddings, models, {', '.join(OTHERS)}, health, receipt, replay and "
            "inference_opts, each also behind v1.",
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
            "max_model_len": self.backend.context or None,
            **{name: value for name, value in identity.items() if name != "name"},
        }


def _add_headers(answer: Message | Stream, headers: Mapping[str, str]) -> None:
    if isinstance(answer, Stream):
        answer.headers.update(headers)
    else:
        answer.update(headers)
