"""Paths: from the target of a request to the steps that answer it.

    path   = [ "/" ] part *( "/" part ) [ "?" query ]       empty parts are skipped
    part   = ( key / id / sub ) [ "~" device ] *( "&" pair )  /  "~" device *( "&" pair )
    device = name "@" version  /  sub
    sub    = "(" path ")"
    pair   = name [ "+" type ] [ "=" ( value / sub ) ]      no "=": the value is True
    query  = pair *( "&" pair )                             form-encoded, without sub
    type   = integer / float / boolean / atom / list / map / binary / link / resolve

Keys: the part's own pairs, then headers, then the query; a later one wins. Headers and
query set them on every step but ids and sub-paths, whose content is not the request's
to change; the name `N.key` sets `key` on step N alone, 0 being the base, and wins over
`key`. A query's N has to exist; a header's `7.x`, `a.b` or `1.2.3` is otherwise just a
name, and so are `a.b` and `1.2.3` in a query. Names, devices' too, become lower case, values do
not.

Encoding: a path is split before it is percent-decoded, so an encoded `/ ? & = ( )` is
text: `qwen%2Fqwen2.5` is one part, `%28x%29` no sub-path. What RFC 3986 calls
unreserved is the same encoded or not, hence `%7E` is `~`. Between a name and its type
`+`, `%2B` and a space are one; elsewhere `+` is itself in a path, a space in a query.
Parentheses round a whole key, device or value make a sub-path; others are text that
has to balance; in a query they are always text. Control characters are refused
everywhere: text with line breaks goes into the body.

Source: upstream hb_singleton; RFC 3986; the WHATWG URL standard for queries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from .codecs.structured import decode_value, normalize_key
from .errors import BadRequest
from .message import Link, Message, is_id, is_private

Scoped = list[tuple[int, str, Any]]

MAX_PART_BYTES = 512
"""Length of a part as written."""
MAX_PARTS = 64
"""Parts of a path and all its sub-paths together."""
MAX_DEPTH = 8
"""Levels of sub-paths."""
MAX_PAIRS = 256
"""Pairs of a query: each is set on every step."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """A sub-path: resolve these steps, from their own base on, and use the result."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a path.

    `key`: what to call, lower case; "" where the part is an id, a sub-path, only
    `~device`, or the base. `message`: the keys that are set on this part; a value is
    text, True, what its type gives (`Resolve` and `Link` among them), or what `keys`
    held. `device`: whose key it is, where the part says so. `id`, `sub`: the part is an
    id or a sub-path. `text`: the part as written, percent-decoded.
    """

    key: str
    message: Message = field(default_factory=dict)
    device: str | Resolve | None = None
    id: str | None = None
    sub: Resolve | None = None
    text: str = ""


def parse(path: str, keys: Message | None = None) -> list[Step]:
    """Read a request target, still percent-encoded, into steps.

    `keys`: the request's other keys (headers), in lower case, with `N.` and `+type`
    understood; `path` among them is ignored, `priv` goes to every step. The first step
    is always the base: an empty one is put in front unless the path begins with an id, a
    sub-path or `~device`. Raises BadRequest naming the part at fault.
    Source: upstream hb_singleton:from/1.
    """
    return _Reader().path(path, keys, 0)


def decode_typed(type: str, text: str, name: str) -> Any:
    """The value that `name+type=text` stands for; `type` in any case.

    Lists and maps are RFC 9651 lists and dictionaries, `binary` is the text itself,
    `link` gives a `Link`, `resolve` a `Resolve`. `int` and `res` are short forms.
    Raises BadRequest naming `name`. Source: upstream dev_codec_structured:decode_value.
    """
    return _Reader().typed(type, text, name, 0)


class _Reader:
    """Reads one request; counts its parts over all sub-paths."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def path(self, text: str, keys: Message | None, depth: int) -> list[Step]:
        _check(text)
        target, _, query = text.partition("?")
        steps = self.steps(target, depth)
        common: Message = {}
        scoped: Scoped = []
        if keys:
            self.read_keys(keys, len(steps), common, scoped, depth)
            common.pop("path", None)
        of_query: Message = {}
        if query:
            self.read_query(query, len(steps), of_query, scoped, depth)
            common |= of_query
        for step in steps:
            if step.id is None and step.sub is None:
                step.message.update(common)
            elif "priv" in common:
                step.message["priv"] = common["priv"]
        if "committers" in of_query:
            # It says whose commitments count, and is nothing of the message that they are for.
            steps[0].message.pop("committers", None)
        for index, name, value in scoped:
            steps[index].message[name] = value
        return steps

    def steps(self, target: str, depth: int) -> list[Step]:
        parts = [part for part in _split(target, "/") if part]
        self.count += len(parts)
        if self.count > MAX_PARTS:
            over = parts[MAX_PARTS - self.count]
            raise BadRequest(
                f"a path has at most {MAX_PARTS} parts: {_short(over)} is one too many",
                error="too_many_parts",
            )
        steps = [self.part(part, depth) for part in parts]
        if not steps or steps[0].key:
            steps.insert(0, Step(""))
        return steps

    def part(self, raw: str, depth: int) -> Step:
        size = len(raw.encode())
        if size > MAX_PART_BYTES:
            raise BadRequest(
                f"a part of a path has at most {MAX_PART_BYTES} bytes: {_short(raw)} has {size}; "
                "send what is longer in the query or the body",
                error="part_too_long",
            )
        head, *pairs = _split(raw, "&")
        key, device = self.head(head, raw, depth)
        message: Message = {}
        for pair in pairs:
            if pair:
                name, value = self.pair(pair, raw, depth)
                message[name] = value
        text = _decode(raw, raw)
        inner = _group(key)
        if inner is not None:
            return Step("", message, device, sub=self.resolve(inner, raw, depth), text=text)
        key = _decode(key, raw)
        if is_id(key):
            return Step("", message, device, id=key, text=text)
        return Step(normalize_key(key), message, device, text=text)

    def head(self, head: str, where: str, depth: int) -> tuple[str, str | Resolve | None]:
        """What stands before a part's first `&`, as its key and device."""
        if not head:
            raise _bad(where, "names no key, device, id or sub-path before its &")
        if "%7" in head:
            head = head.replace("%7E", "~").replace("%7e", "~")
        if "~" not in head:
            return head, None
        key, *devices = _split(head, "~")
        if not devices:
            return key, None
        if len(devices) > 1 or not devices[0]:
            raise _bad(where, "needs exactly one device after its key, as in ~message@1.0")
        inner = _group(devices[0])
        if inner is not None:
            return key, self.resolve(inner, where, depth)
        return key, _decode(devices[0], where).lower()

    def pair(self, raw: str, where: str, depth: int, *, form: bool = False) -> tuple[str, Any]:
        written, equals, value = raw.partition("=")
        name, kind = _name(_decode(written, where), where)
        if not equals:
            if kind is not None:
                raise _bad_type(name, f"has the type {_short(kind)} but no value")
            return name, True
        inner = None if form else _group(value)
        if inner is not None:
            if kind is not None and kind.lower() not in _RESOLVE:
                raise _bad_type(name, "is a sub-path and has no type; as text, ( is %28 and ) %29")
            return name, self.resolve(inner, where, depth)
        text = _decode(value, where)
        return name, text if kind is None else self.typed(kind, text, name, depth)

    def typed(self, kind: str, text: str, name: str, depth: int) -> Any:
        kind = kind.lower()
        if kind not in _RESOLVE:
            return _value(kind, text, name)
        inner = _group(text)
        return self.resolve(text if inner is None else inner, name, depth)

    def resolve(self, inner: str, where: str, depth: int) -> Resolve:
        if depth == MAX_DEPTH:
            raise BadRequest(
                f"sub-paths are at most {MAX_DEPTH} deep: {_short(inner)} is one too many",
                error="too_deep",
            )
        if not inner.strip("/"):
            raise _bad(where, "has an empty sub-path")
        return Resolve(tuple(self.path(inner, None, depth + 1)))

    def read_keys(
        self, keys: Message, count: int, common: Message, scoped: Scoped, depth: int
    ) -> None:
        for name, value in keys.items():
            if "+" in name:
                name, _, kind = name.partition("+")
                value = self.typed(kind, _text(value, name), name, depth)
                _refuse_private(name)
            scope = _SCOPE.match(name) if "." in name else None
            if scope and _exists(scope[1], count) and not is_private(scope[2]):
                scoped.append((int(scope[1]), scope[2], value))
            else:
                common[name] = value

    def read_query(
        self, query: str, count: int, common: Message, scoped: Scoped, depth: int
    ) -> None:
        pairs = [pair for pair in query.replace("+", " ").split("&") if pair]
        if len(pairs) > MAX_PAIRS:
            raise BadRequest(f"a query has at most {MAX_PAIRS} pairs, this has {len(pairs)}")
        for pair in pairs:
            name, value = self.pair(pair, pair, depth, form=True)
            scope = _SCOPE.match(name)
            if scope is None:
                common[name] = value
                continue
            if not _exists(scope[1], count):
                raise BadRequest(
                    f"{_short(name)} is for a step that the path has not: they are 0 (the base) "
                    f"to {count - 1}",
                    error="bad_scope",
                )
            _refuse_private(scope[2])
            scoped.append((int(scope[1]), scope[2], value))


