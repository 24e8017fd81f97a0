"""What a device does wrong: values that no message can hold, and ends of more than its own call.

Such a fault is no client's. It is a 500 with an id, and under the id the log says which key of
which device gave what. What a key only hands on, of the message or the request that it was called
with, is not its fault: where that cannot be written, the client is told so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from types import NoneType
from typing import Any

from .codecs.msgpack import MAX_INTEGER_BITS
from .codecs.structured import LINK_SUFFIX, MAX_DEPTH, normalize_key
from .device import Stream
from .errors import HyperbeamError
from .message import Link, Message, is_private, status_of

_SOUND = frozenset({bool, NoneType, bytes, bytearray, memoryview, Link})
_LINE_ENDS = "\r\n\0"
_STATUS = "a status is an integer from 200 to 599"


class DeviceFault(RuntimeError):
    """What a device did wrong, in one sentence for the log."""


def check(result: Any, device: str, called: str, base: Any, request: Any) -> None:
    """Raise DeviceFault for a result of the key `called` that cannot be a reply's, or the next
    key's message; not for what `base` and `request`, which the key was given, have in them."""
    try:
        _check(result, _Values({}))
    except _Wrong as wrong:
        found: _Wrong | None = wrong
        if wrong.sendable:
            found = _own(result, base, request)
        if found is not None:
            raise DeviceFault(f"{device}/{called} gives {found}") from None
    if isinstance(result, Stream):
        result.giver = f"{device}/{called}"


def check_raised(error: HyperbeamError, device: str, called: str) -> None:
    """Raise DeviceFault for a refusal that cannot be told to a client."""
    wrong = None
    if status_of({"status": error.status}) != error.status:
        wrong = f"the status {_shown(error.status)}: {_STATUS}"
    elif not isinstance(error.detail, str):
        wrong = f"{_a(error.detail)} as its detail, which is a text"
    elif not all(isinstance(part, str) for pair in error.headers.items() for part in pair):
        wrong = "headers that are not all text"
    if wrong is not None:
        kind = type(error).__name__
        raise DeviceFault(f"{device}/{called} raises a {kind} with {wrong}") from error


def contained(error: BaseException, source: str) -> BaseException:
    """What to raise for `error`, which `source` raises: a DeviceFault for what would end more than
    the one call, such as SystemExit, or a cancellation that nobody has asked for."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError | GeneratorExit) and _is_ended():
        return error
    fault = DeviceFault(f"{source} raises {error!r}, though nothing has ended its call")
    fault.__cause__ = error
    return fault


def said_of(error: BaseException) -> tuple[str, BaseException | None]:
    """For the log: a sentence on what went wrong, if there is one, and whose traceback helps."""
    return (f": {error}", error.__cause__) if isinstance(error, DeviceFault) else ("", error)


def _is_ended() -> bool:
    """Whether the running task is to end, or there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


class _Wrong(Exception):
    """What is wrong, as the object of "gives"; `path` leads to it, innermost key first.

    `sendable`: a client can send such a value too.
    """

    def __init__(self, what: str, why: str, *, sendable: bool = False) -> None:
        self.what = what
        self.why = why
        self.sendable = sendable
        self.path: list[str] = []

    def __str__(self) -> str:
        place = "/".join(key[:64] for key in reversed(self.path))
        return f"{self.what}{f' under {place[:256]!a}' if self.path else ''}: {self.why}"


def _own(result: Any, base: Any, request: Any) -> _Wrong | None:
    """What is wrong with a result beside what was given."""
    given = dict.fromkeys(_ids(base, request), False)
    statuses = [one["status"] for one in (base, request) if _has_status(one)]
    try:
        _check(result, _Values(given), statuses)
    except _Wrong as wrong:
        return wrong
    return None


def _check(result: Any, values: _Values, statuses: list[Any] | None = None) -> None:
    if isinstance(result, Stream):
        _check_stream(result)
        return
    if isinstance(result, bytearray | memoryview):
        raise _Wrong(_a(result), "by itself it has to be bytes")
    values.check(result)
    if _has_status(result) and status_of(result) is None:
        status = result["status"]
        if not statuses or status not in statuses:
            raise _Wrong(f"the status {_shown(status)}", _STATUS, sendable=True)


def _has_status(value: Any) -> bool:
    return isinstance(value, dict) and "status" in value


def _check_stream(stream: Stream) -> None:
    if not isinstance(stream.source, AsyncIterator):
        why = "it has to be an async iterator of bytes"
        raise _Wrong(f"a stream whose source is {_a(stream.source)}", why)
    if status_of({"status": stream.status}) != stream.status:
        raise _Wrong(f"a stream with the status {_shown(stream.status)}", _STATUS)
    headers = stream.headers
    if not isinstance(headers, Mapping):
        why = "they have to be a dict of texts"
        raise _Wrong(f"a stream whose headers are {_a(headers)}", why)
    for name, value in (("content-type", stream.content_type), *headers.items()):
        _check_header(name, value, "a stream with")


