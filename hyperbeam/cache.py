"""Messages in a store, each once, under its own id.

A nested message whose bytes are more than `INLINE_LIMIT` lies under its own id, as a
Link in the message that holds it; a smaller one lies inside. Values that are no
messages lie under `data/` and the SHA-256 of their bytes: kept apart, because whoever
chooses a value's bytes could otherwise make its digest equal a message's id.
Whatever gives the same id is stored in the same form, so that it does not matter who
wrote it first: keys in lower case, bytes that are UTF-8 as str, the words `true`,
`false` and `null` as what they mean, and nothing that the id does not cover (private
keys and `structured.RESERVED`). The commitments of a message that is signed whole lie apart,
under `signed/` and each id that they give it; by these it is read with them.
Source: upstream hb_cache.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from .codecs.msgpack import pack, unpack
from .codecs.structured import (
    LINK_SUFFIX,
    MAX_DEPTH,
    RESERVED,
    decode_value,
    encode_value,
    normalize_key,
    text_of,
)
from .commitments import commitments, list_id, signed_ids, unsigned_id
from .errors import BadRequest, NotFound, TooLarge, Unavailable
from .message import Atom, Link, Message, is_id, is_private
from .results import Results
from .store.protocol import Store
from .store.recent import Recent
from .store.remote import Remotes

INLINE_LIMIT = 1024
_SIGNED = "signed/"
DEFAULT_MAX_SIZE = 64 * 1024 * 1024


class Cache:
    """Content-addressed messages: `recent` in memory, then `store`, then other nodes
    (`remotes`), which only the asynchronous `find` asks. `max_size`:
    bytes of one message with all that is nested in it, or of one value. Methods may be called
    from any thread."""

    def __init__(
        self,
        store: Store,
        *,
        max_size: int = DEFAULT_MAX_SIZE,
        recent: Recent | None = None,
        results: str = "memory",
        remotes: Remotes | None = None,
    ) -> None:
        self.store = store
        self.max_size = max_size
        self.recent = recent or Recent()
        self.remotes = remotes
        self.results = Results(self, results)

    def write(self, message: Message) -> str:
        """Store `message` unless it is there, and give its id (43 characters).

        Links in it are kept as they are. Raises BadRequest for what is no message,
        TooLarge, Unavailable. Durable after `flush`.
        """
        if not isinstance(message, dict):
            raise BadRequest(f"a message is a mapping, not a {type(message).__name__}")
        writing = _Writing(self.max_size)
        id = writing.add(writing.plain(message, 0))
        for name, signed in _signed(id, message):
            writing.records[name] = signed
        for key, packed in writing.records.items():
            if self.store.type(key.encode()) is None:
                self.store.write(key.encode(), packed)
        return id

    def keep(self, value: Message | list[Any]) -> str:
        """As `write`, but in memory only and for a while; a list has an id too.

        Raises as `write` does, TooLarge also for what is over the memory's size.
        """
        writing = _Writing(self.max_size)
        id = writing.add(writing.value(value, 0, inline=True))
        for key, packed in writing.records.items():
            if not self.recent.put(key.encode(), packed):
                raise TooLarge(f"{len(packed)} bytes to keep; the limit is {self.recent.size}")
        return id

    def write_value(self, value: str | bytes) -> str:
        """Store the bytes of a text or bytes, and give `data/<SHA-256>`."""
        try:
            data = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            raise BadRequest("a text with half a surrogate pair cannot be stored") from None
        _check_size(len(data), self.max_size)
        digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=")
        key = b"data/" + digest
        if self.store.type(key) is None:
            self.store.write(key, data)
        return key.decode()

    def read(self, id: str, *path: str) -> Any:
        """The message under `id`, or what lies at the keys `path` inside it.

        Nested messages that lie under their own ids are given as Links, except along
        `path`, which leads through them. A list's items are `1`, `2`, ... Raises NotFound
        naming what is missing, BadRequest where `id` cannot be one.
        """
        value = self._message(id)
        for depth, key in enumerate(path, 1):
            try:
                value = self.load(_member(value, key))
            except KeyError:
                raise _no_member(id, path[:depth]) from None
        return value

    async def find(self, id: str, *path: str) -> Any:
        """As `read`, and asks other nodes for messages that are not here; what they have is
        kept in memory for a while. Raises BadGateway or Unavailable where they cannot be asked.
        """
        value = await self.found(Link(_key(id).decode()))
        for depth, key in enumerate(path, 1):
            try:
                value = await self.found(_member(value, key))
            except KeyError:
                raise _no_member(id, path[:depth]) from None
        return value

    async def found(self, value: Any) -> Any:
        """As `load`, and asks other nodes for what is not here."""
        if not isinstance(value, Link):
            return value
        try:
            return self._message(value.id)
        except NotFound:
            if self.remotes is None:
                raise
        fetched = await self.remotes.fetch(value.id)
        id = self.keep(fetched)
        for name, signed in _signed(id, fetched):
            self.recent.put(name.encode(), signed)
        return self._message(value.id)

    async def find_value(self, id: str) -> str | bytes:
        """As `read_value`, and asks other nodes for what is not here."""
        try:
            return self.read_value(id)
        except NotFound:
            if self.remotes is None:
                raise
        fetched = await self.remotes.fetch(f"data/{id}")
        data = fetched.encode() if isinstance(fetched, str) else bytes(fetched)
        self.recent.put(b"data/" + _key(id), data)
        return text_of(data)

    def read_value(self, id: str) -> str | bytes:
        """The value under `data/<id>`: str if its bytes are UTF-8."""
        key = b"data/" + _key(id)
        data = self.recent.get(key)
        data = self.store.read(key) if data is None else data
        if data is None:
            raise NotFound(f"data/{id}", f"nothing is stored under data/{id}")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data

    def load(self, value: Any) -> Any:
        """What a Link leads to; any other value as it is. NotFound names the id."""
        return self._message(value.id) if isinstance(value, Link) else value

    async def flush(self) -> None:
        """Return when all earlier writes are durable."""
        await self.store.flush()

    def _message(self, id: str) -> Any:
        key = _key(id)
        data: bytes | None = self.recent.get(key)
        kinds: tuple[type, ...] = (dict, list)
        if data is None:
            data, kinds = self.store.read(key), (dict,)
        if data is None:
            return self._signed_message(id)
        try:
            message = unpack(data)
        except ValueError as error:
            raise _damaged(id, str(error)) from error
        if not isinstance(message, kinds):
            raise _damaged(id, "it is no message")
        return message

    def _signed_message(self, id: str) -> Message:
        key = f"{_SIGNED}{id}".encode()
        data: bytes | None = self.recent.get(key)
        data = self.store.read(key) if data is None else data
        if data is None:
            raise NotFound(id, f"nothing is stored under the id {id}")
        try:
            unsigned, commitments = unpack(data)
        except ValueError as error:
            raise _damaged(id, str(error)) from error
        return {**self._message(unsigned), "commitments": commitments}


def _signed(id: str, message: Any) -> Iterator[tuple[str, bytes]]:
    """The records of a message's commitments, where they hold for all of it; `id`: without them."""
    names = signed_ids(message) if isinstance(message, dict) else []
    if names:
        packed = pack([id, commitments(message)])
        yield from ((f"{_SIGNED}{name}", packed) for name in names)


