"""Ids of messages: what a message is called in the store and in links.

Source: RFC 9421; upstream dev_message:id/3, dev_codec_httpsig:commit/3, hb_link:normalize/3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from .codecs import structured
from .codecs.fields import format_string
from .codecs.httpsig import MAX_VALUE, content_digest, has_control, layout
from .codecs.structured import LINK_SUFFIX, Tabm
from .message import Message

_KEY = b"ao"
_DERIVED = frozenset(
    {
        "authority",
        "method",
        "path",
        "query",
        "query-param",
        "request-target",
        "scheme",
        "target-uri",
    }
)
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\%]')


def unsigned_id(message: Message) -> str:
    """The id of `message` without its commitments: 43 characters of base64url.

    HMAC-SHA256 under the key `ao` over the RFC 9421 signature base of all its keys in
    httpsig encoding, nested messages and lists as `key+link` with their own ids. The order of
    keys, private keys and `structured.RESERVED` do not count. Equal to upstream's id but where
    upstream would give one id to two messages: values with control characters are parts of
    the body, as is `content-type` beside parts, and such names are percent-encoded.
    Raises BadRequest for a message that cannot be written (see `structured.encode`).
    """
    return _id(structured.encode(message))


def _id(tabm: Tabm) -> str:
    linked: Tabm = {}
    for key, value in tabm.items():
        if isinstance(value, dict):
            linked[key + LINK_SUFFIX] = _id(value)
        else:
            linked[key] = value
    headers, body = layout(linked, _fits, group=bool)
    if body is not None:
        headers["content-digest"] = content_digest(body).encode()
    mac = hmac.new(_KEY, _signature_base(headers), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def _signature_base(headers: dict[str, bytes]) -> bytes:
    """RFC 9421 2.5 over every header, with the parameters that upstream gives an HMAC."""
    names = sorted(headers)
    lines = [f'"{_safe(name)}": '.encode() + headers[name] for name in names]
    components = " ".join(format_string(_component(_safe(name))) for name in names)
    parameters = f'"@signature-params": ({components});alg="hmac-sha256";keyid="ao"'
    return b"\n".join(lines) + b"\n" + parameters.encode()


def _component(name: str) -> str:
    bare = name.removeprefix("@")
    return f"@{bare}" if bare in _DERIVED else bare


def _fits(key: str, value: bytes) -> bool:
    return len(value) <= MAX_VALUE and not has_control(value)


def _safe(name: str) -> str:
    """Names are written between quotes, a line each: what would break out is escaped."""
    return _UNSAFE.sub(lambda match: f"%{ord(match.group()):02x}", name)
