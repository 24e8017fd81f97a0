"""Replay: an inference is made again from its receipt or statement, and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hyperbeam import BadRequest, HyperbeamError, Message
from hyperbeam.verify import answer as answers
from hyperbeam.verify import receipt as receipts
from hyperbeam.verify import signing, statement
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.keyset import KeySet
from hyperbeam.verify.reading import read_object

from . import generate, outputs, rules
from . import request as requests
from .answering import Answering
from .child import Sender
from .endpoints import CHAT, COMPLETIONS, ROOT, Endpoint
from .outputs import Output, StreamOutputs, Usage
from .receipts import Ran, Record, exact, ran
from .reply import NO_STORE, dump, reply
from .request import Generation, digest_of
from .validate import API

if TYPE_CHECKING:
    from hyperbeam.node import Node

ENDPOINT = ROOT + "replay"
SHOWN = 64
"""Characters shown of each side from where they differ."""
_FIELDS = frozenset({"receipt", "attestation", "request", "answer"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be made again.

    `source`: `receipt` or `attestation`; `said`: the receipt, or the statement. `signature`:
    good, or unchecked where this node does not know the key set. `output_sha256`: of the
    first answer; `outputs`: its choices, where the answer was given. `question`: the request
    that was answered; `wanted`: the backend's calls. `body`: of the whole call.
    """

    source: str
    said: dict[str, Any]
    signature: str
    output_sha256: str
    outputs: list[Output] | None
    endpoint: Endpoint
    question: requests.Asked
    wanted: Generation | None
    body: bytes


class Conflict(HyperbeamError):
    """409: this node cannot make that inference again."""

    status = 409
    error = "not_replayable"