def _check_header(name: Any, value: Any, of: str) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise _Wrong(f"{of} a header {_shown(name)} that is {_a(value)}", "both have to be text")
    if any(end in value for end in _LINE_ENDS):
        what = f"{of} a header {_shown(name)} with a line end or NUL in it"
        raise _Wrong(what, "it has to be one line")


class _Values:
    """Looks at values at all depths. `seen`: by the ids of messages and lists that were looked at,
    or need not be, whether that still goes on; and the ids of other values that need not be."""

    __slots__ = ("_seen",)

    def __init__(self, seen: dict[int, bool]) -> None:
        self._seen = seen

    def check(self, value: Any, depth: int = 0) -> None:
        kind = type(value)
        if kind is str:
            if not value.isascii():
                self._text(value)
        elif kind in _SOUND:
            pass
        elif isinstance(value, dict):
            self._message(value, depth + 1)
        elif isinstance(value, list):
            self._list(value, depth + 1)
        elif isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS and id(value) not in self._seen:
                why = f"{MAX_INTEGER_BITS:,} bits are the limit"
                raise _Wrong("an integer that is too large", why, sendable=True)
        elif isinstance(value, float):
            if not math.isfinite(value) and id(value) not in self._seen:
                raise _Wrong(f"{value}", "a float has to be finite", sendable=True)
        elif isinstance(value, str):
            self._text(value)
        elif not isinstance(value, bytes | bytearray):
            kinds = "text, bytes, int, float, bool, None, lists, messages, Atom and Link"
            raise _Wrong(_a(value), f"a message's values are {kinds}")

    def _message(self, message: Message, depth: int) -> None:
        if self._begin(message, depth):
            return
        doubtful = False
        for name, value in message.items():
            if not isinstance(name, str):
                raise _Wrong(f"a message with the key {_shown(name)}", f"{_a(name)} is no text")
            if not name.isascii():
                self._text(name)
            if is_private(name):
                if name == "priv":
                    _check_private(value)
                continue
            doubtful = doubtful or name != name.lower() or name.endswith(LINK_SUFFIX)
            try:
                self.check(value, depth)
            except _Wrong as wrong:
                wrong.path.append(name)
                raise
        if doubtful:
            self._check_names(message)
        self._seen[id(message)] = False

    def _list(self, items: list[Any], depth: int) -> None:
        if self._begin(items, depth):
            return
        for number, item in enumerate(items, 1):
            try:
                self.check(item, depth)
            except _Wrong as wrong:
                wrong.path.append(str(number))
                raise
        self._seen[id(items)] = False

    def _begin(self, value: Any, depth: int) -> bool:
        """Whether a message or list need not be looked at. Raises for one that has no end."""
        inside = self._seen.get(id(value))
        if inside:
            raise _Wrong(f"{_a(value)} that holds itself", "a message ends somewhere")
        if inside is None and depth > MAX_DEPTH:
            why = f"{MAX_DEPTH} are the limit"
            raise _Wrong(f"a message of over {MAX_DEPTH} levels", why, sendable=True)
        self._seen[id(value)] = inside is None
        return inside is not None

    def _text(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            if id(text) not in self._seen:
                why = "it cannot be written"
                raise _Wrong("a text with half a surrogate pair", why, sendable=True) from None

    def _check_names(self, message: Message) -> None:
        """Each key once, whatever its case, and by itself or as a link."""
        names: dict[str, str] = {}
        for name, value in message.items():
            if not is_private(name):
                key = normalize_key(name)
                key = key + LINK_SUFFIX if isinstance(value, Link) else key
                other = names.setdefault(key, name)
                if other is not name:
                    self._twice(other, name)
        for key, name in names.items():
            other = names.get(key.removesuffix(LINK_SUFFIX), name)
            if other is not name:
                self._twice(other, name)

    def _twice(self, one: str, other: str) -> None:
        if id(one) not in self._seen and id(other) not in self._seen:
            what = f"a message with the keys {_shown(one)} and {_shown(other)}"
            raise _Wrong(what, "they stand for the same", sendable=True)


def _check_private(private: Any) -> None:
    if private is None:
        return
    if not isinstance(private, dict):
        raise _Wrong(f"a message whose priv is {_a(private)}", "it has to be a dict")
    headers = private.get("reply-headers")
    if headers is None:
        return
    why = "they have to be a list of (name, value) pairs"
    if not isinstance(headers, list):
        raise _Wrong(f"reply-headers that are {_a(headers)}", why)
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _Wrong(f"reply-headers with {_shown(pair)}", why)
        name, value = pair
        _check_header(name, value, "reply-headers with")


def _ids(*given: Any) -> Iterator[int]:
    """The ids of all values and keys in messages and lists, at all depths."""
    waiting, seen = list(given), set()
    while waiting:
        value = waiting.pop()
        yield id(value)
        if isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                yield from map(id, value)
                waiting += [item for name, item in value.items() if not _is_private(name)]
            else:
                waiting += value


def _is_private(name: Any) -> bool:
    return isinstance(name, str) and is_private(name)


def _a(value: Any) -> str:
    """`a set`, `an int`."""
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _shown(value: Any) -> str:
    try:
        return repr(value)[:64].encode("ascii", "backslashreplace").decode()
    except Exception:  # it is a device's own class
        return _a(value)
