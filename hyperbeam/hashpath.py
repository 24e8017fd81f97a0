"""Hashpaths: how a result came about, `BASE/REQUEST`, two names that say it all.

BASE is the id of the message that a path began with, or SHA-256 of the hashpath before; REQUEST is
the id of the request, or its key alone where it says nothing else.
Source: upstream hb_path:hashpath/4, hb_crypto:sha256_chain/2.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from .codecs.structured import RESERVED
from .commitments import encoded, is_exact, message_id, unsigned_id
from .message import ID_LENGTH, Message, is_private

META = frozenset({"path", "hashpath", "cache-control"})
"""Keys of a request that say how to answer, not what."""


def root(base: Any) -> str:
    """The id that a hashpath begins with: of text or bytes SHA-256, of a message that is signed
    whole that of its signatures, else one that counts all of it, commitments too.

    Raises BadRequest or TooLarge for what has no id.
    """
    if isinstance(base, str | bytes):
        data = base.encode("utf-8", "surrogatepass") if isinstance(base, str) else base
        return encoded(hashlib.sha256(data).digest())
    message = base if isinstance(base, dict) else {"body": base}
    return message_id(message, "all") if is_exact(message) else unsigned_id(_spelled(message))


def after(path: str, called: str, request: Message) -> str:
    """The hashpath of what calling `called` with `request` gives on what has the hashpath `path`.

    Raises BadRequest or TooLarge for a request that has no id.
    """
    said = {
        name: value for name, value in request.items() if name not in META and not is_private(name)
    }
    head = (request.get("priv") or {}).get("request-headers") or ()
    if of_head := sorted(name for name in said if name in head):
        said["request-headers"] = of_head  # keys may count less where they are HTTP's own
    # A key that looks like an id, or has a slash, could be read as another hashpath.
    if said or "/" in called or len(called) == ID_LENGTH:
        called = root({**said, "path": called})
    return f"{_rolled(path)}/{called}"


def _spelled(value: Any) -> Any:
    """`value` with other names for the keys that do not count for ids: results tell them apart."""
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        f"{key}\n" if key.lower().rstrip("\n") in RESERVED else key: _spelled(item)
        for key, item in value.items()
    }


def _rolled(path: str) -> str:
    base, slash, request = path.partition("/")
    if not slash:
        return base
    native = _native(request) if len(request) == ID_LENGTH else request.encode()
    return encoded(hashlib.sha256(_native(base) + native).digest())


def _native(id: str) -> bytes:
    return base64.urlsafe_b64decode(id + "=")
