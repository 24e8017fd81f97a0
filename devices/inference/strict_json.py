"""A request's body: one JSON object that no two readers can understand differently."""

from __future__ import annotations

from typing import Any

from hyperbeam import BadRequest
from hyperbeam.codecs import json

_PREFIX = "invalid JSON: "


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`, its integers exact.

    Raises what `hyperbeam.codecs.json.decode` raises, in OpenAI's words, and BadRequest for
    an empty body, for what is no object and for top-level keys that differ only in case.
    """
    if not body.strip(b" \t\r\n"):
        raise _invalid("the body is empty; send one JSON object")
    try:
        value = json.decode(body)
    except BadRequest as error:
        raise _invalid(error.detail.removeprefix(_PREFIX)) from None
    if not isinstance(value, dict):
        raise _invalid(f"expected an object, but got {kind_of(value)} instead")
    _check_case(value)
    return value


def kind_of(value: Any) -> str:
    """The JSON type of a value with its article, as OpenAI's messages have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a decimal number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "an array"


def _invalid(what: str) -> BadRequest:
    return BadRequest(
        f"We could not parse the JSON body of your request: {what}.", error="invalid_json"
    )


def _check_case(value: dict[str, Any]) -> None:
    seen: dict[str, str] = {}
    for name in value:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise _invalid(f"the keys {other[:64]!r} and {name[:64]!r} differ only in case")
