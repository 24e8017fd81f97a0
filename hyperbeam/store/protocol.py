"""What a store is: byte keys and byte values, in groups, with links between them.

A key is a path of parts joined by `/`; empty parts are dropped (`a//b` is `a/b`).
A part that is a link stands for where it leads, wherever in the path it stands.
Source: upstream hb_store and its drivers.
"""

from __future__ import annotations

from typing import Literal, Protocol

MAX_KEY = 511
"""Longest key in bytes: LMDB's own limit, kept by every store. Longer ones are refused, not
hashed, because a hashed name could not be listed; ids have 43."""

Names = list[bytes]
Kind = Literal["simple", "composite"]


class Store(Protocol):
    """What a store does. Reads are synchronous and take microseconds.

    A write is seen at once by the store that wrote it, by others within milliseconds,
    and is durable when a later `flush` has returned. Every method raises
    `Unavailable` when the medium fails; writes raise `BadRequest` for a key that is
    empty or longer than `MAX_KEY`.
    """

    def open(self) -> None:
        """Make the store ready; `ConfigError` says what is wrong with its settings or files."""

    def close(self) -> None:
        """Write out what is pending and let go of the files; may be called twice."""

    def read(self, key: bytes) -> bytes | None:
        """The value at `key`, links followed; None for a group or when nothing is there."""

    def write(self, key: bytes, value: bytes) -> None:
        """Put `value` at `key`, replacing what was there. Links in front of the last part are
        followed; a link at `key` itself is replaced."""

    def list(self, key: bytes) -> Names | None:
        """Sorted names directly under `key` (`b""`: the whole store), or None if it has none
        and is no group."""

    def link(self, existing: bytes, new: bytes) -> None:
        """Make `new` lead to `existing`, which need not be there yet."""

    def group(self, key: bytes) -> None:
        """Make an empty group, unless there is something at `key`."""

    def type(self, key: bytes) -> Kind | None:
        """`simple` for a value, `composite` for a group, None when nothing is there."""

    def resolve(self, key: bytes) -> bytes | None:
        """`key` with all links followed; None when they lead in a circle."""

    async def flush(self) -> None:
        """Return when all earlier writes are durable."""
