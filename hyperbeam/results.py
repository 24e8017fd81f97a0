"""Results by hashpath: what a step gave, for those who ask for the same with `cache-control`.

Words of a request: `store` keeps what it gives, `cache` takes what is kept, `always` is both,
`only-if-cached` gives nothing else (504), `no-store` and `no-cache` say no to each. A request's
`store` counts for devices that are `pure`: of others a result may be somebody's own. Another
device grants it by `priv: {"cache-control": "store"}` of its result; a result's `no-store` counts.
Source: RFC 9111 5.2; upstream hb_cache_control, hb_cache:read_resolved.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .codecs.msgpack import pack, unpack
from .device import Device, Stream
from .errors import GatewayTimeout, HyperbeamError
from .message import Message, public

if TYPE_CHECKING:
    from .cache import Cache

MISSING = object()
"""Stands for no result: None is one."""
_PREFIX = b"results/"


@dataclass(frozen=True, slots=True)
class Control:
    """What `cache-control` says; None where it says nothing."""

    store: bool | None = None
    lookup: bool = False
    only: bool = False


SILENT = Control()


def control_of(said: Any) -> Control:
    """The `cache-control` of a message, a text or a list of words; unknown words do not count."""
    if said is None:
        return SILENT
    texts = said if isinstance(said, list) else [said]
    words = {
        word.strip().lower() for text in texts if isinstance(text, str) for word in text.split(",")
    }
    if "always" in words:
        return Control(True, True, "only-if-cached" in words)
    store = False if "no-store" in words else True if "store" in words else None
    only = "only-if-cached" in words
    return Control(store, only or ("cache" in words and "no-cache" not in words), only)


def may_store(device: Device, asked: Control, result: Any) -> bool:
    """Whether a result is kept: as it says itself, else as the request of a pure device asks."""
    if device.sealed or isinstance(result, Stream):
        return False
    if isinstance(result, dict):
        private = result.get("priv") or {}
        if control_of(result.get("cache-control")).store is False:
            return False
        # Not the key itself: it may have come with the request's own base.
        if control_of(private.get("cache-control")).store:
            return True
        if private.get("reply-headers"):
            return False
    return device.pure and bool(asked.store)


def not_cached(path: str) -> GatewayTimeout:
    """The refusal where only a kept result was wanted."""
    return GatewayTimeout(
        f"no result is kept under the hashpath {path}",
        error="not_cached",
        headers={"cache-status": "miss"},
    )


class Results:
    """`where`: `memory` (with what else is kept there, least recently used first out), `disk`
    (in the store, for good), or `none`."""

    def __init__(self, cache: Cache, where: str = "memory") -> None:
        self._cache = cache
        self._where = where

    def read(self, path: str) -> Any:
        """The result that has the hashpath `path`, or MISSING."""
        key = _PREFIX + sha256(path.encode("utf-8", "surrogatepass")).hexdigest().encode()
        data = self._cache.recent.get(key)
        if data is None and self._where == "disk":
            data = self._cache.store.read(key)
        if data is None:
            return MISSING
        try:
            return self._cache.load(unpack(data))
        except (ValueError, HyperbeamError):
            return MISSING

    def write(self, path: str, result: Any) -> None:
        """Keep a result, if it can be: one that cannot is only not kept."""
        if self._where == "none":
            return
        key = _PREFIX + sha256(path.encode("utf-8", "surrogatepass")).hexdigest().encode()
        plain: Message = public({"value": result})
        try:
            data = pack(plain["value"])
            if len(data) > self._cache.max_size:
                return
            if self._where == "disk":
                self._cache.store.write(key, data)
            else:
                self._cache.recent.put(key, data)
        except HyperbeamError:
            return
