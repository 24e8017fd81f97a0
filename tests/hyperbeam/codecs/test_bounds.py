"""Large messages: four times the message is four times the work, or there is a clear 4xx."""

from collections.abc import Callable
from typing import Any

import pytest

from hyperbeam import BadRequest, HyperbeamError, Message, TooLarge
from hyperbeam.codecs import flat, httpsig, msgpack, structured
from hyperbeam.codecs.structured import MAX_PATH, MAX_READ
from hyperbeam.commitments import commit, unsigned_id, verify

from ..vectors import CODECS, arweave, ed25519, id_of
from .strategies import deep, same
from .work import work

MIB = 1024 * 1024
FORM = {"content-type": 'multipart/form-data; boundary="b"'}


def wide(count: int) -> Message:
    """Keys that no header can have: of others some are headers and some parts."""
    return {f"key {number}": number for number in range(count)}


def levels(count: int) -> Message:
    """`count` messages in one another, each with a text and a number."""
    message: Message = {"end": "x"}
    for number in range(count - 1):
        message = {"in": message, "text": "two\nlines", "n": number}
    return message


SHAPES: dict[str, Callable[[int], Message]] = {
    "keys": wide,
    "ids": lambda count: {id_of(number): "1" for number in range(count)},
    "list": lambda count: {"list": list(range(count))},
    "messages": lambda count: {"in": {f"k{n}": {"a": "1"} for n in range(count)}},
    "long values": lambda count: {f"k{n}": "x\n" * 3000 for n in range(count)},
    "levels": lambda count: {f"k{n}": levels(16) for n in range(count // 32)},
}


def _uses() -> dict[str, Callable[[Message], Callable[[], object]]]:
    def reading(codec: str) -> Callable[[Message], Callable[[], object]]:
        write, read = CODECS[codec]

        def prepare(message: Message) -> Callable[[], object]:
            written = write(message)
            return lambda: read(written)

        return prepare

    def writing(codec: str) -> Callable[[Message], Callable[[], object]]:
        return lambda message: lambda: CODECS[codec][0](message)

    def verifying(message: Message) -> Callable[[], object]:
        signed = commit(message, ed25519(1))
        return lambda: verify(signed)

    return {
        **{f"{codec} written": writing(codec) for codec in CODECS},
        **{f"{codec} read": reading(codec) for codec in CODECS},
        "id": lambda message: lambda: unsigned_id(message),
        "commit": lambda message: lambda: commit(message, ed25519(1)),
        "verify": verifying,
    }


@pytest.mark.parametrize("use", _uses())
@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_as_the_message_does(shape: str, use: str) -> None:
    prepare = _uses()[use]
    few, many = prepare(SHAPES[shape](300)), prepare(SHAPES[shape](1200))
    few()  # imports and caches are not of the message
    assert work(many) < 4.5 * work(few)


@pytest.mark.parametrize("use", _uses())
def test_work_grows_with_levels_as_paths_do(use: str) -> None:
    prepare = _uses()[use]
    few, many = prepare(levels(16)), prepare(levels(64))
    few()
    assert work(many) < 16 * work(few)


def test_quadratic_work_is_seen() -> None:
    def pairs(count: int) -> int:
        return sum(a == b for a in range(count) for b in range(count))

    assert work(lambda: pairs(120)) > 10 * work(lambda: pairs(30))


LARGE: dict[str, Message] = {
    "10,000 keys": wide(10_000),
    "10,000 values": {"list": list(range(9_000)), "in": {f"k{n}": "v" for n in range(998)}},
    "64 levels": levels(64),
    "128 levels": levels(128),
    "32 MiB": {"data": "x" * (32 * MIB)},
    "32 MiB in 64 levels": {"a": deep(62), "b": levels(62), "c": {"d": b"\xff\n" * (16 * MIB)}},
}  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", LARGE)
def test_large_messages_come_back(name: str, codec: str) -> None:
    if codec == "json@1.0" and name == "32 MiB in 64 levels":
        pytest.skip("bytes are text in JSON")
    write, read = CODECS[codec]
    assert same(read(write(LARGE[name])), LARGE[name])


@pytest.mark.parametrize("name", LARGE)
def test_large_messages_are_signed(name: str) -> None:
    signed = commit(commit(LARGE[name], ed25519(1)), arweave())
    verify(signed)


@pytest.mark.parametrize(
    "message", [wide(11_001), {"l": [0] * 11_000}, {"a": [[]] * 6_000, "b": [[]] * 5_000}]
)
def test_more_values_than_there_may_be(message: Message) -> None:
    for call in (structured.encode, flat.encode, httpsig.encode, unsigned_id):
        with pytest.raises(TooLarge, match="11,000"):
            call(message)


LONG_KEY = "k" * MIB


@pytest.mark.parametrize(
    "message",
    [
        {LONG_KEY: {f"k{n}": {"a": "1"} for n in range(4000)}},
        {LONG_KEY: {f"k{n}": "x\n" * 3000 for n in range(1000)}},
        {"é" * MIB: {"a": {"b": "1"}}},
        {"é" * (MAX_PATH // 4): {"a": {"b": "1"}}},
        {"é\n" * MAX_PATH: "x\n" * 3000},
    ],
)
def test_a_long_key_is_not_repeated_before_every_value(message: Message) -> None:
    """Four thousand parts below a key of a megabyte would be four gigabytes."""
    for call in (flat.encode, flat.to_text, httpsig.encode):
        with pytest.raises(BadRequest, match="4,096 characters"):
            call(message)


def test_the_longest_paths_come_back() -> None:
    message = {"k" * (MAX_PATH - 20): {"a": {"b": "x\n"}}}
    for codec in ("flat@1.0", "flat@1.0 text", "httpsig@1.0"):
        write, read = CODECS[codec]
        assert read(write(message)) == message


def part(head: bytes) -> bytes:
    return b'--b\r\ncontent-disposition: form-data;name="a"\r\n' + head + b"\r\n--b--"


def many(form: bytes, count: int = MAX_READ + 1) -> bytes:
    return b"".join([form % number for number in range(count)])


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (flat.from_text, many(b"%d: \n")),
        (flat.from_text, many(b"%06d" + b"/a" * 100 + b": \n", MAX_READ // 100)),
        (flat.decode, {str(number): "" for number in range(MAX_READ + 1)}),
        (flat.decode, {"a": "1," * MAX_READ, "ao-types": 'a="list"'}),
        (structured.decode, {"ao-types": many(b'%d="integer",').decode()}),
        (structured.decode, {str(n): "1," * 20_000 for n in range(11)}
         | {"ao-types": ",".join(f'{n}="list"' for n in range(11))}),
        (structured.decode, {"a": {str(number): "" for number in range(MAX_READ)}}),
        (httpsig.decode, (FORM, part(many(b"h%d: \r\n")))),
        (httpsig.decode, (FORM, many(b'--b\r\ncontent-disposition: form-data;name="%d"\r\n\r\n\r\n')
         + b"--b--")),
        (httpsig.decode, (FORM, part(b"ao-types: " + many(b'%d="integer",')))),
        (httpsig.decode, (FORM, part(b'ao-types: l="list"\r\nl: ' + b"1," * MAX_READ))),
        (msgpack.decode, b"\xdd\x00\x03\x0d\x41" + b"\x80" * (MAX_READ + 1)),
        (msgpack.decode, b"\x91" * 100 + b"\xdd\x00\x03\x0d\x41" + b"\xc3" * (MAX_READ + 1)),
    ],
)  # fmt: skip
def test_more_than_is_read(read: Callable[..., Any], data: Any) -> None:
    with pytest.raises(TooLarge, match="200,000"):
        read(*data) if isinstance(data, tuple) else read(data)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (flat.from_text, b"%41" * MIB + b": 1"),
        (flat.from_text, b"a/" * MAX_PATH + b"a: 1"),
        (httpsig.decode, (FORM, part(b"").replace(b'"a"', b'"' + b"%41" * MIB + b'"'))),
        (httpsig.decode, (FORM, part(b"").replace(b'"a"', b'"a"' + b";x=y" * MIB))),
    ],
)
def test_longer_names_than_are_read(read: Callable[..., Any], data: Any) -> None:
    with pytest.raises(BadRequest, match=r"4,096|bytes"):
        read(*data) if isinstance(data, tuple) else read(data)


def test_a_long_name_of_a_type_costs_what_it_is_long() -> None:
    names = ["%" * MIB, "a" + "%41b" * (MIB // 4), "é" * (MIB // 2)]
    for name in names:
        message = {name: 1}
        assert structured.decode(structured.encode(message)) == message


@pytest.mark.parametrize("pieces", [1, 1000])
def test_msgpack_of_much_text_is_read(pieces: int) -> None:
    """Its bytes are counted by values, not by how long they are: none is looked into."""
    value = {
        "t": ["x" * (MIB // pieces)] * pieces,
        "b": b"\xff" * MIB,
        "n": [2**70, -1, 2**40, 1.5] * 9000,
        "m": [{"k" * 40: None, "s" * 300: True}] * 20_000,
        "i": [2**14, 2**30, -(2**7), -(2**60)] * 9000,
    }
    assert msgpack.decode(msgpack.encode(value)) == value


def test_what_msgpack_says_is_there_and_is_not() -> None:
    for data in (
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 300_000,
        b"\xc6\xff\xff\xff\xff" + b"x" * 300_000,
    ):
        with pytest.raises(HyperbeamError) as caught:
            msgpack.decode(data)
        assert caught.value.status in (400, 413)
