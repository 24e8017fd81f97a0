import json
from typing import Any

import pytest

from devices.inference.errors import from_backend, render
from hyperbeam import (
    BadGateway,
    BadRequest,
    Forbidden,
    GatewayTimeout,
    HyperbeamError,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
)

REQUEST, SERVER = "invalid_request_error", "server_error"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (BadRequest("x"), REQUEST, None),
        (BadRequest("x", error="invalid_type", param="n"), REQUEST, "invalid_type"),
        (Unauthorized("x"), REQUEST, "unauthorized"),
        (Forbidden("x"), REQUEST, "forbidden"),
        (NotFound("m", error="model_not_found"), REQUEST, "model_not_found"),
        (MethodNotAllowed("x", headers={"allow": "POST"}), REQUEST, "method_not_allowed"),
        (TooLarge("x"), REQUEST, "too_large"),
        (HyperbeamError("x", status=429, error="rate_limited"), "rate_limit_error", "rate_limited"),
        (HyperbeamError("x"), SERVER, "internal_error"),
        (BadGateway("x"), SERVER, "bad_gateway"),
        (Unavailable("x", error="loading", retry_after=7), SERVER, "loading"),
        (GatewayTimeout("x"), SERVER, "gateway_timeout"),
    ],
)
def test_every_refusal_is_openais_error_object(
    error: HyperbeamError, kind: str, code: str | None
) -> None:
    reply = render(error)
    assert reply["status"] == error.status
    assert reply["content-type"] == "application/json"
    assert error.headers.items() <= reply.items()
    assert json.loads(reply["body"]) == {
        "error": {"message": error.detail, "type": kind, "param": error.param, "code": code}
    }


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"code": 400, "type": "exceed_context_size_error", "message": "x"}},
        {"message": "longer than the model's maximum context length (5)", "code": 400},
    ],
)
def test_a_context_that_is_too_small_is_named(error: Any) -> None:
    refused = from_backend(400, json.dumps(error).encode(), "prompt")
    assert (refused.status, refused.error, refused.param) == (
        400,
        "context_length_exceeded",
        "prompt",
    )


def test_an_event_with_a_status_of_its_own_has_it() -> None:
    refused = from_backend(200, {"error": {"message": "queue full", "code": 503}}, "prompt")
    assert (refused.status, refused.error) == (503, "overloaded")
    assert "retry-after" in refused.headers


@pytest.mark.parametrize("value", ["[]", "5", '{"error": 5}', '{"error": "broke"}', "\xff", ""])
def test_any_reply_can_be_read(value: str) -> None:
    refused = from_backend(500, value.encode("latin-1"), "prompt")
    assert refused.status == 502
    assert refused.detail
