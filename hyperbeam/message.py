"""Messages: what every request, reply, route and setting is.

A message is a plain `dict` of lower-case string keys. Values are str, bytes, int,
float, bool, None, list, message, `Atom` or `Link`. Keys that start with `priv`
are private: never encoded, hashed, stored or sent.
Source: upstream hb_message, hb_private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]
"""A mapping of lower-case string keys to values."""

DEFAULT_DEVICE = "message@1.0"
ID_LENGTH = 43
_ID = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_DEVICE = re.compile(r"[a-z0-9][a-z0-9_-]*@[0-9]+(?:\.[0-9]+)*\Z")


class Atom(str):
    """A symbol of upstream's Erlang (`not_found`): a str that is written with type `atom`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


class Link:
    """A value that lies in the store under `id` and is loaded when it is read."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        if not is_id(id):
            raise ValueError(f"not a message id: {id[:64]!r}")
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and other.id == self.id

    def __hash__(self) -> int:
        return hash((Link, self.id))

    def __repr__(self) -> str:
        return f"Link({self.id!r})"


def is_id(text: str) -> bool:
    """Whether `text` has the shape of an id: SHA-256 in base64url, 43 characters."""
    return len(text) == ID_LENGTH and _ID.match(text) is not None


def is_device_name(text: str) -> bool:
    """Whether `text` has the shape `name@version`, as in `message@1.0`."""
    return _DEVICE.match(text) is not None


def is_private(key: str) -> bool:
    """Whether a key never leaves the node."""
    return key.startswith("priv")


def status_of(message: Message) -> int | None:
    """The HTTP status that a message says by an integer from 200 to 599, or by its digits."""
    status = message.get("status")
    if isinstance(status, str) and len(status) == 3 and status.isascii() and status.isdigit():
        status = int(status)
    if isinstance(status, int) and not isinstance(status, bool) and 200 <= status < 600:
        return status
    return None


def public(message: Message) -> Message:
    """A copy of `message` without private keys, at every depth."""
    return {key: _public(value) for key, value in message.items() if not is_private(key)}


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return public(value)
    if isinstance(value, list):
        return [_public(item) for item in value]
    return value


def without(message: Message, keys: Iterable[str]) -> Message:
    """A copy of `message` without `keys`."""
    dropped = frozenset(keys)
    return {key: value for key, value in message.items() if key not in dropped}
