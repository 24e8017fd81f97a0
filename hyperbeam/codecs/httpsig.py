"""Messages as HTTP headers and body: the default codec of replies, and what ids are made of.

A value is a header where it can stand in one, else a part of a multipart body; nested
messages are parts named by their path (`a/b`), `body` (or `data`, if there is no `body`)
is the body itself. Types are in `ao-types`, plain values in `body` with `ao-result: body`.
Source: RFC 9110, RFC 9530; upstream dev_codec_httpsig_conv, hb_ao:force_message/2.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from ..message import Message
from . import multipart, structured
from .fields import format_string, parse_dictionary, parse_parameters
from .multipart import Part
from .structured import EMPTY_MESSAGE, ID_SIZES, LINK_SUFFIX, MAX_DEPTH, Tabm, normalize_key

MAX_VALUE = 4096
MAX_HEADERS = 90
MAX_HEAD = 16384

Fits = Callable[[str, bytes], bool]

_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+\Z")
_PART_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_VISIBLE = re.compile(rb"(?:[!-~](?:[\t -~]*[!-~])?)?\Z")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_SIGNATURES = frozenset({"signature", "signature-input"})
# What frames a reply or belongs to one connection never comes from a message.
_FRAMING = frozenset(
    {
        "connection",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_FIRST = ("ao-result", "ao-types", "status", "ao-body-key", "content-type")


def encode(
    message: Any, *, bundle: bool = True, status: int | None = None
) -> tuple[dict[str, str], bytes]:
    """Headers (lower-case names, printable ASCII values) and body of `message`.

    A plain value becomes `body` with `ao-result: body`, a list the keys `1`, `2`, ...
    `status` is added as upstream's replies have it. `bundle` is the client's
    accept-bundle: nested messages are parts with and without it.
    Raises BadRequest for what cannot be written (see `structured.encode`).
    """
    message = as_message(message)
    if status is not None:
        message = {**message, "status": status}
    tabm = structured.encode(message, commitments=True)
    fields, body = layout(tabm, _Head().fits, group=_is_cased)
    headers = {name: value.decode("ascii") for name, value in fields.items()}
    if body:
        headers["content-digest"] = content_digest(body)
    return headers, body or b""


def as_message(value: Any) -> Message:
    """`value` as a message: a list by its numbers, a plain value as `body`."""
    if isinstance(value, list):
        return {str(number): item for number, item in enumerate(value, 1)}
    return value if isinstance(value, dict) else {"ao-result": "body", "body": value}


def decode(headers: Mapping[str, str], body: bytes) -> Message:
    """The message that `headers` and `body` are; an empty body is no key,
    unless `ao-body-key` names one.

    Signature headers are left out: they belong to the transport until they are verified.
    Raises BadRequest for types, ids and multipart bodies that cannot be read.
    """
    tabm: Tabm = {}
    for name, value in headers.items():
        key = name.lower()
        if key not in _SIGNATURES and key != "content-digest":
            tabm[key] = _header_bytes(value)
    named = tabm.pop("ao-body-key", None)
    inline = "body" if named is None else _text(named)
    kind, parameters = parse_parameters(_text(tabm.get("content-type", b"")))
    if kind.startswith("multipart/") and "boundary" in parameters:
        del tabm["content-type"]
        for part in multipart.split(body, parameters["boundary"]):
            _place(tabm, part.path or (inline,), _part_value(part))
    elif body or named is not None:
        _place(tabm, (inline,), body)
    _ungroup(tabm)
    for value in tabm.values():
        _restore_commitments(value)
    return structured.decode(tabm)


@dataclass(frozen=True, slots=True)
class Apart:
    """A message and how it came: `of_body` are the keys that the body gives, `read_by` the header
    that says how it is read, None where it is one value."""

    message: Message
    of_body: frozenset[str]
    read_by: str | None = None


def decode_apart(headers: Mapping[str, str], body: bytes) -> Apart:
    """As `decode`; names of `headers` are in lower case."""
    message = decode(headers, body)
    kind = headers.get("content-type", "")
    if kind[:10].lower() == "multipart/" and "boundary" in parse_parameters(kind)[1]:
        rest = {k: v for k, v in headers.items() if k not in ("content-type", "ao-body-key")}
        return Apart(message, frozenset(message) - decode(rest, b"").keys(), "content-type")
    inline = headers.get("ao-body-key", "body")
    return Apart(message, frozenset({inline}), "ao-body-key" if inline != "body" else None)


def content_digest(body: bytes) -> str:
    """Content-Digest of `body` (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def layout(
    tabm: Tabm, fits: Fits, *, group: Callable[[str], bool]
) -> tuple[dict[str, bytes], bytes | None]:
    """Headers and body (None where there is none) of a TABM.

    `fits` says which key and value may be a header; the rest goes into the body.
    Keys that are as long as an id and that `group` takes go into the header `ao-ids`.
    """
    tabm = _group(tabm, group)
    inline = "body"
    if "body" not in tabm and "data" in tabm:
        inline = "data"
        tabm["ao-body-key"] = inline
    headers: dict[str, bytes] = {}
    parts: dict[tuple[str, ...], Part] = {}
    for key in sorted(tabm, key=lambda name: (name not in _FIRST, name)):
        value = tabm[key]
        if isinstance(value, dict):
            _nest(value, (key,), parts)
            continue
        data = _to_bytes(value)
        if key != inline and key not in _SIGNATURES and fits(key, data):
            headers[key] = data
        else:
            parts[(key,)] = Part((key,), body=data)
    if not parts:
        return headers, None
    content_type = headers.get("content-type", b"")
    # A body of its own with such a type would be read as the parts of a message.
    is_multipart = content_type.lower().startswith(b"multipart/")
    if list(parts) == [(inline,)] and not isinstance(tabm[inline], dict) and not is_multipart:
        return headers, parts[(inline,)].body
    if "content-type" in headers:
        parts[("content-type",)] = Part(("content-type",), body=content_type)
    written, body = multipart.join(parts.values(), inline)
    headers["content-type"] = written.encode()
    return headers, body


def has_control(value: bytes) -> bool:
    """Whether `value` has a control character other than tab: CR, LF and NUL among them."""
    return _CONTROL.search(value) is not None


class _Head:
    """The head of one reply as it fills up: clients refuse long ones."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0

    def fits(self, key: str, value: bytes) -> bool:
        size = self.size + len(key) + len(value) + 4
        if (
            len(value) > MAX_VALUE
            or size > MAX_HEAD
            or self.count == MAX_HEADERS
            or key in _FRAMING
            or not _TOKEN.match(key)
            or not _VISIBLE.match(value)
        ):
            return False
        self.count += 1
        self.size = size
        return True


def _is_cased(key: str) -> bool:
    return _TOKEN.match(key) is None


def _to_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _group(tabm: Tabm, group: Callable[[str], bool]) -> Tabm:
    """A copy of `tabm`, keys that look like ids gathered in the dictionary `ao-ids`."""
    rest: Tabm = {}
    pairs: list[bytes] = []
    for key in sorted(tabm):
        value = tabm[key]
        if isinstance(value, bytes):
            value = structured.text_of(value)
        if (
            isinstance(value, str)
            and len(key) in ID_SIZES
            and _PART_NAME.match(key)
            and group(key)
            and not has_control(value.encode())
        ):
            pairs.append(f"{key}={format_string(value)}".encode())
        else:
            rest[key] = value
    if pairs:
        rest["ao-ids"] = b", ".join(pairs)
    return rest


def _ungroup(tabm: Tabm) -> None:
    grouped = tabm.pop("ao-ids", b"")
    if isinstance(grouped, dict):
        raise BadRequest("ao-ids has to be text")
    for key, value in parse_dictionary(_text(grouped), "ao-ids").items():
        if key in tabm or not isinstance(value, str):
            raise BadRequest(f"ao-ids: {key[:64]!r} is there twice or is no text")
        tabm[key] = str(value)


def _nest(tabm: Tabm, path: tuple[str, ...], parts: dict[tuple[str, ...], Part]) -> None:
    """Add the parts of a nested message: one for its short values, one for each other."""
    if not tabm:
        parts[path] = Part(path, {"ao-types": EMPTY_MESSAGE.encode()})
        return
    headers: dict[str, bytes] = {}
    body: bytes | None = None
    for key, value in tabm.items():
        if isinstance(value, dict):
            _nest(value, (*path, key), parts)
            continue
        data = _to_bytes(value)
        if len(data) > MAX_VALUE or (has_control(data) and key != "body") or not _in_part(key):
            parts[(*path, key)] = Part((*path, key), body=data)
        elif key == "body":
            body = data
        else:
            headers[key] = data
    if body is None:
        if headers:
            parts[path] = Part(path, headers)
        return
    own = path if headers else (*path, "body")
    if body:
        headers["content-digest"] = content_digest(body).encode()
    parts[own] = Part(own, headers, body)


def _in_part(key: str) -> bool:
    """Whether a key of a nested message may be a header of its part."""
    return (
        _PART_NAME.match(key) is not None
        and normalize_key(key) == key
        and key not in _SIGNATURES
        and key != "content-disposition"
    )


def _restore_commitments(value: Any) -> None:
    """Upstream writes a nested message's commitments as messages with signature headers of their
    own, and the list of keys once more as a link."""
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key != "commitments" or not isinstance(item, dict):
            _restore_commitments(item)
            continue
        for one in item.values():
            if isinstance(one, dict):
                _restore_commitment(one)


def _restore_commitment(one: Tabm) -> None:
    committed = one.get("committed")
    if isinstance(committed, dict):
        one.pop("committed" + LINK_SUFFIX, None)
        committed.setdefault("ao-types", '.="list"')
    if one.pop("signature-input", None) is not None and "signature" in one:
        found = list(parse_dictionary(_text(one["signature"]), "signature").values())
        if len(found) == 1 and isinstance(found[0], bytes):
            one["signature"] = base64.urlsafe_b64encode(found[0]).rstrip(b"=")


def _header_bytes(value: str) -> bytes:
    """Servers read a head as Latin-1, so what was UTF-8 on the wire is UTF-8 again."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


def _part_value(part: Part) -> Any:
    headers = {key: value for key, value in part.headers.items() if key != "content-digest"}
    inline = _text(headers.pop("ao-body-key", b""))
    if not part.body and headers == {"ao-types": EMPTY_MESSAGE.encode()}:
        return {}
    if part.body is None:
        return headers
    if not headers and not inline:
        return part.body
    _place(headers, (inline or "body",), part.body)
    return headers


def _place(tabm: Tabm, path: tuple[str, ...], value: Any) -> None:
    """Put a part's value at its path; a message that came in several parts is merged."""
    name = "/".join(path)[:64]
    if len(path) > MAX_DEPTH + 1:
        raise BadRequest(f"a part's name has over {MAX_DEPTH} levels: {name!r}")
    for segment in path[:-1]:
        tabm = tabm.setdefault(segment, {})
        if not isinstance(tabm, dict):
            raise BadRequest(f"the part {name!r} stands below a key that is no message")
    there = tabm.get(path[-1])
    if there is None:
        tabm[path[-1]] = value
    elif isinstance(there, dict) and isinstance(value, dict) and not there.keys() & value.keys():
        there.update(value)
    else:
        raise BadRequest(f"{name!r} is there twice")
