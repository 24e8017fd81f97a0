"""Groups and links on top of flat records, the part that all local stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..errors import BadRequest
from .protocol import MAX_KEY, Kind, Names

VALUE = b"v"
LINK = b"l"
GROUP = b"g"
MAX_LINKS = 32


class PathStore(ABC):
    """A store made of records: a one-byte kind (`VALUE`, `LINK`, `GROUP`) and its payload."""

    @abstractmethod
    def _get(self, key: bytes) -> bytes | None:
        """The record at exactly `key` (1 to `MAX_KEY` bytes)."""

    @abstractmethod
    def _put(self, key: bytes, record: bytes) -> None:
        """Set the record at exactly `key`; a `GROUP` record never replaces another."""

    @abstractmethod
    def _names(self, prefix: bytes) -> set[bytes]:
        """The first parts that follow `prefix` (empty, or ending in `/`) in all keys."""

    @abstractmethod
    def _any(self, prefix: bytes) -> bool:
        """Whether a key starts with `prefix`, which ends in `/`."""

    def read(self, key: bytes) -> bytes | None:
        """See `Store.read`."""
        _, record = self._lookup(key)
        return record[1:] if record is not None and record.startswith(VALUE) else None

    def write(self, key: bytes, value: bytes) -> None:
        """See `Store.write`."""
        self._put(self._place(key), VALUE + value)

    def list(self, key: bytes) -> Names | None:
        """See `Store.list`."""
        if not _normal(key):
            return sorted(self._names(b""))
        place, record = self._lookup(key)
        if place is None:
            return None
        names = self._names(place + b"/")
        return sorted(names) if names or record == GROUP else None

    def link(self, existing: bytes, new: bytes) -> None:
        """See `Store.link`."""
        target = _checked(_normal(existing))
        place = self._place(new)
        if place != target:
            self._put(place, LINK + target)

    def group(self, key: bytes) -> None:
        """See `Store.group`."""
        place = self._place(key)
        if self._get(place) is None:
            self._put(place, GROUP)

    def type(self, key: bytes) -> Kind | None:
        """See `Store.type`."""
        if not _normal(key):
            return "composite"
        place, record = self._lookup(key)
        if place is None:
            return None
        if record is None:
            return "composite" if self._any(place + b"/") else None
        return "simple" if record.startswith(VALUE) else "composite"

    def resolve(self, key: bytes) -> bytes | None:
        """See `Store.resolve`."""
        return self._lookup(key)[0]

    def _lookup(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """Where `key` leads and the record there; no place when links go in a circle."""
        if b"/" not in key:
            record = self._get(key) if 0 < len(key) <= MAX_KEY else None
            if record is None or not record.startswith(LINK):
                return key, record
        parts = [part for part in reversed(key.split(b"/")) if part]
        place, record, links = b"", None, 0
        while parts:
            place = place + b"/" + parts.pop() if place else parts.pop()
            record = self._get(place) if len(place) <= MAX_KEY else None
            if record is not None and record.startswith(LINK):
                links += 1
                if links > MAX_LINKS:
                    return None, None
                parts.extend(reversed(record[1:].split(b"/")))
                place, record = b"", None
        return place, record

    def _place(self, key: bytes) -> bytes:
        """Where a write to `key` goes."""
        parent, slash, name = _normal(key).rpartition(b"/")
        if not slash:
            return _checked(name)
        place = self.resolve(parent)
        if place is None:
            raise BadRequest(f"the links in store key {_show(key)} lead in a circle")
        return _checked(place + b"/" + name)


def _normal(key: bytes) -> bytes:
    return b"/".join(part for part in key.split(b"/") if part) if b"/" in key else key


def _checked(key: bytes) -> bytes:
    if not key:
        raise BadRequest("a store key cannot be empty")
    if len(key) > MAX_KEY:
        raise BadRequest(f"store key {_show(key)} has {len(key)} bytes; the limit is {MAX_KEY}")
    return key


def _show(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 64 else text[:61] + "...")