_RESOLVE = frozenset({"resolve", "res"})
_SCOPE = re.compile(r"(-?[0-9]+)\.([^.]+)\Z")
_TYPE_MARK = re.compile(r"[+ ]")
_UNREADABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")
_MARKS = {mark: re.compile(f"[(){mark}]") for mark in "/&~"}
_PARENTHESES = re.compile(r"[()]")
_SHAPES = {
    "integer": (re.compile(r"-?[0-9]{1,512}\Z"), "at most 512 digits, perhaps with a - before"),
    "float": (re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z"), "written like -1.5 or 2e3"),
    "boolean": (re.compile(r"true\Z|false\Z"), "true or false"),
    "atom": (re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*\Z"), "a word like not_found"),
}
_TYPES = "integer, float, boolean, atom, list, map, binary, link and resolve"


def _exists(number: str, count: int) -> bool:
    return number.isdigit() and len(number) <= 9 and int(number) < count


def _split(raw: str, mark: str) -> list[str]:
    """Pieces of `raw` between the marks that stand outside parentheses."""
    if "(" not in raw and ")" not in raw:
        return raw.split(mark)
    pieces = []
    depth = start = 0
    for match in _MARKS[mark].finditer(raw):
        if match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth -= 1
            if depth < 0:
                raise _bad(raw[start : match.end()], "closes a parenthesis that nothing opened")
        elif depth == 0:
            pieces.append(raw[start : match.start()])
            start = match.end()
    if depth:
        raise _bad(raw[start:], "opens a parenthesis that nothing closes")
    pieces.append(raw[start:])
    return pieces


def _group(raw: str) -> str | None:
    """What one pair of parentheses round the whole of `raw` holds; None without one."""
    if not raw.startswith("(") or not raw.endswith(")"):
        return None
    depth = 0
    for match in _PARENTHESES.finditer(raw):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return raw[1:-1] if match.end() == len(raw) else None
    return None


def _name(text: str, where: str) -> tuple[str, str | None]:
    """Name and type of `name+type`."""
    mark = _TYPE_MARK.search(text)
    name = text if mark is None else text[: mark.start()]
    if not name:
        raise _bad(where, "has a value without a name")
    name = normalize_key(name)
    _refuse_private(name)
    return name, None if mark is None else text[mark.end() :]


def _decode(raw: str, where: str) -> str:
    """`raw` percent-decoded; `where` is the part that an error names."""
    if "%" not in raw:
        return raw
    bad = _BAD_PERCENT.search(raw)
    if bad:
        raise BadRequest(
            f"{_short(where)}: {bad[0]!r} is no percent-encoding; % itself is written %25",
            error="bad_encoding",
        )
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequest(
            f"{_short(where)} is not UTF-8 once it is percent-decoded", error="bad_encoding"
        ) from None
    _check(text)
    return text


def _check(text: str) -> None:
    """Refuse control characters and lone surrogates."""
    if text.isascii() and text.isprintable():
        return
    found = _UNREADABLE.search(text)
    if found:
        kind = "a control character" if found[0] < "\xa0" else "no Unicode character"
        at = text[max(0, found.start() - 20) : found.end() + 20]
        raise BadRequest(f"{_short(at)}: {found[0]!r} is {kind}", error="bad_encoding")


def _value(kind: str, text: str, name: str) -> Any:
    """A value of any type but resolve."""
    if kind == "binary":
        return text
    if kind == "link":
        if not is_id(text):
            raise _bad_type(name, f"is a link, and {_short(text)} is no id of 43 characters")
        return Link(text)
    kind = "integer" if kind == "int" else kind
    if kind == "float":
        text = text.replace("e ", "e+")  # a form-encoded e+
    elif kind == "boolean":
        text = text.lower()
    if kind in _SHAPES:
        shape, meaning = _SHAPES[kind]
        if not shape.match(text):
            raise _bad_type(name, f"is no {kind}: {_short(text)} has to be {meaning}")
    elif kind not in ("list", "map"):
        raise _bad_type(name, f"has the unknown type {_short(kind)}; there are {_TYPES}")
    try:
        value = decode_value(kind, text)
    except BadRequest as error:
        raise _bad_type(name, f"is no {kind}: {error.detail}") from None
    if kind == "map":
        value = {normalize_key(key): member for key, member in value.items()}
        if "" in value:
            raise _bad_type(name, "is no map: a value in it has no key")
        for key in value:
            _refuse_private(key)
    return value


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _bad_type(name, "has a type, but its value is not UTF-8") from None
    raise _bad_type(name, "has a type, but its value is not text")


def _refuse_private(name: str) -> None:
    if is_private(name):
        raise BadRequest(f"the key {_short(name)} is private to the node", param=name)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _bad(part: str, what: str) -> BadRequest:
    return BadRequest(f"{_short(part)} {what}", error="bad_path")


def _bad_type(name: str, what: str) -> BadRequest:
    return BadRequest(f"{_short(name)} {what}", error="bad_type", param=name)
