"""JSON read so that no two readers can understand it differently. Integers stay exact.

What parsers are known to disagree on is refused, with what is wrong and where.
Source: RFC 8259 and its sections 4, 6 and 8 on interoperability.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from ..errors import BadRequest, TooLarge

MAX_DEPTH = 128
MAX_ITEMS = 200_000
"""Of `{`, `[` and `,` in a text: above it parsing blocks the node for seconds."""

_BOM = b"\xef\xbb\xbf"
# A string that nothing closes runs to the end, so that one pass suffices whatever it holds.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRING_OR_BRACKET = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
STRING_OR_STRUCTURE = re.compile(_STRING + rb"|[\[\]{},]", re.DOTALL)
"""Each string as one match, and each bracket or comma outside of strings."""
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_SURE_INTEGER = 300


class _Flaw:
    """Stands in the tree where a value cannot be taken, until its place is known."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


def parse(data: bytes, *, max_items: int = MAX_ITEMS) -> Any:
    """What the JSON text `data` says.

    Raises TooLarge (413) before parsing for over `max_items`, and BadRequest `invalid_json`
    for: not UTF-8, a byte-order mark, not JSON, a repeated key, NaN or infinity, a number
    past a double's range, a lone surrogate, nesting over MAX_DEPTH.
    """
    if data.startswith(_BOM):
        raise invalid("it starts with a byte-order mark; send UTF-8 without one")
    brackets = data.count(b"[") + data.count(b"{")
    if brackets + data.count(b",") > max_items:
        raise TooLarge(f"the JSON has over {max_items:,} of the characters '{{', '[' and ','")
    if brackets > MAX_DEPTH:
        _check_depth(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"it is not UTF-8 at byte {error.start}") from None
    flaws: list[_Flaw] = []
    value = _load(text, flaws)
    if flaws:
        raise invalid(_describe_flaw(value))
    if _SURROGATE_ESCAPE.search(data):
        _check_surrogates(value)
    return value


def invalid(what: str) -> BadRequest:
    """The refusal of a text; `what` is wrong and where."""
    what = what.encode("utf-8", "replace").decode("utf-8")
    return BadRequest(f"invalid JSON: {what}", error="invalid_json")


def _check_depth(data: bytes) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        match data[match.start() : match.start() + 1]:
            case b"[" | b"{":
                depth += 1
                if depth > MAX_DEPTH:
                    raise invalid(f"over {MAX_DEPTH} levels deep at byte {match.start()}")
            case b"]" | b"}":
                depth -= 1


def _load(text: str, flaws: list[_Flaw]) -> Any:
    def flaw(what: str) -> _Flaw:
        flaws.append(_Flaw(what))
        return flaws[-1]

    def pairs(items: list[tuple[str, Any]]) -> Any:
        found = dict(items)
        if len(found) == len(items):
            return found
        seen: set[str] = set()
        for name, _ in items:
            if name in seen:
                return flaw(f"the key {name[:64]!r} stands twice in one object")
            seen.add(name)
        return found

    def decimal(digits: str) -> Any:
        number = float(digits)
        return number if math.isfinite(number) else flaw(f"the number {digits[:32]} is too large")

    def integer(digits: str) -> Any:
        if len(digits) > _LONGEST_SURE_INTEGER and not math.isfinite(float(digits)):
            return flaw(f"the number {digits[:32]}... is too large")
        return int(digits)

    def constant(name: str) -> Any:
        return flaw(f"{name} is not JSON")

    try:
        return json.loads(
            text,
            object_pairs_hook=pairs,
            parse_float=decimal,
            parse_int=integer,
            parse_constant=constant,
        )
    except json.JSONDecodeError as error:
        raise invalid(f"{error.msg} at line {error.lineno}, column {error.colno}") from None


def _check_surrogates(value: Any) -> None:
    for place, node in _walk(value):
        if isinstance(node, str) and _SURROGATE.search(node):
            raise invalid(f"{_path(place)} has one half of a surrogate pair")
        if isinstance(node, dict) and any(map(_SURROGATE.search, node)):
            raise invalid(f"a key in {_path(place)} has one half of a surrogate pair")


def _describe_flaw(value: Any) -> str:
    return next(
        f"{node.what}, in {_path(place)}" for place, node in _walk(value) if isinstance(node, _Flaw)
    )


_Place = tuple[Any, str | int] | None
"""A value's parent's place and its key or index there: a path is only built to be shown."""


def _walk(value: Any) -> Iterator[tuple[_Place, Any]]:
    """Every value with its place, in the order of the text."""
    waiting: list[tuple[_Place, Any]] = [(None, value)]
    while waiting:
        place, node = waiting.pop()
        yield place, node
        if isinstance(node, dict):
            waiting.extend([((place, name), child) for name, child in node.items()][::-1])
        elif isinstance(node, list):
            waiting.extend([((place, n), child) for n, child in enumerate(node)][::-1])


def _path(place: _Place) -> str:
    """As in `messages[0].content`."""
    parts: list[str] = []
    while place is not None:
        place, name = place
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name[:64]}")
    return "".join(reversed(parts)).removeprefix(".") or "the top level"
