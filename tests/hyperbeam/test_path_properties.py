"""What holds for every path: it gives steps or BadRequest, and writing undoes reading."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, quote_from_bytes, unquote, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperbeam.errors import BadRequest
from hyperbeam.message import is_id, is_private
from hyperbeam.path import (
    MAX_DEPTH,
    MAX_PART_BYTES,
    MAX_PARTS,
    Resolve,
    Step,
    decode_typed,
    parse,
)

SYNTAX = st.text('/~&=()?+%.@-,;:"\\ aB19é\x00', max_size=60)
LIKELY = st.lists(
    st.sampled_from(
        [
            "/",
            "a",
            "~message@1.0",
            "&",
            "k=v",
            "(",
            ")",
            "?",
            "1.",
            "+integer=",
            "+list=",
            "%2F",
            "7",
        ]
    ),
    max_size=20,
).map("".join)
TEXT = st.text("aZ09é€𝒳-_.!'*/?&=()%~ +@:;\"", max_size=4)
NAMES = st.text("az09é𝒳-_.!'*/?&=()%~@:;\"", min_size=1, max_size=4)
PLAIN_NAMES = st.text("az09é𝒳-_!'*/?&=()%~@:;\"", min_size=1, max_size=4)
KEYS = st.text("az09é𝒳-_.!'*/?&=()% +@:;\"", min_size=1, max_size=4)
DEVICES = st.sampled_from(["message@1.0", "a-b@2", "x"])
IDS = st.sampled_from(["A" * 43, "-_" * 21 + "z"])
SCALARS = st.one_of(
    TEXT,
    st.just(True),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
KINDS = st.sampled_from(["key", "key", "device", "id", "sub"])
SLASHES = st.sampled_from(["/", "//"])
STARTS = st.sampled_from(["", "/"])
MARKS = st.sampled_from(["+", "%2B", "%20"])
PERHAPS = st.sampled_from([False, False, True])


@st.composite
def paths(draw: st.DrawFn, depth: int = 2) -> tuple[str, list[Step]]:
    """A path as somebody might write it, and the steps that it stands for."""
    written, steps = zip(*(draw(parts(depth)) for _ in range(1 + draw(PERHAPS))), strict=True)
    base = [] if not steps[0].key else [Step("")]
    return draw(STARTS) + draw(SLASHES).join(written), [*base, *steps]


@st.composite
def parts(draw: st.DrawFn, depth: int) -> tuple[str, Step]:
    kind = draw(KINDS)
    raw = key = ""
    device: str | Resolve | None = None
    id: str | None = None
    sub: Resolve | None = None
    if kind == "id":
        raw = id = draw(IDS)
    elif kind == "sub" and depth:
        raw, sub = draw(subs(depth))
    elif kind != "device":
        key = draw(KEYS)
        raw = quote(key, safe="")
    if kind == "device" or draw(PERHAPS):
        if depth and draw(PERHAPS):
            written, device = draw(subs(depth))
        else:
            written = device = draw(DEVICES)
        raw += f"~{written}"
    message: dict[str, Any] = {}
    while draw(PERHAPS):
        name = draw(NAMES)
        pair, message[name] = draw(pairs(name, depth))
        raw += f"&{pair}"
    if len(raw.encode()) > MAX_PART_BYTES:
        return "a", Step("a", text="a")
    return raw, Step(key, message, device, id, sub, unquote(raw))


@st.composite
def subs(draw: st.DrawFn, depth: int) -> tuple[str, Resolve]:
    raw, steps = draw(paths(depth - 1))
    return f"({raw})", Resolve(tuple(steps))


@st.composite
def pairs(draw: st.DrawFn, name: str, depth: int) -> tuple[str, Any]:
    written = quote(name, safe="")
    if depth and draw(PERHAPS):
        raw, sub = draw(subs(depth))
        return f"{written}{'+resolve' if draw(PERHAPS) else ''}={raw}", sub
    value = draw(SCALARS)
    if value is True:
        return (f"{written}+boolean=true" if draw(PERHAPS) else written), value
    if isinstance(value, int):
        return f"{written}{draw(MARKS)}integer={value}", value
    if isinstance(value, float):
        return f"{written}{draw(MARKS)}float={value!r}", value
    return f"{written}={quote(value, safe='')}", value


def walk(steps: list[Step] | tuple[Step, ...]) -> list[Step]:
    found = list(steps)
    for step in steps:
        for value in (step.sub, step.device, *step.message.values()):
            if isinstance(value, Resolve):
                found += walk(value.steps)
    return found


def steps_or_refusal(path: str, keys: dict[str, Any] | None = None) -> None:
    try:
        steps = parse(path, keys)
    except BadRequest as error:
        assert error.detail.isprintable()
        error.detail.encode()
        return
    assert not steps[0].key
    every = walk(steps)
    assert len([step for step in every if step.text]) <= MAX_PARTS
    for step in every:
        assert step.text.isascii() is False or step.text.isprintable()
        assert step.key == step.key.lower() or len(step.key.encode()) in (32, 42, 43)
        assert not any(is_private(name) for name in step.message)
        assert (step.id is None) or is_id(step.id)


@given(st.one_of(st.text(st.characters()), SYNTAX, LIKELY))
@example("/a&k=(b&l=(c))?k+resolve=(d")
def test_any_text(path: str) -> None:
    steps_or_refusal(path)


@given(st.binary())
def test_any_bytes(raw: bytes) -> None:
    steps_or_refusal(raw.decode("latin-1"))
    steps_or_refusal(raw.decode("utf-8", "surrogateescape"))
    steps_or_refusal("/" + quote_from_bytes(raw, safe="/&=~()?"))


@given(st.sampled_from(["integer", "float", "boolean", "atom", "list", "map", "link", "resolve"]),
       st.one_of(st.text(), SYNTAX, LIKELY))  # fmt: skip
def test_any_typed_value(kind: str, text: str) -> None:
    try:
        decode_typed(kind, text, "name")
    except BadRequest as error:
        error.detail.encode()


@given(paths())
def test_steps_written_and_read_back(case: tuple[str, list[Step]]) -> None:
    path, steps = case
    assert parse(path) == steps


@given(
    paths(1),
    st.dictionaries(PLAIN_NAMES, TEXT, max_size=3),
    st.dictionaries(PLAIN_NAMES, TEXT, max_size=3),
)
def test_query_and_headers_reach_every_step(
    case: tuple[str, list[Step]], query: dict[str, str], keys: dict[str, str]
) -> None:
    path, steps = case
    for got, alone in zip(parse(f"{path}?{urlencode(query)}", keys), steps, strict=True):
        common = {} if alone.id or alone.sub else {**keys, **query}
        assert got.message == {**alone.message, **common}


@given(paths(1), st.data())
def test_a_scope_reaches_its_step_alone(case: tuple[str, list[Step]], data: st.DataObject) -> None:
    path, steps = case
    index = data.draw(st.integers(0, len(steps) - 1))
    name = data.draw(PLAIN_NAMES)
    expected = [step.message for step in steps]
    expected[index] = {**expected[index], name: "v"}
    scoped = f"{index}.{name}"
    assert [step.message for step in parse(f"{path}?{urlencode({scoped: 'v'})}")] == expected
    assert [step.message for step in parse(path, {scoped: "v"})] == expected


@given(
    st.dictionaries(
        st.text("abc019.-_!#$%&'*^`|~", min_size=1).filter(lambda name: not is_private(name)),
        st.text(),
    )
)
def test_headers_never_fail(headers: dict[str, str]) -> None:
    steps = parse("/a/b", headers)
    assert set().union(*(step.message for step in steps)) >= {
        name for name in headers if "." not in name
    }
    assert sum(len(step.message) for step in steps) >= len(headers)


@given(st.integers(MAX_PART_BYTES - 8, MAX_PART_BYTES + 8), st.integers(0, 3))
def test_length_limit_is_exact(size: int, before: int) -> None:
    path = "/a" * before + "/" + "x" * size
    if size <= MAX_PART_BYTES:
        assert parse(path)[-1].key == "x" * size
    else:
        with pytest.raises(BadRequest):
            parse(path)


@given(st.integers(1, 100), st.integers(1, 12))
def test_count_and_depth_limits_are_exact(parts: int, depth: int) -> None:
    inside = "/".join("a" * parts)
    path = "(" * depth + inside + ")" * depth
    if parts + depth <= MAX_PARTS and depth <= MAX_DEPTH:
        assert len(walk(parse(path))) == parts + 1 + depth
    else:
        with pytest.raises(BadRequest):
            parse(path)
