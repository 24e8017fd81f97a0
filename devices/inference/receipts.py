"""A receipt for each request that goes to the backend: gathered while it is answered."""

from __future__ import annotations

import copy
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from hyperbeam import HyperbeamError, Message
from hyperbeam.verify import receipt as receipts
from hyperbeam.verify.jcs import MAX_INTEGER

from . import outputs
from .backends import Backend, ModelIdentity
from .outputs import StreamOutputs, Usage, usage_of
from .request import Asked, Digest, Generation, digest_of

if TYPE_CHECKING:
    from hyperbeam.node import Node

End = Literal["complete", "error", "cut", "left"]
HEADER = "x-receipt-id"
GATHER = 16 * 1024
"""Bytes of a stream that are hashed and read together."""
CUT = ("backend_died", "draining")
"""The codes of error events by which the node says that the backend, or the node itself, ended
a stream early."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What answered: model and backend as statements have them, and what it was sent.

    `model` is None where only the reply can say it, `backend` as far as it is known.
    """

    model: dict[str, Any] | None
    backend: dict[str, Any]
    forwarded: Digest


REMOTE: Mapping[str, Any] = {"kind": "remote", "where": "url", "settings": {}}
"""The backend of which this node knows no more than an address."""


def ran(backend: Backend, forwarded: Digest) -> Ran:
    """This node's own backend, as it is now."""
    about = {"kind": backend.kind, "where": backend.where, "settings": backend.settings}
    return Ran(backend.identity().as_dict(), about, forwarded)


class Record:
    """What is known of one inference from its beginning; `end` makes the receipt.

    `keyset`: signs statement and receipt, also where the node has another by then.
    `ran`: who answers, or was asked last. `statement`, `answer_id`: set once they are known.
    `model_name`: what the reply says. `owner` is the API key that asked, "" without one, and
    `used` is told the tokens that the reply counts.
    """

    def __init__(
        self,
        node: Node,
        asked: Asked | Generation,
        endpoint: str,
        render: Callable[[HyperbeamError], Message],
        body: bytes | None = None,
        *,
        owner: str = "",
        used: Callable[[str, Usage], None] | None = None,
    ) -> None:
        self.id = node.receipts.new_id()
        self.keyset = node.keys.current
        self.salt = secrets.token_hex(16)
        self.endpoint = endpoint
        self.request = digest_of(asked.body if body is None else body)
        self.ran: Ran | None = None
        self.nonce = asked.nonce
        self.nonce_by = "node" if asked.nonce is None else "client"
        self.seed = None if asked.seed is None else exact(asked.seed)
        self.seed_by = asked.seed_by
        self.statement: str | None = None
        self.answer_id: str | None = None
        self.model_name = ""
        self.owner = owner
        self._used = used
        self._node = node
        self._render = render
        self._started = now()
        self._ended = False

    @property
    def model(self) -> dict[str, Any] | None:
        """As statements have it; of a remote one, the name that the reply gives."""
        known = None if self.ran is None else self.ran.model
        if known is None and self.ran is not None and self.model_name:
            return ModelIdentity(self.model_name).as_dict()
        return known

    @property
    def backend(self) -> dict[str, Any] | None:
        return None if self.ran is None else self.ran.backend

    @property
    def forwarded(self) -> Digest | None:
        return None if self.ran is None else self.ran.forwarded

    def attesting(self) -> None:
        """Have a nonce for a statement, where the client gave none."""
        if self.nonce is None:
            self.nonce = secrets.token_hex(32)

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
            "forwarded": None if self.forwarded is None else self.forwarded.as_dict(),
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
        self._node.receipts.add(receipt, self.keyset, self.owner)

    def answered(self, body: bytes, answer: Mapping[str, Any], status: int = 200) -> None:
        """End with a plain reply; `answer` is what the backend said, empty where it is no JSON."""
        said = answer.get("id")
        self.answer_id = said[:1024] if isinstance(said, str) else None
        output = outputs.digest(outputs.of_answer(answer))
        self.counted(answer.get("model"), usage_of(answer))
        self.end("complete", status, digest_of(body), output=output)

    def counted(self, model: Any, usage: Usage) -> None:
        """Note which model the reply names, and tell who counts of its tokens."""
        if isinstance(model, str):
            self.model_name = model[:1024]
        if self._used is not None:
            name = (self.model or {}).get("name") or ""
            self._used(name, usage)

    def refused(self, error: HyperbeamError) -> HyperbeamError:
        """End with the error reply for `error`; gives the error to raise in its place."""
        # The one that is raised may be shared by requests that waited for the same evidence.
        own = copy.copy(error)
        own.headers = {**error.headers, **self.headers}
        self.end("error", own.status, digest_of(self._render(own)["body"]))
        return own

    def left(self) -> None:
        """End without a reply: the client has gone, or the node stops."""
        self.counted(None, outputs.estimate(self.request.length))
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


class Observer:
    """Sees what of a stream the socket gets, and makes the receipt of it.

    `completions`: whether it is one of OpenAI's streams that end with `[DONE]`; of others the
    source knows the end.
    """

    def __init__(self, record: Record, *, completions: bool = True, events: bool = True) -> None:
        self.record = record
        self._completions = completions
        self._sha256 = hashlib.sha256()
        self._length = 0
        self._outputs = StreamOutputs() if events else None
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
        if self._outputs is not None:
            self._outputs.feed(data)

    def ended(self, complete: bool) -> None:
        """Make the receipt."""
        self._look()
        record, seen = self.record, self._outputs
        done = not self._completions or (seen is not None and seen.done)
        if seen is not None and seen.error:
            end: End = "cut" if seen.error in CUT else "error"
        elif complete:
            end = "complete" if done else "cut"
        else:
            end = record.whose_end()
        output = None
        if seen is not None:
            record.answer_id = None if seen.id is None else seen.id[:1024]
            record.counted(seen.model, seen.counted(record.request.length))
            if end == "complete" and self._completions:
                output = outputs.digest(seen.outputs())
        response = Digest(self._sha256.hexdigest(), self._length) if self._length else None
        status = 200 if self._length else None
        record.end(end, status, response, stream=True, output=output)

    def watch(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """`source`, whose failure before the first byte is an error reply with its receipt."""
        return _Watched(source, self)

    @property
    def began(self) -> bool:
        """Whether the client has got anything."""
        return self._length > 0


class _Watched:
    def __init__(self, source: AsyncIterator[bytes], observer: Observer) -> None:
        self._source = source
        self._observer = observer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._source)
        except HyperbeamError as error:
            if self._observer.began:
                raise
            raise self._observer.record.refused(error) from error

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
