"""Requests as JavaScript clients of HyperBEAM sign them: tests/fixtures/clients."""

from pathlib import Path
from typing import Any

import pytest

from hyperbeam import HyperbeamError
from hyperbeam.node import Node

from .test_signed import message_of, read

FOLDER = Path(__file__).parents[2] / "fixtures" / "clients"
SIGNER = read((FOLDER / "hbsig-plain.raw").read_bytes())["priv"]["signers"]
VALUES: dict[str, dict[str, Any]] = {
    "hbsig-plain": {"hello": "world"},
    "hbsig-number": {"n": 42, "f": 1.5, "t": True, "e": ""},
    "hbsig-nested": {"a": {"b": {"c": "deep"}}, "z": "1"},
    "hbsig-list": {"l": [1, "two", 3]},
    "hbsig-lists": {"l": [{"a": 1}, [2]]},
    "hbsig-body": {"body": b"text"},
    "hbsig-data": {"data": "text"},
    "hbsig-bytes": {"b": b"\x01\x02\xff"},
    "hbsig-empty": {"m": {}, "l": [], "s": ""},
    "hbsig-long": {"s": "x" * 5000},
    "hbsig-lines": {"s": "a\r\nb"},
    "hbsig-unicode": {"s": "\u00e9\u20ac"},
    "hbsig-verify": {"a": "1", "m": {"x": 1}},
    "aoconnect-post": {"hello": "world"},
    "aoconnect-get": {"hello": "world"},
    "aoconnect-body": {"body": "text"},
}
FREE = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"body-keys",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"path",
        b"sec-fetch-mode",
        b"user-agent",
    }
)
"""Headers that these clients do not sign."""


def raw(name: str) -> bytes:
    return (FOLDER / f"{name}.raw").read_bytes()


def places(data: bytes) -> list[int]:
    head = data.partition(b"\r\n\r\n")[0]
    found, start = [], 0
    for line in head.split(b"\r\n"):
        name, colon, _ = line.partition(b": ")
        if colon and name.lower() not in FREE:
            found += range(start + len(name) + 2, start + len(line))
        start += len(line) + 2
    return [*found, *range(len(head) + 4, len(data))]


def test_every_capture_is_here() -> None:
    assert VALUES.keys() == {file.stem for file in FOLDER.glob("*.raw")}


@pytest.mark.parametrize("name", VALUES)
def test_a_signed_request_is_what_its_client_meant(name: str) -> None:
    message = read(raw(name))
    assert message["priv"]["signers"] == SIGNER
    assert len(SIGNER) == 1
    for key, value in VALUES[name].items():
        assert (type(message[key]), message[key]) == (type(value), value)
        assert key in message["priv"]["committed"]


@pytest.mark.parametrize("name", VALUES)
def test_one_byte_changed_is_refused(name: str) -> None:
    data = raw(name)
    for place in places(data):
        changed = bytearray(data)
        changed[place] ^= 1
        if data[place] in b"\r\n" or changed[place] in b"\r\n\x00 ":
            continue
        with pytest.raises(HyperbeamError) as caught:
            read(bytes(changed))
            pytest.fail(f"{bytes(changed[max(0, place - 40) : place + 10])!r} is taken")
        assert caught.value.status in (400, 401)


@pytest.mark.parametrize("name", [name for name in VALUES if name.startswith("hbsig")])
def test_another_path_is_refused(name: str) -> None:
    data = raw(name)
    with pytest.raises(HyperbeamError):
        read(data.replace(b" /~message@1.0/", b" /~message@1.0/x", 1))


async def test_on_a_node(node: Node) -> None:
    assert await node.handle(message_of(raw("hbsig-plain"))) == "world"
    assert await node.handle(message_of(raw("aoconnect-get"))) == "world"
    assert await node.handle(message_of(raw("hbsig-verify"))) is True
