"""From a request that was read to the reply, its receipt, and evidence where it is asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hyperbeam import BadRequest, HyperbeamError, Message, NotFound, Stream, Unavailable
from hyperbeam.observe.request_id import current
from hyperbeam.routing.lease import Lease
from hyperbeam.routing.strategy import Ask

from . import generate, marks, members, passing, relayed
from . import request as requests
from .backends import Backend
from .child import Sender
from .config import InferenceConfig
from .endpoints import EMBEDDINGS, LIMITS, Endpoint
from .errors import JSON, NO_RETRY
from .outputs import Usage
from .passing import EVENTS, Given
from .receipts import REMOTE, Observer, Ran, Record, ran
from .reply import NO_STORE, dump, reply
from .request import Asked, Digest, Generation, digest_of
from .serving import Chosen, Serving
from .tee import AttestedStream, Attester, attested

if TYPE_CHECKING:
    from hyperbeam.node import Node

log = logging.getLogger("hyperbeam.inference")

_LATER = 2
_OFF_LATER = 60
_CONVERSATION = 2
"""Messages by which a conversation is known: the system's and the first of the user's."""


@dataclass(frozen=True, slots=True)
class Answering:
    """Has nodes answer. `render` gives the reply for an error."""

    node: Node
    backend: Backend
    config: InferenceConfig
    serving: Serving
    render: Callable[[HyperbeamError], Message]

    async def answer(
        self,
        endpoint: Endpoint,
        asked: Asked,
        chosen: Chosen,
        request: Message,
        *,
        client: str,
        owner: str = "",
        used: Callable[[int], None] | None = None,
    ) -> Message | Stream:
        """The reply to `asked`. `client`: whose turn it is; `owner`: who may read the receipt.

        Raises HyperbeamError.
        """
        log.debug(
            "%s, stream %s, seed %s by the %s",
            endpoint.name, asked.stream, asked.seed, asked.seed_by,
        )  # fmt: skip
        inquiry = _Inquiry(self, endpoint, asked, request, client, owner, used)
        ask = Ask(
            path=endpoint.path,
            client=client,
            model=chosen.model,
            affinity=lambda: conversation(asked),
            request=request,
        )
        route = chosen.route
        if asked.tee and route.parallel:
            # Evidence for answers that nobody gets would be signed, and waited for.
            route = self.serving.in_turn(route)
        try:
            answer = await self.node.dispatch.run(route, ask, inquiry.attempt)
        except BaseException:
            if inquiry.record is None:
                raise
            with inquiry.record.watching():
                raise
        return inquiry.reply(answer)

    def require_ready(self) -> None:
        """Raises Unavailable unless this node's own backend answers."""
        backend = self.backend
        if backend.state == "ready":
            return
        if backend.state in ("loading", "down"):
            raise Unavailable(
                f"The model is {'loading' if backend.state == 'loading' else 'away'}: "
                f"{backend.detail or 'try again in a moment'}.",
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

    def generation(self, endpoint: Endpoint, asked: Asked) -> Generation | None:
        """The calls that this node's own backend needs; None where it takes what it is sent."""
        backend = self.backend
        if endpoint.api is None:
            return None
        if not backend.assembled:
            several = backend.single_choice
            named = self._named(asked)
            return requests.choices(endpoint.api, named, backend.max_seed) if several else None
        return requests.generation(
            endpoint.api,
            asked,
            model=backend.model,
            max_tokens=self.config.max_tokens,
            tools=backend.tools,
        )

    async def own(
        self, sender: Sender, endpoint: Endpoint, asked: Asked, wanted: Generation | None
    ) -> Given:
        """What this node's own backend answers."""
        headers = passing.headers_of({}, asked)
        if wanted is None:
            path = self.serving.own_path(endpoint.path) or endpoint.path
            if endpoint.api is not None:
                path = endpoint.path
            return await passing.passed(
                sender, path, headers, self.sent(endpoint, asked), endpoint.method, endpoint.query
            )
        if not self.backend.assembled:
            return await passing.several(sender, endpoint.path, headers, wanted)
        if wanted.stream:
            return Given(200, EVENTS, source=await generate.streamed(sender, wanted))
        answer = await generate.plain(sender, wanted, self.config.slots)
        return Given(200, JSON, dump(answer), answer)

    def forwarded(self, endpoint: Endpoint, asked: Asked, wanted: Generation | None) -> Digest:
        """Of what `own` sends."""
        return digest_of(self.sent(endpoint, asked)) if wanted is None else wanted.forwarded()

    def sent(self, endpoint: Endpoint, asked: Asked) -> bytes:
        """The body that this node's own backend gets where it takes the client's."""
        body = self._named(asked).passed()
        limit = LIMITS.get(endpoint.path)
        if self.backend.assembled and limit is not None and asked.fields.get(limit) is None:
            rest = members.without(body, (limit,))
            return members.with_member(rest, limit, self.config.max_tokens)
        return body

    def _named(self, asked: Asked) -> Asked:
        backend = self.backend
        only = backend.where == "child" and not backend.assembled
        return asked.naming(backend.model) if only else asked


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one attempt gave, and who ran it."""

    given: Given
    ran: Ran
    node: str
    model: str
    watched: bool
    tee: bool

    async def aclose(self) -> None:
        await self.given.aclose()


class _Inquiry:
    """One request on its way along the nodes. `record`: from when the first one is asked."""

    def __init__(
        self,
        answering: Answering,
        endpoint: Endpoint,
        asked: Asked,
        request: Message,
        client: str,
        owner: str,
        used: Callable[[int], None] | None,
    ) -> None:
        self.record: Record | None = None
        self._answering = answering
        self._endpoint = endpoint
        self._asked = asked
        self._request = request
        self._client = client
        self._owner = owner
        self._used = used

    async def attempt(self, lease: Lease) -> _Answer:
        answer = await (self._own(lease) if lease.node.backend else self._other(lease))
        if answer.given.source is None:
            lease.close()
        return answer

    async def _own(self, lease: Lease) -> _Answer:
        answering, asked, endpoint = self._answering, self._asked, self._endpoint
        backend = answering.backend
        if not answering.serving.here(endpoint):
            raise not_here(endpoint)
        wanted = answering.generation(endpoint, asked)
        answering.require_ready()
        attester = None
        if asked.tee:
            path = marks.target(self._request) or endpoint.name
            attester = Attester(answering.node, backend, asked, path, self._client)
            await attester.check()
        who = ran(backend, answering.forwarded(endpoint, asked, wanted))
        record = self._begin(who)
        sender = Sender(answering.node.upstream, backend=backend, lease=lease)
        given = await answering.own(sender, endpoint, asked, wanted)
        if attester is not None:
            record.attesting()
            if given.source is None:
                given.body = await attested(attester, record, given.body, backend.model)
            else:
                given.source = AttestedStream(attester, record, given.source, backend.model)
        watched = attester is not None or (wanted is not None and wanted.rewritten)
        return _Answer(given, who, lease.node.id, backend.model, watched, bool(asked.tee))

    async def _other(self, lease: Lease) -> _Answer:
        answering, asked, endpoint = self._answering, self._asked, self._endpoint
        headers = passing.headers_of(self._request, asked)
        if asked.tee:
            body = asked.body
            headers += relayed.headers(asked)
        else:
            body = asked.passed()
        listed = lease.node.models
        name = listed[0] if len(listed) == 1 else asked.model if asked.model in listed else ""
        model = {"name": name, "sha256": None, "size": None, "by": "declared"} if name else None
        who = Ran(model, dict(REMOTE), digest_of(body))
        self._begin(who)
        sender = Sender(answering.node.upstream, lease=lease)
        given = await passing.passed(
            sender, endpoint.path, headers, body, endpoint.method, endpoint.query
        )
        if asked.tee:
            if given.source is None:
                given.body = relayed.relayed(given.body)
            else:
                given.source = relayed.RelayedStream(given.source)
        return _Answer(given, who, lease.node.id, name, bool(asked.tee), bool(asked.tee))

    def _begin(self, who: Ran) -> Record:
        if self.record is None:
            answering = self._answering
            self.record = Record(
                answering.node,
                self._asked,
                self._endpoint.name,
                answering.render,
                owner=self._owner,
                used=self._count,
            )
        self.record.ran = who
        return self.record

    def _count(self, model: str, usage: Usage) -> None:
        if not any(usage):
            return
        self._answering.node.metrics.tokens(model, usage.prompt, usage.completion)
        if self._used is not None:
            self._used(usage.prompt + usage.completion)

    def reply(self, answer: _Answer) -> Message | Stream:
        """The client's reply, whose receipt is made when it is known what was sent."""
        record, given, asked = self.record, answer.given, self._asked
        assert record is not None
        record.ran = answer.ran
        info = current()
        if info is not None:
            info.node = answer.node
            info.model = answer.model
        headers = record.headers
        if asked.seed is not None:
            headers |= {"x-seed": str(asked.seed), "x-seed-by": asked.seed_by or "node"}
        if given.source is None:
            if answer.tee:
                headers |= NO_STORE
            record.answered(given.body, given.answer or {}, given.status)
            return reply(given.body, status=given.status, headers=headers, kind=given.kind)
        events = given.kind.startswith(EVENTS)
        completions = self._endpoint.api is not None
        observer = Observer(record, completions=completions and events, events=events)
        source: AsyncIterator[bytes] = given.source
        if answer.watched or not events:
            source = observer.watch(source)
        return Stream(
            source,
            content_type=given.kind,
            status=given.status,
            headers=headers,
            comments=not answer.tee,
            observer=observer,
        )


def not_here(endpoint: Endpoint) -> HyperbeamError:
    """The refusal of what only nodes with another model can do."""
    if endpoint.path == EMBEDDINGS.path:
        return BadRequest(
            "This node's model makes no embeddings: it writes text only. "
            "Ask a node that runs an embedding model.",
            error="embeddings_not_supported",
            param="model",
        )
    name = endpoint.path.removeprefix("/v1/")
    return NotFound(
        name,
        f"This node's model does not serve {name[:100]}: it takes a node of the route table whose "
        "backend does.",
        error="endpoint_not_supported",
    )


def conversation(asked: Asked) -> bytes:
    """The bytes that all requests of one conversation have in common."""
    fields: Mapping[str, Any] = asked.fields
    messages = fields.get("messages") or fields.get("input")
    said = messages[:_CONVERSATION] if isinstance(messages, list) else messages
    if said is None:
        prompt = fields.get("prompt")
        said = prompt[:256] if isinstance(prompt, str | list) else asked.body[:256].hex()
    return json.dumps([asked.model, said], sort_keys=True, ensure_ascii=True).encode()
