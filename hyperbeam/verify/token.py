"""Tokens: a list of evidence as one string, base64 of its JSON, which clients post on."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from .checks import Malformed
from .reading import read_json

MALFORMED = "token-malformed"
MAX_CHARACTERS = 6 << 20
"""Of 16 GPUs with the largest reports and chains that are taken."""
_MAX_ITEMS = 10_000


def encode(evidences: list[Any]) -> str:
    """The token for a list of evidence."""
    data = json.dumps(evidences, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(data.encode()).decode()


def decode(text: Any) -> list[Any]:
    """The list of evidence in a token. Raises Malformed `token-malformed`."""
    if not isinstance(text, str):
        raise Malformed("the token is not a text", MALFORMED)
    if len(text) > MAX_CHARACTERS:
        raise Malformed(f"the token is over {MAX_CHARACTERS >> 20} MiB", MALFORMED)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("the token is not base64", MALFORMED) from None
    if base64.b64encode(data).decode() != text:
        raise Malformed("the token's base64 has bits left over", MALFORMED)
    if not (data.startswith(b"[") and data.endswith(b"]")):
        raise Malformed("the token is not base64 of a list of evidence alone", MALFORMED)
    value: list[Any] = read_json(data, "the token", MALFORMED, _MAX_ITEMS)
    return value
