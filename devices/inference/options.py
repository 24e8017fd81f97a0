"""`tee` and `nonce`: read wherever a request says them, so that it cannot say two things.

They may come from the body, from the query or the last part of the path, and from the headers
`tee`, `x-tee`, `nonce` and `x-nonce`. What calls a key is merged already, a later one over an
earlier one; the target as it was sent (`marks.target`) still has all of them.
Source of the grammar: `hyperbeam.path`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import unquote

from hyperbeam import BadRequest, Message

from . import marks, rules

Tee = Literal["", "full", "digest", "batch"]
"""Which evidence a request asks for: none, one of its own with the bodies or only their
digests in the statement, or one that it shares with others."""
_TEE: Mapping[str, Tee] = {
    "false": "", "0": "", "true": "full", "1": "full", "digest": "digest", "batch": "batch",
}  # fmt: skip
_NAMES = ("tee", "nonce")
_KEYS = ("tee", "nonce", "x-tee", "x-nonce")
_NONCE = re.compile(r"[0-9a-f]{64}\Z")
_SCOPE = re.compile(r"-?[0-9]+\.([^.]+)\Z")
_TYPE_MARK = re.compile(r"[+ ]")


def take(fields: Mapping[str, Any], request: Message) -> tuple[Tee, str | None]:
    """`tee` and the client's nonce, from the body's `fields` and all else in the request.

    Raises BadRequest for a value that is none, and where two places do not say the same.
    """
    _check_case(fields)
    if _is_silent(fields, request):
        return "", None
    tees = {_tee(value) for value in _said("tee", fields, request)}
    if len(tees) > 1:
        raise _twice("tee")
    nonces = {_nonce(value) for value in _said("nonce", fields, request)}
    if len(nonces) > 1:
        raise _twice("nonce")
    tee: Tee = tees.pop() if tees else ""
    if tee and not _asks_itself(request):
        raise rules.refuse(
            "tee",
            "With 'tee' the question has to be the body of a POST whose path ends here.",
            "invalid_value",
        )
    return tee, nonces.pop() if nonces else None


def misplaced(name: str) -> BadRequest:
    """400 for an option that only another part of the path has."""
    return rules.refuse(
        name,
        f"'{name}' belongs to the last part of the path: completions&{name}=..., or ?{name}=...",
        "invalid_value",
    )


def written(target: str) -> Iterator[tuple[str, str | bool]]:
    """Key and value of each pair in a request target, as they stand there; bare ones are True.

    A key is without its `N.` and `+type`. Of a sub-path only `()` is left, and none of its pairs.
    """
    path, _, query = target.partition("?")
    for part in _outside(path).split("/"):
        for pair in part.split("&")[1:]:
            yield _pair(pair)
    for pair in query.replace("+", " ").split("&"):
        yield _pair(pair)


def _is_silent(fields: Mapping[str, Any], request: Message) -> bool:
    """Whether it can be seen at a glance that nothing speaks of these options, as mostly."""
    target = marks.target(request).lower()
    names = " ".join(marks.head(request))
    return not (
        any(name in fields or name in target or name in names for name in _NAMES)
        or "%" in target
        or any(request.get(key) is not None for key in _KEYS)
    )


def _said(name: str, fields: Mapping[str, Any], request: Message) -> list[Any]:
    keys = (name, f"x-{name}")
    values = [fields.get(name), *(request.get(key) for key in keys)]
    values = [value for value in values if value is not None]
    if marks.in_sub_path(request):  # where target and headers are those of another call
        return values
    for key in keys:
        there = _mentioned(key, request)
        if there and not values:
            raise misplaced(name)
        values += there
    return values


def _mentioned(key: str, request: Message) -> list[Any]:
    """What the target says under `key`.

    Raises BadRequest where a header says it too: which one is lost, as the query replaced it.
    """
    head = [name for name in marks.head(request) if _key(name) == key]
    target = [value for name, value in written(marks.target(request)) if name == key]
    if len(head) > 1 or (head and target):
        raise _twice(key)
    if head and request.get(key) is None:
        raise misplaced(key)
    return target


def _asks_itself(request: Message) -> bool:
    """Whether the body is the one that was sent with the path, and the path calls this key."""
    if marks.in_sub_path(request) or not isinstance(request.get("body"), bytes):
        return False
    names = {name for name, _ in written(marks.target(request))}
    return "body" not in names | {_key(name) for name in marks.head(request)}


def _check_case(fields: Mapping[str, Any]) -> None:
    for field in fields:
        name = field.casefold()
        if name in _NAMES and field != name:
            raise rules.refuse(
                name, f"Unknown parameter: '{field}'. Write it '{name}'.", "unknown_parameter"
            )


def _tee(value: Any) -> Tee:
    if isinstance(value, (bool, int)):
        value = str(int(value))
    word = value.lower() if isinstance(value, str) else ""
    if word not in _TEE:
        raise rules.refuse(
            "tee", "Invalid 'tee': expected true, false, 'digest' or 'batch'.", "invalid_value"
        )
    return _TEE[word]


def _nonce(value: Any) -> str:
    if not isinstance(value, str) or not _NONCE.match(value):
        raise rules.refuse(
            "nonce", "Invalid 'nonce': expected 64 lower-case hex digits.", "invalid_value"
        )
    return value


def _twice(name: str) -> BadRequest:
    return rules.refuse(
        name,
        f"'{name}' is given twice with different values, or in the path and in a header: "
        "give it once.",
        "invalid_value",
    )


def _pair(pair: str) -> tuple[str, str | bool]:
    name, equals, value = pair.partition("=")
    return _key(unquote(name)), unquote(value) if equals else True


def _key(name: str) -> str:
    name = _TYPE_MARK.split(name, maxsplit=1)[0].lower()
    scope = _SCOPE.match(name)
    return scope[1] if scope else name


def _outside(path: str) -> str:
    """`path`, whose parentheses balance, without what stands inside of them."""
    if "(" not in path:
        return path
    kept = []
    depth = 0
    for char in path:
        depth -= char == ")"
        if not depth:
            kept.append(char)
        depth += char == "("
    return "".join(kept)
