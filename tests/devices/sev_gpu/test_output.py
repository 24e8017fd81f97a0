import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.sev_gpu.output import MAX_PARTS, MAX_SHOWN, MAX_TRIES, last_object, words

from .tools import entry

ENTRIES = [entry()] * 16
ANSWER = {"evidences": ENTRIES, "result_code": 0}
LINE = b'{"level": "info", "said": [1, 2, 3]}\n'


class Counting(json.JSONDecoder):
    """Counts how often a parse is begun."""

    tries = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        Counting.tries += 1
        return super().raw_decode(s, idx)


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr("devices.sev_gpu.output.json.JSONDecoder", Counting)
    Counting.tries = 0
    return Counting


def test_the_last_object_is_the_answer() -> None:
    assert last_object(b'{"a": 1}\n{"b": 2}') == {"b": 2}
    assert last_object(b'  {"a": {"b": 1}}\n\n') == {"a": {"b": 1}}
    assert last_object(b'at work\r{"a": 1}\r\n') == {"a": 1}
    assert last_object('{"a": "\u2028{}"}'.encode()) == {"a": "\u2028{}"}
    assert last_object(b'{"a": 1} trailing') is None
    assert last_object(b'log: {"a": 1}') is None
    assert last_object(b'[\n{"a": 1}') == {"a": 1}
    assert last_object(b"") is None and last_object(b"}") is None
    assert last_object(b"\xff" + b"[" * 100_000) is None


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_a_huge_log_before_the_answer_is_not_parsed(
    counting: type[Counting], indent: int | None
) -> None:
    log = LINE * 100_000
    assert last_object(log + json.dumps(ANSWER, indent=indent).encode()) == ANSWER
    assert counting.tries == (1 if indent is None else 1 + len(ENTRIES))


@pytest.mark.parametrize(
    ("said", "most"),
    [
        (LINE * 100_000, 1),
        (LINE * 100_000 + b"done", 0),
        (LINE * 100_000 + b"}", MAX_TRIES),
        (b'{"a":\n' * 200_000, 0),
        (b'{"a":\n' * 200_000 + b"}", 1),
        (b'{"a":\n' * 200_000 + b"1" + b"}" * 200_000, MAX_TRIES),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, 1),
        (b'{"a": [' + b"{}," * 1_000_000 + b"1]}", 0),
        (b"{}\n" * 500_000, 1),
        (b"\n" + b" " * 4_000_000 + b"}", 0),
    ],
)
def test_no_output_takes_many_parses(counting: type[Counting], said: bytes, most: int) -> None:
    last_object(said)
    assert counting.tries <= most


def test_an_answer_of_too_many_parts_is_none() -> None:
    assert last_object(json.dumps({"a": [0] * (MAX_PARTS - 10)}).encode()) is not None
    assert last_object(json.dumps({"a": [0] * (MAX_PARTS + 10)}).encode()) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=4),
)
def test_every_object_is_found_behind_every_log(
    value: dict[str, Any], indent: int | None, plain: bool, log: list[str]
) -> None:
    # A lone surrogate cannot be printed except as an escape.
    text = json.dumps(value, indent=indent, ensure_ascii=not plain)
    said = "".join(line + "\n" for line in log) + text + "\n"
    assert last_object(said.encode("utf-8", "replace")) == json.loads(
        text.encode("utf-8", "replace")
    )


@given(st.binary(max_size=2000) | st.text(max_size=2000))
def test_words_are_one_short_line_without_control_characters(said: bytes | str) -> None:
    shown = words(said)
    assert shown.isprintable() and len(shown) <= MAX_SHOWN


def test_words_are_the_last_ones_without_escapes() -> None:
    assert words(b"\x1b[1;31mno\x1b[0m GPU\r\n\x1b]0;title\x07here\x1b") == "no GPU here"
    assert words("x" * 10_000 + " the end").endswith("x the end")
