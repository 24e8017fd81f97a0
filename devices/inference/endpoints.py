"""The endpoints, by the paths that routes match and nodes are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from hyperbeam import BadRequest, Message, NotFound

from . import marks, options
from .validate import API

ROOT = "/~inference@1.0/"
OTHERS = (
    "responses", "messages", "tokenize", "detokenize", "rerank", "score", "audio", "images",
    "moderations",
)  # fmt: skip
"""First parts of the paths that are passed through, beside those that are known here."""
LIMITS: Mapping[str, str] = {
    "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens",
}  # fmt: skip
"""The endpoints beside completions by which a model writes, and how they limit it."""
_SAFE = "!$&'()*+,;=:@~"
_DOTS = frozenset({".", ".."})
_MESSAGES = re.compile(r"/(?:~inference@1\.0/)?(?:v1/)?messages(?:[/&?]|\Z)", re.I)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path`: as in `/v1/embeddings`, with the query for nodes in `query`; `api`: of completions
    only. `method`: in capitals."""

    path: str
    api: API | None = None
    method: str = "POST"
    query: str = ""

    @property
    def name(self) -> str:
        """The path as receipts name it, whichever of its other names was called."""
        return ROOT + self.path.removeprefix("/v1/")[:500]


CHAT = Endpoint("/v1/chat/completions", "chat")
COMPLETIONS = Endpoint("/v1/completions", "completions")
EMBEDDINGS = Endpoint("/v1/embeddings")


def other(first: str, rest: Sequence[str], request: Message) -> Endpoint:
    """One that is passed through: its parts, its method and its query are the request's own.

    Raises NotFound, BadRequest for parts that no path to a node can have.
    """
    if any(part in _DOTS or not part for part in rest):
        raise NotFound("/".join(rest), "A path has no empty and no dot segments.")
    path = "/".join(("/v1", first, *(quote(part, safe=_SAFE) for part in rest)))
    method = str(request.get("method") or "GET").upper()
    target = marks.target(request)
    query = "" if marks.in_sub_path(request) else target.partition("?")[2]
    if query and any(name in ("tee", "x-tee", "nonce", "x-nonce") for name, _ in _pairs(query)):
        raise BadRequest(
            "Only answers of chat/completions and completions are attested: leave 'tee' and "
            "'nonce' out.",
            error="unsupported_value",
            param="tee",
        )
    return Endpoint(path, None, method, query)


def is_messages(path: str) -> bool:
    """Whether a request's path is one of Anthropic's Messages API."""
    return _MESSAGES.match(path) is not None


def _pairs(query: str) -> Sequence[tuple[str, str | bool]]:
    return list(options.written("?" + query))
