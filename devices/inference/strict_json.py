"""A request's body, read so that no two readers can understand it differently.

What the node hashes is what the backend runs: whatever parsers are known to
disagree on is refused. Integers stay exact.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from hyperbeam import BadRequest, TooLarge

MAX_MARKS = 200_000
"""Of `{`, `[` and `,` in a body: above it parsing blocks the node for seconds."""
MAX_DEPTH = 128

_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_SURE_INTEGER = 300


class _Flaw:
    """Stands in the tree where a value cannot be taken, until its place is known."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises TooLarge (413) before parsing for over MAX_MARKS, and BadRequest that says
    what is wrong and where for: not UTF-8, a byte-order mark, not JSON, not an object,
    a repeated key, NaN or infinity, a number past a double's range, a lone surrogate,
    nesting over MAX_DEPTH, top-level keys that differ only in case.
    """
    if not body.strip(b" \t\r\n"):
        raise _invalid("the body is empty; send one JSON object")
    if body.startswith(_BOM):
        raise _invalid("it starts with a byte-order mark; send UTF-8 without one")
    marks = body.count(b"{") + body.count(b"[") + body.count(b",")
    if marks > MAX_MARKS:
        raise TooLarge(
            f"The body has {marks} of the characters '{{', '[' and ','; "
            f"at most {MAX_MARKS} are read."
        )
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8 at byte {error.start}") from None
    flaws: list[_Flaw] = []
    value = _parse(text, flaws)
    _check_depth(value, body)
    if flaws:
        raise _invalid(_describe_flaw(value))
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
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
    what = what.encode("utf-8", "replace").decode("utf-8")
    return BadRequest(
        f"We could not parse the JSON body of your request: {what}.", error="invalid_json"
    )


def _parse(text: str, flaws: list[_Flaw]) -> Any:
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
        raise _invalid(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> BadRequest:
    return _invalid(f"it is nested more than {MAX_DEPTH} levels deep")


def _check_depth(value: Any, body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]


def _check_surrogates(value: Any) -> None:
    for place, node in _walk(value):
        if isinstance(node, str) and _SURROGATE.search(node):
            raise _invalid(f"{_path(place)} has one half of a surrogate pair")
        if isinstance(node, dict) and any(map(_SURROGATE.search, node)):
            raise _invalid(f"a key in {_path(place)} has one half of a surrogate pair")


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


def _check_case(value: dict[str, Any]) -> None:
    seen: dict[str, str] = {}
    for name in value:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise _invalid(f"the keys {other[:64]!r} and {name[:64]!r} differ only in case")
