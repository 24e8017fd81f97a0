"""The words in which OpenAI refuses a field, and the checks that many fields share.

Every check takes the object that holds the field, treats null as missing, and
raises BadRequest with `param` and OpenAI's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyperbeam import BadRequest

from .strict_json import kind_of


def refuse(param: str, message: str, code: str) -> BadRequest:
    """400 for one field."""
    return BadRequest(message, error=code, param=param)


def missing(param: str) -> BadRequest:
    """400 for a field that has to be there."""
    return refuse(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")


def wrong_type(param: str, expected: str, value: Any) -> BadRequest:
    """400 for a value of the wrong JSON type; `expected` with its article."""
    return refuse(
        param,
        f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead.",
        "invalid_type",
    )


def wrong_value(param: str, value: Any, supported: Sequence[str]) -> BadRequest:
    """400 for a word that is none of `supported`."""
    words = ", ".join(f"'{word[:64]}'" for word in supported[:20])
    return refuse(
        param,
        f"Invalid value: {str(value)[:100]!r}. Supported values are: {words}.",
        "invalid_value",
    )


def unsupported(param: str, why: str) -> BadRequest:
    """400 for something that this node's model cannot do."""
    return refuse(param, f"Unsupported parameter: '{param}'. {why}", "unsupported_parameter")


def empty_array(param: str) -> BadRequest:
    """400 for a list that must have at least one element."""
    return refuse(
        param,
        f"Invalid '{param}': empty array. "
        "Expected an array with minimum length 1, but got an empty array instead.",
        "empty_array",
    )


def array_too_long(param: str, limit: int, length: int) -> BadRequest:
    """400 for a list of more than `limit` elements."""
    return refuse(
        param,
        f"Invalid '{param}': array too long. Expected an array with maximum length {limit}, "
        f"but got an array with length {length} instead.",
        "array_above_max_length",
    )


def boolean(fields: Mapping[str, Any], name: str, param: str = "") -> None:
    """A field that is true or false."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(param or name, "a boolean", value)


def string(fields: Mapping[str, Any], name: str, param: str = "") -> None:
    """A field that is a text."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_type(param or name, "a string", value)


def mapping(fields: Mapping[str, Any], name: str, param: str = "") -> None:
    """A field that is an object."""
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise wrong_type(param or name, "an object", value)


def integer(fields: Mapping[str, Any], name: str, low: int, high: int, param: str = "") -> None:
    """A field that is a whole number from `low` to `high`; true and 1.0 are none."""
    value = fields.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(param or name, "an integer", value)
    _in_range(param or name, value, low, high, "integer")


def number(fields: Mapping[str, Any], name: str, low: float, high: float, param: str = "") -> None:
    """A field that is a number from `low` to `high`."""
    value = fields.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(param or name, "a decimal number", value)
    _in_range(param or name, value, low, high, "decimal")


def _in_range(param: str, value: float, low: float, high: float, word: str) -> None:
    if value < low:
        end, sign, limit, code = "below minimum value", ">=", low, f"{word}_below_min_value"
    elif value > high:
        end, sign, limit, code = "above maximum value", "<=", high, f"{word}_above_max_value"
    else:
        return
    raise refuse(
        param,
        f"Invalid '{param}': {word} {end}. "
        f"Expected a value {sign} {limit}, but got {str(value)[:40]} instead.",
        code,
    )