class Replays:
    """Makes inferences again on this node's backend."""

    def __init__(self, node: Node, answering: Answering) -> None:
        self._node = node
        self._answering = answering

    def read(self, request: Message) -> Asked:
        """Check what is asked. Raises BadRequest for what is none, Conflict for what differs."""
        body = request.get("body") or b""
        if not isinstance(body, bytes):
            raise BadRequest("The receipt has to be the body of a POST.", error="invalid_json")
        try:
            return self._read(body)
        except Malformed as error:
            raise BadRequest(f"{error.detail}.", error=error.reason.replace("-", "_")) from None

    async def run(
        self, asked: Asked, owner: str = "", used: Callable[[int], None] | None = None
    ) -> Message:
        """The verdict. `owner`: who may read its receipt; `used` is told the answer's tokens.

        Raises Conflict where model, weights or settings are not the same.
        """
        answering, question = self._answering, asked.question

        def count(model: str, usage: Usage) -> None:
            self._node.metrics.tokens(model, usage.prompt, usage.completion)
            if used is not None:
                used(usage.prompt + usage.completion)

        # The receipt of the replay is about the replay: it has neither evidence nor that nonce.
        about = replace(question, tee="", nonce=None)
        record = Record(
            self._node, about, ENDPOINT, answering.render, asked.body, owner=owner, used=count
        )
        who = ran(answering.backend, answering.forwarded(asked.endpoint, question, asked.wanted))
        record.ran = who
        _check_same(asked.said, who)
        with record.watching():
            answer, made = await self._again(asked)
        verdict = _verdict(asked, record, made)
        text = dump(verdict)
        record.answered(text, answer)
        return reply(text, headers={**NO_STORE, **record.headers})

    async def _again(self, asked: Asked) -> tuple[Mapping[str, Any], list[Output] | None]:
        """The answer, as far as it is one JSON object, and its choices."""
        answering = self._answering
        sender = Sender(self._node.upstream, backend=answering.backend)
        if asked.wanted is not None and answering.backend.assembled:
            answer = await generate.plain(sender, asked.wanted, answering.config.slots)
            return answer, outputs.of_answer(answer)
        given = await answering.own(sender, asked.endpoint, asked.question, asked.wanted)
        if given.source is None:
            return given.answer or {}, outputs.of_answer(given.answer or {})
        seen = StreamOutputs()
        try:
            async for chunk in given.source:
                seen.feed(chunk)
        finally:
            await given.aclose()
        return {"id": seen.id}, seen.outputs()

    def _read(self, body: bytes) -> Asked:
        fields = read_object(body, "The body", "invalid-json")
        unknown = sorted(fields.keys() - _FIELDS)
        if unknown:
            raise rules.refuse(
                unknown[0][:64], f"Unknown field {unknown[0][:64]!r}.", "unknown_parameter"
            )
        if ("receipt" in fields) == ("attestation" in fields):
            raise rules.refuse(
                "receipt", "Give either 'receipt' or 'attestation'.", "missing_required_parameter"
            )
        rules.string(fields, "request")
        rules.string(fields, "answer")
        if "receipt" in fields:
            rules.mapping(fields, "receipt")
            said = receipts.parse(fields["receipt"])
            raw = None
        else:
            rules.mapping(fields, "attestation")
            raw = (fields["attestation"] or {}).get("raw")
            if not isinstance(raw, str):
                raise rules.missing("attestation.raw")
            said = statement.parse(raw)
        signature = self._signature(said, raw, fields.get("attestation"))
        asked = _text_of("request", fields.get("request"), said)
        answer = _text_of("answer", fields.get("answer"), said)
        found = None if answer is None else _outputs(answer, said)
        digest = outputs.digest(found) if raw is not None else said["output_sha256"]
        if digest is None:
            raise Conflict(
                "There is no complete answer to compare with: the receipt has no output_sha256."
                if raw is None
                else "There is no answer to compare with: give the saved reply as 'answer'."
            )
        if found is not None and outputs.digest(found) != digest:
            raise rules.refuse(
                "answer", "The answer's choices are not those of the receipt.", "answer_mismatch"
            )
        if asked is None:
            raise rules.missing("request")
        endpoint = CHAT if _api(said) == "chat" else COMPLETIONS
        question = _question(asked, said)
        return Asked(
            source="receipt" if raw is None else "attestation",
            said=said,
            signature=signature,
            output_sha256=digest,
            outputs=found,
            endpoint=endpoint,
            question=question,
            wanted=self._answering.generation(endpoint, question),
            body=body,
        )

    def _signature(self, said: dict[str, Any], raw: str | None, attestation: Any) -> str:
        """See `Asked`. Raises BadRequest for one that is bad."""
        message = self._node.keys.find(said["keyset"])
        if message is None:
            return "unchecked"
        keyset = KeySet.parse(message)
        if raw is None:
            context, data = signing.RECEIPT, receipts.signed_bytes(said)
            id, value = said["key_id"], said["signature"]
        else:
            context, data = signing.ANSWER, raw.encode()
            signature = attestation.get("signature")
            signature = signature if isinstance(signature, Mapping) else {}
            id, value = signature.get("key_id"), signature.get("value")
        key = keyset.receipt_key(id) if isinstance(id, str) else None
        try:
            good = key is not None and signing.check(key, context, data, bytes.fromhex(value))
        except (TypeError, ValueError):
            good = False
        if not good:
            source = "attestation" if raw is not None else "receipt"
            raise rules.refuse(
                source,
                f"The {source} is not what was signed: its signature does not hold under its key "
                "set, which this node knows. Give it exactly as it came.",
                "signature_invalid",
            )
        return "good"


def _question(body: bytes, said: Mapping[str, Any]) -> requests.Asked:
    """The request as it was asked. Raises BadRequest where its seed is another."""
    message: Message = {"method": "POST", "body": body}
    if said["nonce_by"] == "client":
        message["nonce"] = said["nonce"]
    question = requests.take(message)
    seed = None if question.seed is None else exact(question.seed)
    if (seed, question.seed_by) != (said["seed"], said["seed_by"]):
        raise rules.refuse("receipt", "The seed is not that of the request.", "seed_mismatch")
    return question


def _check_same(said: Mapping[str, Any], who: Ran) -> None:
    own, their = who.model or {}, said["model"]
    if their is None or their["name"] != own["name"]:
        name = "none" if their is None else repr(their["name"][:200])
        raise Conflict(
            f"It was made by the model {name}, and this node runs '{own['name']}'.",
            error="model_differs",
        )
    if their["sha256"] != own["sha256"]:
        raise Conflict(
            f"The model's files had the digest {their['sha256'] or 'unknown'}, and those of "
            f"this node have {own['sha256'] or 'one that is not known yet'}.",
            error="weights_differ",
        )
    if said["backend"] != who.backend:
        raise Conflict(
            f"The backend's settings are not the same: {_differing(said, who)}.",
            error="settings_differ",
        )
    if said["forwarded"] not in (None, who.forwarded.as_dict()):
        raise Conflict(
            "This node would ask its backend for something else: its version, or "
            "inference.max_tokens, is not the same.",
            error="settings_differ",
        )


