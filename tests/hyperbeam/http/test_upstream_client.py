"""Requests that an upstream node signed: tests/fixtures/upstream."""

import json
from pathlib import Path

import pytest

from hyperbeam import HyperbeamError, Message
from hyperbeam.commitments import commitments, committers, message_id, unsigned_id, verify
from hyperbeam.errors import Unauthorized
from hyperbeam.node import Node

from .test_signed import message_of, read

FOLDER = Path(__file__).parents[2] / "fixtures" / "upstream"
IDS: dict[str, dict[str, str]] = json.loads((FOLDER / "ids.json").read_text())
REFUSED = {
    "quoted": "are not what was signed",  # servers take the space around a value away
    "nl": "are not what was signed",  # text that could be two headers
    "nestedlong": "are not what was signed",
    "partial": "the types of b are not signed",
}
HELD = [name for name in IDS if name not in REFUSED]
# Upstream takes over 32 keys in an order of its own, counts the parameter `bundle`, and links to a
# nested message by its signatures, which need not be over all of it.
OTHER_UNSIGNED = {"many", "inner", "innerbody"}


def raw(name: str) -> bytes:
    return (FOLDER / f"{name}.raw").read_bytes()


def data(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "priv"}


def test_every_capture_is_here() -> None:
    assert IDS.keys() == {file.stem for file in FOLDER.glob("*.raw")}


@pytest.mark.parametrize("name", HELD)
def test_what_an_upstream_node_signed_holds(name: str) -> None:
    message = read(raw(name))
    signers = message["priv"]["signers"]
    assert len(signers) == (2 if name.startswith("two-") else 1)
    assert set(committers(message)) == set(signers)
    assert len(commitments(message)) == len(signers) + 1
    assert message_id(message, "all") == IDS[name]["all"]
    verify(message)
    own = {key: message[key] for key in message["priv"]["committed"]}
    if name not in OTHER_UNSIGNED and not name.startswith("bundle-"):
        assert unsigned_id(own) == IDS[name]["unsigned"]
    assert IDS[name]["unsigned"] in commitments(message)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    with pytest.raises(Unauthorized, match=REFUSED[name]):
        read(raw(name))


@pytest.mark.parametrize("name", HELD)
def test_one_byte_changed_says_nothing_else_in_a_signers_name(name: str) -> None:
    request = raw(name)
    meant = data(read(request))
    for place in range(request.index(b"\r\n"), len(request), max(1, len(request) // 150)):
        changed = bytearray(request)
        changed[place] ^= 1
        try:
            found = read(bytes(changed))
        except HyperbeamError as error:
            assert error.status in (400, 401)
            continue
        # Without the header's name it is a request that nobody signed.
        if "signers" in found["priv"]:
            assert data(found) == meant, bytes(changed[max(0, place - 40) : place + 10])


@pytest.mark.parametrize("name", ["inner", "innerbody"])
def test_what_is_signed_inside_is_signed_there_too(name: str) -> None:
    message = read(raw(name))
    nested = message["a" if name == "inner" else "body"]
    verify(nested)
    assert len(committers(nested)) == 1
    assert committers(nested) != committers(message)


async def test_on_a_node(node: Node) -> None:
    for name in ("plain", "many", "inner"):
        assert await node.handle(message_of(raw(name))) == [read(raw(name))["priv"]["signers"][0]]