class _Writing:
    """One message on its way into the store: the records that it needs."""

    def __init__(self, max_size: int) -> None:
        self.records: dict[str, bytes] = {}
        self.max_size = max_size
        self.size = 0

    def plain(self, message: Message, depth: int) -> Message:
        """`message` in its stored form; large messages in it are added under their ids."""
        _check_depth(depth)
        plain: Message = {}
        for name, value in message.items():
            if not isinstance(name, str):
                raise BadRequest(f"a message's keys are texts, not {type(name).__name__}")
            key = _normal(name)
            if is_private(key) or key in RESERVED:
                continue
            if key.endswith(LINK_SUFFIX) and isinstance(value, str) and is_id(value):
                key, value = key.removesuffix(LINK_SUFFIX), Link(value)
            if key in plain:
                raise BadRequest(f"a message has the key {key[:64]!r} twice")
            plain[key] = self.value(value, depth + 1)
        return plain

    def value(self, value: Any, depth: int, *, inline: bool = False) -> Any:
        """A member's value in its stored form; `inline`: not as a link, however large it is."""
        if isinstance(value, dict):
            plain = self.plain(value, depth)
            if inline:
                return plain
            packed = pack(plain)
            return Link(self.add(plain, packed)) if len(packed) > INLINE_LIMIT else plain
        if isinstance(value, list):
            _check_depth(depth)
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return text_of(bytes(value))
        return decode_value(*encode_value(value)) if isinstance(value, Atom) else value

    def add(self, plain: Message | list[Any], packed: bytes | None = None) -> str:
        """Add a record for a message (or list) of stored form; its id."""
        packed = pack(plain) if packed is None else packed
        self.size += len(packed)
        _check_size(self.size, self.max_size)
        id = list_id(plain) if isinstance(plain, list) else unsigned_id(plain)
        self.records[id] = packed
        return id


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(f"{size} bytes to store; the limit is {limit}")


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadRequest(f"a message may be at most {MAX_DEPTH} levels deep")


def _key(id: str) -> bytes:
    if not is_id(id):
        raise BadRequest(f"{id[:64]!r} is no id: ids are 43 characters of base64url", param="id")
    return id.encode()


def _normal(key: str) -> str:
    try:
        return normalize_key(key)
    except UnicodeEncodeError:
        raise BadRequest("half a surrogate pair in a key") from None


def _member(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value[_normal(key)]
    if isinstance(value, list) and key.isascii() and key.isdecimal():
        number = int(key[:20])
        if 1 <= number <= len(value):
            return value[number - 1]
    raise KeyError(key)


def _no_member(id: str, path: Sequence[str]) -> NotFound:
    place = "/".join((id, *path))
    return NotFound(place, f"there is no {place!r} in the store")


def _damaged(id: str, reason: str) -> Unavailable:
    return Unavailable(
        f"what is stored under {id} cannot be read ({reason}): the store is damaged",
        error="store_damaged",
    )
