"""OpenAI's error object: written for every refusal, read from whatever a backend answers.

Shape: `{"error": {"message", "type", "param", "code"}}`. The SDKs choose their
exception class by the status alone; programs look at `code`.
Source: OpenAI API reference, "Error codes".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hyperbeam import (
    BadGateway,
    BadRequest,
    GatewayTimeout,
    HyperbeamError,
    Message,
    TooLarge,
    Unavailable,
)

JSON = "application/json"
NO_RETRY = {"x-should-retry": "false"}
"""Read by OpenAI's SDKs, which else repeat every 5xx twice."""

UNAVAILABLE = "attestation_unavailable"
_NODE_WORDS = frozenset({UNAVAILABLE, "loading", "draining", "no_backend", "backend_failed"})
"""Codes of another node's 503 that say more than `overloaded`."""
_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_WORDS: Mapping[int, str] = {
    401: "invalid_api_key", 403: "permission_denied", 404: "not_found", 405: "method_not_allowed",
}  # fmt: skip
_MESSAGE_LIMIT = 2000
_CODES: Mapping[str, str | None] = {"bad_request": None, "not_found": "unknown_url"}
_ANTHROPIC: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# llama.cpp answers 500 where its reader of the request throws; these are the reader's words.
_READER_FAILED = ("Failed to parse", "json.exception", "Unknown reasoning format")


def render(error: HyperbeamError, anthropic: bool = False) -> Message:
    """The reply message for `error`: its status, its headers and OpenAI's error object.

    `anthropic`: in the shape of Anthropic's Messages API, `{"type": "error", "error": {"type",
    "message"}}`; the other members stand beside these two.
    """
    body: dict[str, Any] = {"error": error_object(error)}
    if anthropic:
        kind = _ANTHROPIC.get(error.status, "api_error")
        body = {"type": "error", "error": {**body["error"], "type": kind}}
    return {
        **error.headers,
        "status": error.status,
        "content-type": JSON,
        "body": json.dumps(body, ensure_ascii=False).encode(),
    }


def error_object(error: HyperbeamError) -> dict[str, Any]:
    """The inner object: `message`, `type`, `param`, `code`."""
    return {
        "message": error.detail,
        "type": _type(error.status),
        "param": error.param,
        "code": _CODES.get(error.error, error.error),
    }


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def from_backend(
    status: int,
    body: bytes | Mapping[str, Any],
    param: str,
    *,
    retry_after: str = "",
    forwarded: bool = False,
) -> HyperbeamError:
    """The refusal for a backend's error reply, nested (OpenAI, llama.cpp) or flat (SGLang).

    `param` is the field that holds the prompt: it is at fault when the context is too small.
    `retry_after`: that header of the reply. `forwarded`: the backend saw the client's own key.
    """
    error, answered = _error_of(body), status
    kind = str(error.get("type") or "")
    message = str(error.get("message") or "")[:_MESSAGE_LIMIT]
    code = error.get("code")
    word = code if isinstance(code, str) and _WORD.match(code) else ""
    if 400 <= status < 600:
        pass
    elif isinstance(code, int) and 400 <= code < 600:
        status = code
    else:
        status = 500
    if kind == "exceed_context_size_error" or "maximum context length" in message:
        return BadRequest(
            _context_message(error, message, param), error="context_length_exceeded", param=param
        )
    if status == 413:
        return TooLarge(message)
    if status in (429, 503, 529):
        return _busy(message, word, retry_after)
    if status == 504:
        return GatewayTimeout(message)
    if status in (401, 403) and not forwarded:
        return BadGateway("The backend refused the node's own key.", error="backend_error")
    if status < 500:
        named = error.get("param")
        return HyperbeamError(
            message or f"The backend refused the request with status {status}.",
            status=status,
            error=word or _WORDS.get(status, "bad_request"),
            param=named if isinstance(named, str) else None,
        )
    if status == 501 or message.startswith(_READER_FAILED):
        return BadRequest(message or "The backend cannot do this.")
    return BadGateway(
        f"The backend failed: {message or f'status {answered}'}", error="backend_error"
    )


def _busy(message: str, word: str, retry_after: str) -> Unavailable:
    """Another node may do better, unless `word` says that this is no matter of time."""
    sound = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 7
    error = Unavailable(
        message or "The backend takes no more requests now.",
        error=word if word in _NODE_WORDS else "overloaded",
        retry_after=int(retry_after) if sound else 1,
        param="tee" if word == UNAVAILABLE else None,
    )
    return permanent(error) if word in _NODE_WORDS and not sound else error


def permanent(error: Unavailable) -> Unavailable:
    """Tell clients that no later try will do better."""
    error.headers.pop("retry-after", None)
    error.headers.update(NO_RETRY)
    return error


def _error_of(body: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(body, bytes):
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):
            return {"message": body[:200].decode("utf-8", "replace").strip()}
    else:
        value = body
    if not isinstance(value, Mapping):
        return {}
    error = value.get("error") or value.get("detail") or value
    if isinstance(error, Mapping):
        return error
    # FastAPI's own refusals: `detail` is a text, or a list of what is wrong where.
    text = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    return {"message": text}


def _context_message(error: Mapping[str, Any], message: str, param: str) -> str:
    have, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(have, int) or not isinstance(limit, int):
        return message
    return (
        f"This model's maximum context length is {limit} tokens. However, your {param} "
        f"resulted in {have} tokens. Please reduce the length of the {param}."
    )
