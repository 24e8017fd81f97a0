"""The members of a JSON object's text, taken out and added without touching the others.

For texts that `strict_json` has read: there each key stands once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from hyperbeam.codecs.json_reader import STRING_OR_STRUCTURE


class Member(NamedTuple):
    """A member is `text[start:end]`, the comma behind it left out."""

    name: str
    start: int
    end: int


def without(text: bytes, names: Collection[str]) -> bytes:
    """`text` without the members `names` of the outermost object."""
    members = list(_members(text))
    kept = [text[one.start : one.end] for one in members if one.name not in names]
    if len(kept) == len(members):
        return text
    return text[: members[0].start] + b",".join(kept) + text[members[-1].end :]


def with_member(text: bytes, name: str, value: int | str) -> bytes:
    """`text` with one more member at the end of the outermost object."""
    end = text.rindex(b"}")
    comma = b"" if text[:end].rstrip(b" \t\r\n").endswith(b"{") else b","
    member = b'"%b":%b' % (name.encode(), json.dumps(value).encode())
    return b"%b%b%b%b" % (text[:end], comma, member, text[end:])


def _members(text: bytes) -> Iterator[Member]:
    depth = start = 0
    name: str | None = None
    for match in STRING_OR_STRUCTURE.finditer(text):
        sign = text[match.start() : match.start() + 1]
        if sign in b"{[":
            depth += 1
            if depth == 1:
                start = match.end()
        elif sign in b"}]":
            depth -= 1
            if depth == 0 and name is not None:
                yield Member(name, start, match.start())
        elif depth == 1:
            if sign == b"," and name is not None:
                yield Member(name, start, match.start())
                name, start = None, match.end()
            elif name is None:
                name = json.loads(match[0])
