"""A receipt for each request that goes to the backend: gathered while it is answered."""

from __future__ import annotations

import copy
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from hyperbeam import HyperbeamError, Message
from hyperbeam.verify import receipt as receipts
from hyperbeam.verify.jcs import MAX_INTEGER

from . import outputs
from .backends import Backend
from .outputs import StreamOutputs
from .request import Digest, Generation, digest_of

if TYPE_CHECKING:
    from hyperbeam.node import Node

End = Literal["complete", "error", "cut", "left"]
HEADER = "x-receipt-id"
GATHER = 16 * 1024
"""Bytes of a stream that are hashed and read together."""
DIED = "backend_died"
"""The code of an error event by which the node says that the backend ended early."""


class Record:
    """What is known of one inference from its beginning; `end` makes the receipt.

    `keyset`: signs statement and receipt, also where the node has another by then.
    `model`, `backend`: what runs, as statements have it. `statement`, `answer_id`: set once
    they are known.
    """

    def __init__(
        self,
        node: Node,
        backend: Backend,
        wanted: Generation,
        endpoint: str,
        render: Callable[[HyperbeamError], Message],
        body: bytes | None = None,
    ) -> None:
        self.id = node.receipts.new_id()
        self.keyset = node.keys.current
        self.salt = secrets.token_hex(16)
        self.endpoint = endpoint
        self.request = digest_of(wanted.body if body is None else body)
        self.forwarded = wanted.forwarded()
        self.model = backend.identity().as_dict()
        settings = backend.settings
        self.backend: dict[str, Any] = {
            "kind": backend.kind,
            "where": backend.where,
            "settings": settings,
        }
        self.nonce = wanted.nonce
        self.nonce_by = "node" if wanted.nonce is None else "client"
        if wanted.tee and self.nonce is None:
            self.nonce = secrets.token_hex(32)
        self.seed = exact(wanted.seed)
        self.seed_by = wanted.seed_by
        self.statement: str | None = None
        self.answer_id: str | None = None
        self._node = node
        self._render = render
        self._started = now()
        self._ended = False

    @property
    def headers(self) -> dict[str, str]:
        """Those of the reply, whatever it will be."""
        return {HEADER: self.id}

    def end(
        self,
        end: End,
        status: int | None,
        response: Digest | None,
        *,
        stream: bool = False,
        output: str | None = None,
    ) -> None:
        """Hand the receipt to the store; the first call counts."""
        if self._ended:
            return
        self._ended = True
        receipt = {
            "v": receipts.V,
            "id": self.id,
            "node": self.keyset.node,
            "keyset": self.keyset.name,
            "nonce": self.nonce,
            "nonce_by": self.nonce_by,
            "salt": self.salt,
            "statement": self.statement,
            "answer_id": self.answer_id,
            "endpoint": self.endpoint,
            "request": self.request.as_dict(),
            "forwarded": self.forwarded.as_dict(),
            "response": {
                "status": status,
                "sha256": None if response is None else response.sha256,
                "length": 0 if response is None else response.length,
                "stream": stream,
                "complete": end == "complete",
                "end": end,
            },
            "output_sha256": output,
            "model": self.model,
            "backend": self.backend,
            "config": self.keyset.config,
            "seed": self.seed,
            "seed_by": self.seed_by,
            "started": self._started,
            "ended": now(),
        }
        self._node.receipts.add(receipt, self.keyset)

    def answered(self, body: bytes, answer: Mapping[str, Any]) -> None:
        """End with a plain reply; `answer` is what the backend said."""
        said = answer.get("id")
        self.answer_id = said[:1024] if isinstance(said, str) else None
        output = outputs.digest(outputs.of_answer(answer))
        self.end("complete", 200, digest_of(body), output=output)

    def refused(self, error: HyperbeamError) -> HyperbeamError:
        """End with the error reply for `error`; gives the error to raise in its place."""
        # The one that is raised may be shared by requests that waited for the same evidence.
        own = copy.copy(error)
        own.headers = {**error.headers, **self.headers}
        self.end("error", own.status, digest_of(self._render(own)["body"]))
        return own

    def left(self) -> None:
        """End without a reply: the client has gone, or the node stops."""
        self.end(self.whose_end(), None, None)

    def whose_end(self) -> End:
        """Who ended what nothing failed in: the node where it stops, else the client."""
        return "cut" if self._node.server.draining else "left"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Make the receipt of a request that fails or is given up inside."""
        try:
            yield
        except HyperbeamError as error:
            raise self.refused(error) from error
        except Exception:
            self.end("error", 500, None)
            raise
        except BaseException:
            self.left()
            raise


class StreamRecord(Record):
    """The record of a stream; observes what of it the socket gets."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sha256 = hashlib.sha256()
        self._length = 0
        self._outputs = StreamOutputs()
        # Many pieces at once are hashed and read for half of what each would cost.
        self._gathered: list[bytes] = []
        self._look_at = GATHER

    def sent(self, data: bytes) -> None:
        """Take what was handed to the socket."""
        self._gathered.append(data)
        self._length += len(data)
        if self._length >= self._look_at:
            self._look()

    def _look(self) -> None:
        data = b"".join(self._gathered)
        self._gathered.clear()
        self._look_at = self._length + GATHER
        self._sha256.update(data)
        self._outputs.feed(data)

    def ended(self, complete: bool) -> None:
        """Make the receipt."""
        self._look()
        seen = self._outputs
        self.answer_id = None if seen.id is None else seen.id[:1024]
        if seen.error:
            end: End = "cut" if seen.error == DIED else "error"
        elif complete:
            end = "complete" if seen.done else "cut"
        else:
            end = self.whose_end()
        output = outputs.digest(seen.outputs()) if end == "complete" else None
        response = Digest(self._sha256.hexdigest(), self._length)
        self.end(end, 200 if self._length else None, response if self._length else None,
                 stream=True, output=output)  # fmt: skip

    def watch(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """`source`, whose failure before the first byte is an error reply with its receipt."""
        return _Watched(source, self)

    @property
    def began(self) -> bool:
        """Whether the client has got anything."""
        return self._length > 0


class _Watched:
    def __init__(self, source: AsyncIterator[bytes], record: StreamRecord) -> None:
        self._source = source
        self._record = record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._source)
        except HyperbeamError as error:
            if self._record.began:
                raise
            raise self._record.refused(error) from error

    async def aclose(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


def exact(number: int) -> int | str:
    """An integer as canonical JSON can hold it: past 2^53 as decimal digits."""
    return number if abs(number) <= MAX_INTEGER else str(number)


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
