"""A client's request, read and turned into what the backend is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hyperbeam import BadRequest, HyperbeamError, Message
from hyperbeam.codecs import form
from hyperbeam.verify.seed import derive

from . import members, options, rules
from .errors import JSON
from .options import Tee
from .strict_json import parse_object
from .validate import API, LIMITS, MAX_SEED, is_prompt_list, validate

USAGE = {"include_usage": True}
MAX_CALLS = 128
"""Choices of one request where each is a call of its own: what OpenAI's API takes."""
OWN = ("tee", "nonce")
"""Fields that are for the node, not for its backends."""

_NODE_FIELDS = frozenset({"tee", "nonce", "n", "best_of", "echo", "suffix"})
_OPTIONAL = frozenset(
    {
        "model", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed",
        "stream", "stream_options", "frequency_penalty", "presence_penalty", "logit_bias",
        "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
        "response_format", "functions", "function_call", "modalities", "user",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digest:
    """SHA-256 (hex) of a text, and its bytes."""

    sha256: str
    length: int

    def as_dict(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "length": self.length}


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest(), len(data))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the client sent it, read as strictly as any.

    `body`: its exact bytes; `fields`: what they say, empty where they are no JSON (`kind`: their
    content type). `nonce`: the client's, None without one. `seed`: the client's or one that is
    made of the body; None where the endpoint has none, or what the client gave is no integer.
    """

    body: bytes
    fields: Mapping[str, Any]
    kind: str
    tee: Tee
    nonce: str | None
    seed: int | None
    seed_by: str | None

    @property
    def model(self) -> str:
        """The model's name as the client wrote it, "" without one."""
        name = self.fields.get("model")
        return name if isinstance(name, str) else _model_of(self)

    @property
    def stream(self) -> bool:
        return self.fields.get("stream") is True

    def passed(self) -> bytes:
        """What a node that takes the client's own bytes is sent: no `tee` and `nonce`, a seed."""
        if self.kind != JSON:
            return self.body
        taken = [name for name in OWN if name in self.fields]
        missing = self.seed is not None and self.fields.get("seed") is None
        if missing and "seed" in self.fields:
            taken.append("seed")
        body = members.without(self.body, taken) if taken else self.body
        return members.with_member(body, "seed", self.seed or 0) if missing else body

    def naming(self, model: str) -> Asked:
        """The same to a server of one model, which would else repeat whatever name it is given."""
        if self.kind != JSON or self.fields.get("model") == model:
            return self
        body = members.with_member(members.without(self.body, ("model",)), "model", model)
        return replace(self, body=body, fields={**self.fields, "model": model})


def _model_of(asked: Asked) -> str:
    """The model that a form names. Raises BadRequest for a form that names two."""
    if not asked.kind.lower().startswith("multipart/"):
        return ""
    return form.text_field(asked.body, asked.kind, "model")


@dataclass(slots=True)
class Call:
    """One request to the backend, which makes the choice `index` of the answer.

    `first`: it is the first for its prompt, so that its prompt's tokens count. `stride`: of
    several prompts in one call, choice k of the call's is `index + k * stride` of the answer's.
    `text`: the body where it is not to be made of `fields`.
    """

    index: int
    first: bool
    fields: dict[str, Any]
    stride: int = 0
    text: bytes | None = field(default=None, repr=False)

    def body(self, keep: bool = False) -> bytes:
        """The JSON that the backend gets; `keep` it for the next call."""
        body = self.text
        if body is None:
            text = json.dumps(self.fields, ensure_ascii=False, separators=(",", ":"))
            body = text.encode()
            if keep:
                self.text = body
        return body


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that has passed every check.

    `body`: the client's exact bytes. `nonce`: the client's, None without one.
    `alternatives`: how many of each token's alternatives the client is to see, where
    that is not what the backend sends; None leaves log probabilities as they are.
    """

    api: API
    body: bytes
    calls: list[Call]
    stream: bool
    include_usage: bool
    seed: int
    seed_by: str
    alternatives: int | None
    nonce: str | None
    tee: Tee

    @property
    def rewritten(self) -> bool:
        """Whether a stream has to be taken apart before the client gets it."""
        return len(self.calls) > 1 or self.alternatives is not None

    def forwarded(self) -> Digest:
        """Of what the backend is sent.

        Where that is several bodies: of all of them in the order of the choices, each behind
        its length in four bytes, the highest first.
        """
        if len(self.calls) == 1:
            return digest_of(self.calls[0].body(keep=True))
        whole = hashlib.sha256()
        length = 0
        for call in self.calls:
            body = call.body()
            framed = len(body).to_bytes(4, "big") + body
            whole.update(framed)
            length += len(framed)
        return Digest(whole.hexdigest(), length)


def take(request: Message, *, seeded: bool = True) -> Asked:
    """Read a request message (`body`: bytes; `tee` and `nonce`: see `options`).

    `seeded`: whether a seed belongs to it. Raises BadRequest, TooLarge; 415 for an encoded body.
    """
    body = _body(request)
    fields = parse_object(body)
    tee, nonce = options.take(fields, request)
    if not seeded:
        return Asked(body, fields, JSON, tee, nonce, None, None)
    seed = fields.get("seed")
    if seed is None:
        return Asked(body, fields, JSON, tee, nonce, derive(body, nonce), "node")
    number = seed if isinstance(seed, int) and not isinstance(seed, bool) else None
    return Asked(body, fields, JSON, tee, nonce, number, "client")


def take_any(request: Message, *, seeded: bool = False) -> Asked:
    """As `take`, for endpoints whose body need not be JSON, or be there at all.

    Raises BadRequest also for `tee`: nothing else than completions is attested.
    """
    kind = str(request.get("content-type") or JSON)
    body = request.get("body") or b""
    if body and not _is_raw(kind):
        asked = take(request, seeded=seeded)
    else:
        tee, nonce = options.take({}, request)
        asked = Asked(_body(request), {}, kind if body else "", tee, nonce, None, None)
    if asked.tee:
        raise rules.refuse(
            "tee",
            "Only answers of chat/completions and completions are attested: leave 'tee' out.",
            "unsupported_value",
        )
    return asked


def _is_raw(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media.startswith(("multipart/", "audio/", "image/", "video/")) or (
        media == "application/octet-stream"
    )


def _body(request: Message) -> bytes:
    encoding = str(request.get("content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise HyperbeamError(
            f"The body is encoded with {encoding[:64]!r}; send it without a content-encoding.",
            status=415,
            error="unsupported_content_encoding",
        )
    body = request.get("body") or b""
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes):
        raise BadRequest("The body has to be a JSON object.", error="invalid_json")
    return body


def read(
    api: API,
    request: Message,
    *,
    model: str,
    max_tokens: int,
    tools: bool,
) -> Generation:
    """`generation` of what `take` reads."""
    return generation(api, take(request), model=model, max_tokens=max_tokens, tools=tools)


def generation(api: API, asked: Asked, *, model: str, max_tokens: int, tools: bool) -> Generation:
    """What a backend is asked whose answers are assembled: its calls, every field checked.

    `model` is the name of the model that runs, `tools` whether it can call any. Raises
    BadRequest.
    """
    fields = asked.fields
    validate(api, fields)
    if not tools and fields.get("tools") and fields.get("tool_choice") != "none":
        raise rules.refuse(
            "tools", f"The model '{model}' calls no tools: leave 'tools' out.", "unsupported_value"
        )
    seed = asked.seed or 0
    stream = asked.stream
    include_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
    sent, alternatives = _ask(api, fields, max_tokens)
    prompts = _prompts(fields) if api == "completions" else None
    n = fields.get("n") or 1
    alone = n * len(prompts or [None]) == 1
    if not stream or not alone or alternatives is not None:
        sent["stream_options"] = USAGE
    sent.update(model=model, stream=True)
    return Generation(
        api=api,
        body=asked.body,
        calls=_calls(sent, prompts, n, seed),
        stream=stream,
        include_usage=include_usage,
        seed=seed,
        seed_by=asked.seed_by or "node",
        alternatives=alternatives,
        nonce=asked.nonce,
        tee=asked.tee,
    )


def choices(api: API, asked: Asked, max_seed: int) -> Generation | None:
    """The calls for several choices, choice k with the seed + k; None where one call will do."""
    fields = asked.fields
    n, seed = fields.get("n"), asked.seed
    if not isinstance(n, int) or isinstance(n, bool) or n < 2 or seed is None:
        return None
    rules.integer(fields, "n", 1, MAX_CALLS)
    rest = members.without(asked.body, (*OWN, "n", "seed"))
    calls = [
        Call(k, k == 0, {}, n, members.with_member(rest, "seed", (seed + k) % (max_seed + 1)))
        for k in range(n)
    ]
    options = fields.get("stream_options")
    return Generation(
        api=api,
        body=asked.body,
        calls=calls,
        stream=asked.stream,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        seed=seed,
        seed_by=asked.seed_by or "node",
        alternatives=None,
        nonce=asked.nonce,
        tee=asked.tee,
    )


def _ask(api: API, fields: Mapping[str, Any], max_tokens: int) -> tuple[dict[str, Any], int | None]:
    """The backend's fields before prompt and seed, and how many alternatives to show."""
    asked = {
        name: value
        for name, value in fields.items()
        if name not in _NODE_FIELDS and not (value is None and name in _OPTIONAL)
    }
    if asked.get("stop") == []:
        del asked["stop"]
    if all(asked.get(name) is None for name in LIMITS):
        asked["max_tokens"] = max_tokens
    # The embedded server gives no log probabilities at all for zero alternatives.
    if api == "completions" and "logprobs" in asked:
        shown = asked["logprobs"]
        asked["logprobs"] = max(1, shown)
        return asked, shown
    if api == "chat" and asked.get("logprobs") and not asked.get("top_logprobs"):
        asked["top_logprobs"] = 1
        return asked, 0
    return asked, None


def _prompts(fields: Mapping[str, Any]) -> list[Any]:
    prompt = fields["prompt"]
    return list(prompt) if is_prompt_list(prompt) else [prompt]


def _calls(asked: dict[str, Any], prompts: list[Any] | None, n: int, seed: int) -> list[Call]:
    """One call a choice: choice k of a prompt runs with seed + k, each prompt as if alone."""
    calls: list[Call] = []
    for prompt in prompts or [None]:
        for k in range(n):
            fields = {**asked, "seed": (seed + k) % (MAX_SEED + 1)}
            if prompts is not None:
                fields["prompt"] = prompt
            calls.append(Call(index=len(calls), first=k == 0, fields=fields))
    return calls
