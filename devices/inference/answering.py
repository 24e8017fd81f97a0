"""From a checked request to the reply, its receipt, and its attestation where one is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from hyperbeam import HyperbeamError, Message, Stream

from . import generate
from .backends import Backend
from .config import InferenceConfig
from .receipts import Record, StreamRecord
from .reply import NO_STORE, dump, reply
from .request import Generation
from .tee import AttestedStream, Attester, attested

if TYPE_CHECKING:
    from hyperbeam.node import Node

ROOT = "/~inference@1.0/"
ENDPOINTS = {"chat": ROOT + "chat/completions", "completions": ROOT + "completions"}
"""The paths as receipts name them, whichever of their other names was called."""


class Answering:
    """Has `backend` answer. `render` gives the reply for an error."""

    def __init__(
        self,
        node: Node,
        backend: Backend,
        config: InferenceConfig,
        render: Callable[[HyperbeamError], Message],
    ) -> None:
        self.node = node
        self.backend = backend
        self.config = config
        self.render = render

    async def answer(self, wanted: Generation, client: str, target: str) -> Message | Stream:
        """The reply to `wanted`; `client` is who asks, `target` the path that was sent.

        Raises HyperbeamError.
        """
        attester = None
        if wanted.tee:
            path = target or ENDPOINTS[wanted.api]
            attester = Attester(self.node, self.backend, wanted, path, client)
            await attester.check()
        if wanted.stream:
            return await self._stream(wanted, attester)
        return await self._plain(wanted, attester)

    async def _plain(self, wanted: Generation, attester: Attester | None) -> Message:
        node, backend = self.node, self.backend
        record = Record(node, backend, wanted, ENDPOINTS[wanted.api], self.render)
        headers = _headers(wanted, record)
        with record.watching():
            answer = await generate.plain(node.upstream, backend, wanted, self.config.slots)
            body = dump(answer)
            if attester is not None:
                body = await attested(attester, record, body, backend.model)
                headers |= NO_STORE
        record.answered(body, answer)
        return reply(body, headers=headers)

    async def _stream(self, wanted: Generation, attester: Attester | None) -> Stream:
        node, backend = self.node, self.backend
        record = StreamRecord(node, backend, wanted, ENDPOINTS[wanted.api], self.render)
        with record.watching():
            source: AsyncIterator[bytes] = await generate.streamed(node.upstream, backend, wanted)
        if attester is not None:
            source = AttestedStream(attester, record, source, backend.model)
        if attester is not None or wanted.rewritten:
            source = record.watch(source)
        return Stream(
            source,
            headers=_headers(wanted, record),
            comments=attester is None,
            observer=record,
        )


def _headers(wanted: Generation, record: Record) -> dict[str, str]:
    return {"x-seed": str(wanted.seed), "x-seed-by": wanted.seed_by, **record.headers}
