"""`tee`: the statement about an answer, and evidence over it.

The statement (`hyperbeam.verify.statement`) is signed by the key set that the request began
with; sev_gpu@1.0 has the hardware sign its hash. Who asks for evidence gets no answer without.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import BadGateway, HyperbeamError, NotFound, Unavailable
from hyperbeam.observe.watch import attesting
from hyperbeam.verify import answer as answers
from hyperbeam.verify import jcs, statement
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.events import read_events
from hyperbeam.verify.reading import read_json

from .backends import Backend
from .child import cut
from .errors import JSON, UNAVAILABLE, permanent
from .receipts import Record, now
from .request import Asked, digest_of
from .rewriting import Rewriting

if TYPE_CHECKING:
    from hyperbeam.node import Node

EVENTS = "text/event-stream"
METHOD = "POST"
DONE = b"data: [DONE]\n\n"
_GENERATE = "/~sev_gpu@1.0/generate"
_LATER = 5
_OF_EVIDENCE = ("nonce", "batch", "backend", "evidences", "token", "claims", "verified", "cpu")


class Attester:
    """Attests answers of `backend` to requests for `path`; `client` waits, in a fair order."""

    def __init__(self, node: Node, backend: Backend, asked: Asked, path: str, client: str) -> None:
        self._node = node
        self._backend = backend
        self._asked = asked
        self._path = path
        self._client = client

    async def check(self) -> None:
        """Whether evidence could be had now. Raises Unavailable before the backend is asked."""
        if self._backend.where != "child":
            raise permanent(
                _refused(
                    "Only answers of a model that this node runs itself can be attested, and this "
                    "one's runs elsewhere."
                )
            )
        await self._check_model()
        await self._ask({"probe": True})

    async def attest(self, record: Record, body: bytes, kind: str) -> dict[str, Any]:
        """The attestation of a complete answer: `body` of the content type `kind`.

        Raises Unavailable; BadGateway for a body that is no text.
        """
        await self._check_model()
        if self._backend.identity().as_dict() != record.model:
            raise _unavailable("the model was started again while it answered")
        try:
            raw = jcs.encode(self._statement(record, body, kind))
        except UnicodeDecodeError:
            raise BadGateway("The backend's answer is not UTF-8.", error="backend_error") from None
        record.statement = digest_of(raw).sha256
        mode = "batch" if self._asked.tee == "batch" else "each"
        text = raw.decode()
        try:
            with attesting(self._node.metrics):
                evidence = await self._ask({"raw": text, "mode": mode, "client": self._client})
        except BaseException:
            record.statement = None
            raise
        signature = record.keyset.sign_answer(raw)
        return {
            "raw": text,
            "signature": signature,
            **{name: evidence[name] for name in _OF_EVIDENCE},
        }

    async def _check_model(self) -> None:
        why = await self._backend.unknown_model()
        if why:
            raise _unavailable(why)

    async def _ask(self, attest: dict[str, Any]) -> Mapping[str, Any]:
        try:
            found = await self._node.resolve({}, {"path": _GENERATE, "priv": {"attest": attest}})
        except NotFound as error:
            # No device that collects evidence: nothing will change that while the node runs.
            raise permanent(_unavailable(error.detail)) from None
        except HyperbeamError as error:
            if error.error == UNAVAILABLE:
                raise
            raise _unavailable(error.detail) from error
        return found if isinstance(found, Mapping) else {}

    def _statement(self, record: Record, body: bytes, kind: str) -> dict[str, Any]:
        asked, forwarded = self._asked, record.forwarded
        whole = asked.tee != "digest"
        return {
            "v": statement.V,
            "node": record.keyset.node,
            "keyset": record.keyset.name,
            "receipt": record.id,
            "nonce": record.nonce,
            "nonce_by": record.nonce_by,
            "salt": record.salt,
            "timestamp": now(),
            "config": record.keyset.config,
            "request": {
                "method": METHOD,
                "path": self._path,
                **record.request.as_dict(),
                "body": asked.body.decode() if whole else None,
            },
            "forwarded": None if forwarded is None else forwarded.as_dict(),
            "response": {
                "status": 200,
                "type": kind,
                **digest_of(body).as_dict(),
                "stream": asked.stream,
                "complete": True,
                "body": body.decode() if whole else None,
            },
            "model": record.model,
            "seed": record.seed,
            "seed_by": record.seed_by,
            "backend": record.backend,
        }


async def attested(attester: Attester, record: Record, body: bytes, model: str) -> bytes:
    """The plain reply: the answer `body` with its attestation spliced in."""
    try:
        answers.splice(body, model, {})
    except Malformed as error:
        raise BadGateway(f"{error.detail}.", error="backend_error") from None
    return answers.splice(body, model, await attester.attest(record, body, JSON))


class AttestedStream(Rewriting):
    """A stream whose attestation comes before its `[DONE]`.

    What the backend sends goes on as whole events. An error event, or an end that is none,
    leaves the stream without an attestation.
    """

    def __init__(
        self, attester: Attester, record: Record, source: AsyncIterator[bytes], model: str
    ) -> None:
        self._attester = attester
        self._record = record
        super().__init__(source)
        self._model = model
        self._sent: list[bytes] = []
        self._first: Mapping[str, Any] | None = None
        self._failed = False

    async def _run(self) -> AsyncGenerator[bytes, None]:
        rest = b""
        async for chunk in self._source:
            if self._failed:
                yield chunk
                continue
            whole, rest, done = self._events(rest + chunk)
            if whole:
                self._sent.append(whole)
                yield whole
            if self._failed and rest:
                yield rest
                rest = b""
            if done:
                yield await self._end()
                return
        if not self._failed:
            raise cut()

    def _events(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """The bytes of the complete events, those after them, and whether `[DONE]` is next."""
        end = 0
        for event in read_events(data)[0]:
            if self._failed:
                return data, b"", False
            if event.data == answers.DONE:
                return data[: event.start], b"", True
            end = event.end
            self._look_at(event.data, event.kind)
        return data[:end], data[end:], False

    def _look_at(self, data: bytes, kind: str) -> None:
        try:
            value = read_json(data, "The backend's event", "event", answers.MAX_ITEMS)
        except Malformed as error:
            raise BadGateway(f"{error.detail}.", error="backend_error") from None
        if not isinstance(value, dict) or "attestation" in value:
            raise BadGateway("The backend sent an event that is none.", error="backend_error")
        if value.get("error") is not None or kind == "error":
            self._failed = True
        if self._first is None:
            self._first = value

    async def _end(self) -> bytes:
        attestation = await self._attester.attest(self._record, b"".join(self._sent), EVENTS)
        return answers.stream_event(self._first or {}, self._model, attestation) + DONE


def _unavailable(why: str) -> Unavailable:
    return _refused(f"There is no evidence for this answer now: {why}.")


def _refused(detail: str) -> Unavailable:
    return Unavailable(detail, error=UNAVAILABLE, param="tee", retry_after=_LATER)
