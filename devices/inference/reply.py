"""A device's reply message with a JSON body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hyperbeam import Message, MethodNotAllowed

from .errors import JSON

NO_STORE = {"cache-control": "no-store"}


def dump(value: Any) -> bytes:
    """JSON as this device writes it: without spaces, UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace")


def reply(
    value: Mapping[str, Any] | bytes,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    kind: str = JSON,
) -> Message:
    """`value`, or the text of the content type `kind` that it already is."""
    return {
        **(headers or {}),
        "status": status,
        "content-type": kind,
        "body": value if isinstance(value, bytes) else dump(value),
    }


def allow(request: Message, *methods: str) -> None:
    """Raise MethodNotAllowed for any other method."""
    method = str(request.get("method") or "GET").upper()
    if method not in methods:
        raise MethodNotAllowed(
            f"Not allowed to {method} here: use {' or '.join(methods)}.",
            headers={"allow": ", ".join(methods)},
        )
