"""OpenAI's error object: written for every refusal, read from whatever a backend answers.

Shape: `{"error": {"message", "type", "param", "code"}}`. The SDKs choose their
exception class by the status alone; programs look at `code`.
Source: OpenAI API reference, "Error codes".
"""

from __future__ import annotations

import json
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

_MESSAGE_LIMIT = 2000
_CODES: Mapping[str, str | None] = {"bad_request": None, "not_found": "unknown_url"}
# llama.cpp answers 500 where its reader of the request throws; these are the reader's words.
_READER_FAILED = ("Failed to parse", "json.exception", "Unknown reasoning format")


def render(error: HyperbeamError) -> Message:
    """The reply message for `error`: its status, its headers and OpenAI's error object."""
    body = {"error": error_object(error)}
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


def from_backend(status: int, body: bytes | Mapping[str, Any], param: str) -> HyperbeamError:
    """The refusal for a backend's error reply, nested (OpenAI, llama.cpp) or flat (SGLang).

    `param` is the field that holds the prompt: it is at fault when the context is too small.
    """
    error = _error_of(body)
    kind = str(error.get("type") or "")
    message = str(error.get("message") or "")[:_MESSAGE_LIMIT]
    code = error.get("code")
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
    if status == 429 or status == 503:
        return Unavailable(message or "The backend takes no more requests now.", error="overloaded")
    if status == 504:
        return GatewayTimeout(message)
    if status in (401, 403):
        return BadGateway("The backend refused the node's own key.", error="backend_error")
    if status < 500:
        word = code if isinstance(code, str) else "bad_request"
        named = error.get("param")
        return BadRequest(
            message or f"The backend refused the request with status {status}.",
            error=word,
            param=named if isinstance(named, str) else None,
        )
    if status == 501 or message.startswith(_READER_FAILED):
        return BadRequest(message or "The backend cannot do this.")
    return BadGateway(f"The backend failed: {message or f'status {status}'}", error="backend_error")


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
    error = value.get("error", value)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, Mapping) else {}


def _context_message(error: Mapping[str, Any], message: str, param: str) -> str:
    have, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(have, int) or not isinstance(limit, int):
        return message
    return (
        f"This model's maximum context length is {limit} tokens. However, your {param} "
        f"resulted in {have} tokens. Please reduce the length of the {param}."
    )
