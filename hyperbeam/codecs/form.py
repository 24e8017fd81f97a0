"""Fields of a form as files are sent with: multipart/form-data, read strictly.

Whoever decides by a field has to read what its backend will read, so what parsers differ in is
refused: text before the first boundary, a field twice, a name that is written twice.
Source: RFC 7578, RFC 2046, RFC 6266.
"""

from __future__ import annotations

import re

from ..errors import BadRequest
from .fields import parse_parameters

MAX_PARTS = 1000
MAX_HEAD = 16 * 1024
MAX_VALUE = 4096
_DISPOSITION = re.compile(
    r"form-data((?:;[ \t]*[^\s;=\"]+=(?:\"(?:[^\"\\]|\\.)*+\"|[^\s;\"]*+)[ \t]*+)*+)\Z",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r";[ \t]*([^\s;=\"]+)=(?:\"((?:[^\"\\]|\\.)*+)\"|([^\s;\"]*+))")
_PLAIN = frozenset({"", "7bit", "8bit", "binary"})


def text_field(body: bytes, content_type: str, name: str) -> str:
    """The text of the field `name`, "" without one.

    Raises BadRequest for a body that is no such form, and for the field twice.
    """
    kind, parameters = parse_parameters(content_type)
    boundary = parameters.get("boundary", "")
    if kind != "multipart/form-data" or not 0 < len(boundary) <= 70:
        raise _bad(f"it has to be multipart/form-data with a boundary, not {content_type[:100]!r}")
    found: list[str] = []
    mark = b"--" + boundary.encode("utf-8", "replace")
    if not body.startswith(mark + b"\r\n"):
        raise _bad("it has to begin with its boundary")
    start, parts = len(mark) + 2, 0
    while True:
        end = body.find(b"\r\n" + mark, start - 2)
        if end < 0:
            raise _bad("its last boundary is missing")
        parts += 1
        if parts > MAX_PARTS:
            raise _bad(f"it has over {MAX_PARTS} parts")
        found += _value(body, start, max(start, end), name)
        start = end + 2 + len(mark)
        after = body[start : start + 2]
        if after == b"--":
            break
        if after != b"\r\n":
            raise _bad("a boundary is not the end of its line")
        start += 2
    if len(found) > 1:
        raise BadRequest(f"the form has the field {name!r} twice", param=name)
    return found[0] if found else ""


def _value(body: bytes, start: int, end: int, name: str) -> list[str]:
    """The text of one part, where it is the field `name`."""
    head_end = body.find(b"\r\n\r\n", max(start - 2, 0), min(end, start + MAX_HEAD))
    if head_end < 0:
        raise _bad(f"a part has no end of its head within {MAX_HEAD} bytes")
    headers: dict[str, str] = {}
    for line in body[start:head_end].decode("utf-8", "replace").split("\r\n"):
        key, colon, value = line.partition(":")
        key = key.lower()
        if not colon or not key.strip() or key != key.strip() or key in headers:
            raise _bad(f"a part's head cannot be read: {line[:60]!r}")
        headers[key] = value.strip()
    disposition = _DISPOSITION.match(headers.get("content-disposition", ""))
    if disposition is None:
        raise _bad("a part has no content-disposition of form-data that can be read")
    parameters: dict[str, str] = {}
    for key, quoted, bare in _PARAMETER.findall(disposition[1]):
        if key.lower() in parameters or key.lower() == "name*":
            raise _bad(f"a part says {key[:40]!r} twice, or in two ways")
        parameters[key.lower()] = quoted or bare
    given = parameters.get("name", "")
    if given.casefold() != name:
        return []
    if given != name or headers.get("content-transfer-encoding", "").lower() not in _PLAIN:
        raise _bad(f"the field {name!r} is written as {given[:40]!r}, or encoded")
    if "filename" in parameters or "filename*" in parameters or end - head_end - 4 > MAX_VALUE:
        raise BadRequest(f"the field {name!r} of the form has to be a short text", param=name)
    return [body[head_end + 4 : end].decode("utf-8", "replace").strip()]


def _bad(what: str) -> BadRequest:
    return BadRequest(f"the form cannot be read: {what}", error="invalid_form")
