import asyncio

import pytest

from hyperbeam import (
    BadGateway,
    BadRequest,
    GatewayTimeout,
    HyperbeamError,
    NotFound,
    TooLarge,
    Unavailable,
)
from hyperbeam.routing.outcome import Outcome, outcome, retry_after


@pytest.mark.parametrize(
    ("error", "expected", "counts", "retry"),
    [
        (BadGateway(error="backend_unreachable"), Outcome.REFUSED, True, True),
        (GatewayTimeout(error="connect_timeout"), Outcome.TIMED_OUT, True, True),
        (Unavailable(error="overloaded"), Outcome.BUSY, False, True),
        (Unavailable(error="draining"), Outcome.BUSY, False, True),
        (Unavailable(error="loading"), Outcome.NOT_READY, False, True),
        (Unavailable(error="no_backend"), Outcome.NOT_READY, False, True),
        (Unavailable(error="backend_failed"), Outcome.NOT_READY, False, True),
        (BadGateway(error="backend_died"), Outcome.FAILED, True, False),
        (BadGateway(error="backend_invalid"), Outcome.FAILED, True, False),
        (HyperbeamError(error="backend_error", status=500), Outcome.FAILED, True, False),
        (GatewayTimeout(error="first_byte_timeout"), Outcome.FAILED, True, False),
        (GatewayTimeout(error="idle_timeout"), Outcome.FAILED, True, False),
        (GatewayTimeout(error="total_timeout"), Outcome.FAILED, True, False),
        (BadGateway(error="response_too_large"), Outcome.NEUTRAL, False, False),
        (BadRequest(), Outcome.NEUTRAL, False, False),
        (NotFound("x"), Outcome.NEUTRAL, False, False),
        (TooLarge(), Outcome.NEUTRAL, False, False),
        (HyperbeamError(error="rate_limit_exceeded", status=429), Outcome.NEUTRAL, False, False),
        (Unavailable(error="attestation_unavailable"), Outcome.NEUTRAL, False, False),
        (asyncio.CancelledError(), Outcome.NEUTRAL, False, False),
        (ValueError(), Outcome.NEUTRAL, False, False),
    ],
)
def test_errors_are_told_apart(
    error: BaseException, expected: Outcome, counts: bool, retry: bool
) -> None:
    found = outcome(error)
    assert (found, found.counts, found.retry) == (expected, counts, retry)


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("0", 0.0), ("soon", 1.0), ("-1", 1.0), ("9" * 400, 1.0)]
)
def test_how_long_to_wait(text: str, seconds: float) -> None:
    assert retry_after(Unavailable(headers={"retry-after": text})) == seconds
    assert retry_after(ValueError()) == 1.0
