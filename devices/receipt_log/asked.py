"""What requests to the log ask for, read strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hyperbeam import BadRequest, Message

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_LEAF = re.compile(r"[0-9a-f]{64}\Z")
_ID = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class Inclusion:
    """One of `id`, `leaf` and `index` is set."""

    id: str | None
    leaf: bytes | None
    index: int | None
    size: int | None


def inclusion(request: Message) -> Inclusion:
    """Raises BadRequest."""
    given = [name for name in ("id", "leaf", "index") if request.get(name) is not None]
    if len(given) != 1:
        raise BadRequest(
            "say which leaf: one of id (a receipt's), leaf (a leaf's hash), index", param="id"
        )
    id = _matching(request, "id", _ID, "32 lower-case hex characters, a receipt's id")
    leaf = _matching(request, "leaf", _LEAF, "64 lower-case hex characters, a leaf's hash")
    return Inclusion(
        id=id,
        leaf=None if leaf is None else bytes.fromhex(leaf),
        index=number(request, "index"),
        size=number(request, "size"),
    )


def consistency(request: Message) -> tuple[int, int | None]:
    """The two sizes, the second None for the current one. Raises BadRequest."""
    old, new = number(request, "old"), number(request, "new")
    if old is None:
        raise BadRequest("old has to be the size of an earlier head", param="old")
    if new is not None and old > new:
        raise BadRequest(f"a log of {new} leaves does not follow one of {old}", param="old")
    return old, new


def number(request: Message, name: str) -> int | None:
    """A size or index: decimal digits, below 10^16. Raises BadRequest."""
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and _NUMBER.match(value):
        return int(value)
    raise BadRequest(f"{name} has to be a whole number of leaves, not {_short(value)}", param=name)


def origin(request: Message) -> str | None:
    """The log that is asked for, None for the current one. Raises BadRequest."""
    value = request.get("log")
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(f"log has to be a log's origin, not {_short(value)}", param="log")


def body(request: Message) -> bytes:
    """The body of a POST. Raises BadRequest."""
    value = request.get("body")
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if not isinstance(data, bytes) or not data:
        raise BadRequest("post a cosigned checkpoint, or the lines of the cosignatures")
    return data


def wants_json(request: Message) -> bool:
    """Whether `accept` names JSON."""
    accept = request.get("accept")
    parts = accept.lower().split(",") if isinstance(accept, str) else []
    return any(part.partition(";")[0].strip() == "application/json" for part in parts)


def _matching(request: Message, name: str, pattern: re.Pattern[str], what: str) -> str | None:
    value = request.get(name)
    if value is None or (isinstance(value, str) and pattern.match(value)):
        return value
    raise BadRequest(f"{name} has to be {what}", param=name)


def _short(value: Any) -> str:
    return repr(value)[:100]
