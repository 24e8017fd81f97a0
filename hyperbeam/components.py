"""What the names in a signature stand for: keys of a message, in an order that counts.

Source: RFC 9421; upstream dev_codec_httpsig_siginfo.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .codecs import structured
from .codecs.fields import parse_dictionary
from .codecs.httpsig import Apart
from .codecs.siginfo import component
from .codecs.structured import ID_SIZES, LINK_SUFFIX
from .message import is_private

_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\%]')


def is_data(key: str) -> bool:
    return not is_private(key) and key not in structured.RESERVED


def safe(name: str) -> str:
    """Names are written between quotes, a line each: what would break out is escaped."""
    return _UNSAFE.sub(lambda match: f"%{ord(match.group()):02x}", name)


def ordered(headers: Iterable[str], listed: list[str]) -> list[str]:
    """In the order of the keys, if that is not sorted: upstream signs over 32 in one of its own."""
    if listed == sorted(listed):
        return sorted(headers)
    names = set(headers)
    places = {key: place for place, key in enumerate(listed)}
    in_body = [
        place
        for key, place in places.items()
        if not names & {key, key + LINK_SUFFIX} and key not in structured.RESERVED
    ]
    places["content-digest"] = min(in_body, default=len(listed))

    def place(name: str) -> tuple[int, str]:
        return places.get(name, places.get(name.removesuffix(LINK_SUFFIX), len(listed))), name

    return sorted(names, key=place)


def as_listed(components: Collection[str], keys: Collection[str]) -> list[str]:
    """`keys` as a commitment lists them that was signed over `components`: sorted, as they are;
    else in their order, where the names that are no keys have a place too."""
    bare = [name[1:] if component(name[1:]) == name else name for name in components]
    if bare == sorted(bare):
        return sorted(keys)
    own = {name.removesuffix(LINK_SUFFIX) for name in bare}
    found: list[str] = []
    for name in bare:
        key = name.removesuffix(LINK_SUFFIX)
        if name == "content-digest":
            found += sorted(key for key in keys if key not in own)
        elif key in keys or name in structured.RESERVED:
            found.append(key)
    return list(dict.fromkeys([*found, *sorted(keys)]))


def keys_said(components: Collection[str], apart: Apart) -> set[str]:
    """The keys that `components` may be for: to verify them they are written again, all of them."""
    names = {name.removesuffix(LINK_SUFFIX) for name in components}
    # Upstream writes the key `method` as `@method`, and so on.
    names |= {name[1:] for name in names if name[:1] == "@" and component(name[1:]) == name}
    keys = {key for key in apart.message if safe(key) in names and is_data(key)}
    rest = apart.message.keys() - keys
    if "ao-ids" in names:
        keys |= {key for key in rest if len(key) in ID_SIZES}
    if "content-digest" in names:
        keys |= rest & apart.of_body
    if "ao-body-key" in names:
        # Beside a nested `body` it is signed as the body, and may have been sent as a header.
        keys |= rest & {"data"}
    return keys


def covered(components: Collection[str], headers: Mapping[str, Any], apart: Apart) -> set[str]:
    """The keys that the components of a signature stand for, of a message that came `apart`.

    The body's are covered by its digest and by the header that says how it is read, if one does.
    """
    found: set[str] = set()
    for name in components:
        if name == "content-digest":
            if apart.read_by in (None, *components):
                found |= apart.of_body
        elif name == "ao-ids":
            found |= parse_dictionary(str(headers.get(name, "")), name).keys()
        elif name not in structured.RESERVED and name != apart.read_by:
            found.add(name.removesuffix(LINK_SUFFIX))
    return found
