"""A client's request, read and turned into what the backend is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hyperbeam import BadRequest, HyperbeamError, Message
from hyperbeam.verify.seed import derive

from . import options, rules
from .options import Tee
from .strict_json import parse_object
from .validate import API, LIMITS, MAX_SEED, is_prompt_list, validate

USAGE = {"include_usage": True}

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


@dataclass(slots=True)
class Call:
    """One request to the backend, which makes the choice `index` of the answer.

    `first`: it is the first for its prompt, so that its prompt's tokens count.
    """

    index: int
    first: bool
    fields: dict[str, Any]
    _body: bytes | None = field(default=None, init=False, repr=False)

    def body(self, keep: bool = False) -> bytes:
        """The JSON that the backend gets; `keep` it for the next call."""
        body = self._body
        if body is None:
            text = json.dumps(self.fields, ensure_ascii=False, separators=(",", ":"))
            body = text.encode()
            if keep:
                self._body = body
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


def read(
    api: API,
    request: Message,
    *,
    model: str,
    max_tokens: int,
    tools: bool,
) -> Generation:
    """Read a request message (`body`: bytes; `tee` and `nonce`: see `options`).

    `model` is the name of the model that runs, `tools` whether it can call any. Raises
    BadRequest, TooLarge.
    """
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
    fields = parse_object(body)
    tee, nonce = options.take(fields, request)
    validate(api, fields)
    if not tools and fields.get("tools") and fields.get("tool_choice") != "none":
        raise rules.refuse(
            "tools", f"The model '{model}' calls no tools: leave 'tools' out.", "unsupported_value"
        )
    seed = fields.get("seed")
    seed_by = "node" if seed is None else "client"
    if seed is None:
        seed = derive(body, nonce)
    stream = bool(fields.get("stream"))
    include_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
    asked, alternatives = _ask(api, fields, max_tokens)
    prompts = _prompts(fields) if api == "completions" else None
    alone = (fields.get("n") or 1) * len(prompts or [None]) == 1
    if not stream or not alone or alternatives is not None:
        asked["stream_options"] = USAGE
    asked.update(model=model, stream=True)
    return Generation(
        api=api,
        body=body,
        calls=_calls(asked, prompts, fields.get("n") or 1, seed),
        stream=stream,
        include_usage=include_usage,
        seed=seed,
        seed_by=seed_by,
        alternatives=alternatives,
        nonce=nonce,
        tee=tee,
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
