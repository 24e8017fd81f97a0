"""Hashpaths: how a result came about, `BASE/REQUEST`, two names that say it all.

BASE is the id of the message that a path began with, or SHA-256 of the hashpath before; REQUEST is
the id of the request, or its key alone where it says nothing else.
Source: upstream hb_path:hashpath/4, hb_crypto:sha256_chain/2.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from .commitments import encoded, message_id
from .message import ID_LENGTH, Message, is_private

META = frozenset({"path", "hashpath", "cache-control"})
"""Keys of a request that say how to answer, not what."""


def root(base: Any) -> str:
    """The id that a hashpath begins with: a message's, with its commitments; of text or bytes
    SHA-256. Raises BadRequest or TooLarge for what has no id."""
    if isinstance(base, str | bytes):
        data = base.encode("utf-8", "surrogatepass") if isinstance(base, str) else base
        return encoded(hashlib.sha256(data).digest())
    return message_id(base if isinstance(base, dict) else {"body": base}, "all")


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
        called = message_id({**said, "path": called}, "all")
    return f"{_rolled(path)}/{called}"


def _rolled(path: str) -> str:
    base, slash, request = path.partition("/")
    if not slash:
        return base
    native = _native(request) if len(request) == ID_LENGTH else request.encode()
    return encoded(hashlib.sha256(_native(base) + native).digest())


def _native(id: str) -> bytes:
    return base64.urlsafe_b64decode(id + "=")