def _api(said: Mapping[str, Any]) -> API:
    path: str = said["endpoint"] if _is_receipt(said) else said["request"]["path"]
    parts = [part.partition("&")[0] for part in path.partition("?")[0].split("/") if part]
    if parts[-2:] == ["chat", "completions"]:
        return "chat"
    if parts[-1:] == ["completions"]:
        return "completions"
    raise Conflict(f"There is no making {path[:200]!r} again: only completions are.")


def _text_of(name: str, given: str | None, said: Mapping[str, Any]) -> bytes | None:
    """The request's or answer's exact bytes: as given, or as the statement has them."""
    part = said["request" if name == "request" else "response"]
    if given is None:
        text = part.get("body")
        data = None if text is None else text.encode()
    else:
        data = given.encode()
        if name == "answer" and not _is_receipt(said):
            data = _backend_answer(data, stream=part["stream"])
    if data is not None and digest_of(data).as_dict() != {
        "sha256": part["sha256"],
        "length": part["length"],
    }:
        raise rules.refuse(
            name,
            f"The {name} is not the one that was signed: its SHA-256 or its length differs. "
            "Give the exact text.",
            f"{name}_mismatch",
        )
    return data


def _is_receipt(said: Mapping[str, Any]) -> bool:
    return bool(said["v"] == receipts.V)


def _backend_answer(saved: bytes, stream: bool) -> bytes:
    """What a statement is about, from the whole reply."""
    return answers.split_stream(saved).answer if stream else answers.split_plain(saved)[0]


def _outputs(answer: bytes, said: Mapping[str, Any]) -> list[Output] | None:
    if said["response"]["stream"]:
        seen = StreamOutputs()
        seen.feed(answer)
        # A statement is about what comes before `[DONE]`, and is made of complete answers only.
        seen.done = seen.done or not _is_receipt(said)
        return seen.outputs()
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return outputs.of_answer(value) if isinstance(value, dict) else None


def _verdict(asked: Asked, record: Record, made: list[Output] | None) -> dict[str, Any]:
    digest = outputs.digest(made)
    match = digest == asked.output_sha256
    differs = None if match or asked.outputs is None else _difference(asked.outputs, made or [])
    return {
        "match": match,
        "output_sha256": {asked.source: asked.output_sha256, "replay": digest},
        "differs": differs,
        "model": record.model,
        "seed": record.seed,
        "seed_by": record.seed_by,
        "receipt": asked.said["id" if asked.source == "receipt" else "receipt"],
        "replay_receipt": record.id,
        "signature": asked.signature,
    }


def _difference(expected: list[Output], got: list[Output]) -> dict[str, Any] | None:
    """Where two answers differ first: `byte` counts in the field's UTF-8."""
    for one, other in zip(expected, got, strict=False):
        for field, was, now in zip(Output._fields, one, other, strict=True):
            if was != now:
                return _place(one.choice, field, _as_text(was), _as_text(now))
    if len(expected) != len(got):
        return _place(min(len(expected), len(got)), "choices", str(len(expected)), str(len(got)))
    return None


def _place(choice: int, field: str, was: str, now: str) -> dict[str, Any]:
    first, second = was.encode(), now.encode()
    pairs = enumerate(zip(first, second, strict=False))
    byte = next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
    # The excerpts begin with the character that the byte is in.
    start = len(first[:byte].decode("utf-8", "ignore"))
    return {
        "choice": choice,
        "field": field,
        "byte": byte,
        "expected": was[start : start + SHOWN],
        "got": now[start : start + SHOWN],
    }


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _differing(said: Mapping[str, Any], who: Ran) -> str:
    their, own = said["backend"] or {}, who.backend
    names = [name for name in ("kind", "where") if their.get(name) != own[name]]
    old, new = their.get("settings") or {}, own["settings"]
    names += [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return ", ".join(names)[:400]
