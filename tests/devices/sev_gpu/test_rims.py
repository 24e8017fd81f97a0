"""Verification over real sockets: manifests (RIMs) and the service that gives them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devices.sev_gpu.simulate import Simulator
from devices.sev_gpu.simulation import rim
from devices.sev_gpu.simulation.certificates import Issued

from .pki import Behaviour, RimService, closed_port
from .world import World, running


@pytest.fixture
def world() -> Iterator[World]:
    with running(Simulator()) as found:
        yield found


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("error", "driver-rim-unreachable"),
        ("nonsense", "driver-rim-reply-malformed"),
        ("huge", "driver-rim-unreachable"),
        ("redirects", "driver-rim-unreachable"),
        ("silent", "driver-rim-timeout"),
        ("drips", "driver-rim-timeout"),
    ],
)
def test_a_manifest_service_that_behaves_badly(
    world: World, behaviour: Behaviour, reason: str
) -> None:
    if reason == "driver-rim-timeout":
        world.one_reply = 0.1
    world.rims.behaviour = behaviour
    with RimService(world.simulator.rims()) as elsewhere:
        world.rims.elsewhere = elsewhere.url
        verdict = world.verify()
        assert elsewhere.asked == []
    assert (verdict.reason, verdict.measurements) == (reason, "absent")


def test_a_manifest_service_that_is_down(world: World) -> None:
    world.rim_url = f"http://127.0.0.1:{closed_port()}"
    assert world.verify().reason == "driver-rim-unreachable"


def test_a_manifest_that_the_service_does_not_have(world: World) -> None:
    del world.rims.rims[world.driver_id]
    verdict = world.verify()
    assert (verdict.reason, verdict.rims) == ("driver-rim-missing", "missing")


def with_rim(data: bytes) -> Callable[[dict[str, Any]], Any]:
    """A reply that is honest about the manifest `data`."""
    text, digest = base64.b64encode(data).decode(), hashlib.sha256(data).hexdigest()
    return lambda reply: {**reply, "rim": text, "sha256": digest}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda reply: {**reply, "id": "NV_GPU_DRIVER_GH100_1.0"}, "wrong-id"),
        (lambda reply: {k: v for k, v in reply.items() if k != "id"}, "wrong-id"),
        (lambda reply: {**reply, "sha256": "00" * 32}, "sha256-mismatch"),
        (lambda reply: {k: v for k, v in reply.items() if k != "sha256"}, "sha256-mismatch"),
        (lambda reply: {**reply, "rim": "*" + reply["rim"]}, "reply-malformed"),
        (lambda reply: {**reply, "rim": [reply["rim"]]}, "reply-malformed"),
        (lambda reply: [reply], "reply-malformed"),
        (with_rim(b""), "malformed"),
        (with_rim(b"<SoftwareIdentity/>"), "malformed"),
        (with_rim(b"\xff\xfe" + "<x/>".encode("utf-16-le")), "malformed"),
    ],
)
def test_replies_that_lie(
    world: World, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    world.rims.change = change
    verdict = world.verify()
    assert (verdict.reason, verdict.measurements) == (f"driver-rim-{reason}", "absent")


BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE s [<!ENTITY a "aaaaaaaaaaaaaaaaaaaaaaaa">%s]>
<SoftwareIdentity>&z;</SoftwareIdentity>""" % b"".join(
    b'<!ENTITY %c "%s">' % (name, b"&%c;" % (name - 1) * 10) for name in range(ord("b"), ord("z"))
)
EXTERNAL = b"""<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<SoftwareIdentity>&x;</SoftwareIdentity>"""
DEEP = b"<a>" * 100_000


def two_signatures(data: bytes) -> bytes:
    start, end = data.index(b"<ds:Signature "), data.index(b"</ds:Signature>") + 15
    return data[:end] + data[start:end] + data[end:]


def hidden_original(data: bytes) -> bytes:
    """The signed document moved below a forged one: signature wrapping."""
    forged = data.replace(b'active="True"', b'active="False"')
    start = forged.index(b"<ds:Signature ")
    return forged[:start] + b"<w>" + data + b"</w>" + forged[start:]


@pytest.mark.parametrize(
    "make",
    [
        lambda data: BOMB,
        lambda data: EXTERNAL,
        lambda data: DEEP,
        lambda data: data[:-1],
        lambda data: data + b"<a/>",
        two_signatures,
        hidden_original,
    ],
    ids=["bomb", "external", "deep", "cut", "trailing", "two-signatures", "wrapped"],
)
def test_manifests_that_are_no_manifest(world: World, make: Callable[[bytes], bytes]) -> None:
    world.rims.rims[world.driver_id] = make(world.simulator.driver_rim())
    verdict = world.verify()
    assert (verdict.reason, verdict.rims) == ("driver-rim-malformed", "invalid")


def test_a_changed_golden_value(world: World) -> None:
    good = world.driver_golden[7][0].hex().encode()
    changed = world.simulator.driver_rim().replace(good, b"ab" * 48)
    world.rims.rims[world.driver_id] = changed
    assert world.verify().reason == "driver-rim-digest-mismatch"


def test_another_manifest_under_this_name(world: World) -> None:
    """The service is honest about a manifest that is genuine, and not the one asked for."""
    world.rims.rims[world.driver_id] = world.simulator.vbios_rim()
    assert world.verify().reason == "driver-rim-version-mismatch"


def test_the_manifest_of_another_chip(world: World) -> None:
    world.rims.rims[world.driver_id] = world.simulator.driver_rim("BLACKWELL")
    assert world.verify().reason == "driver-rim-product-mismatch"


def test_a_manifest_by_another_root(world: World) -> None:
    world.rims.rims[world.driver_id] = Simulator().driver_rim()
    assert world.verify().reason == "driver-rim-root-not-trusted"


def test_a_manifest_signed_by_a_key_that_its_chain_does_not_name(world: World) -> None:
    signer, *above = world.simulator.authorities.rim_chain("driver")
    other = Simulator().authorities.rim_chain("driver")[0]
    chain = [Issued(signer.certificate, other.key), *above]
    data = rim.build(world.simulator.driver, "GH100", world.driver_golden, chain)
    world.rims.rims[world.driver_id] = data
    assert world.verify().reason == "driver-rim-signature-invalid"


def test_a_manifest_without_a_value(world: World) -> None:
    chain = world.simulator.authorities.rim_chain("driver")
    world.rims.rims[world.driver_id] = rim.build(world.simulator.driver, "GH100", {}, chain)
    assert world.verify().reason == "driver-rim-empty"


def test_a_manifest_whose_signer_has_ended() -> None:
    ended = datetime(2025, 6, 26, tzinfo=UTC)
    simulator = Simulator(rim_ends=ended)
    with running(simulator) as world:
        assert world.verify().reason == "driver-rim-expired"
        past = int((ended - timedelta(days=1)).timestamp() * 1000)
        verdict = world.verify(rim_clock=past)
        assert (verdict.measurements, verdict.rims) == ("success", "expired")


def test_manifests_are_kept(world: World) -> None:
    world.verify()
    world.verify()
    assert len(world.rims.asked) == 2


def test_a_lie_is_not_kept(world: World) -> None:
    world.rims.change = lambda reply: {**reply, "sha256": "00" * 32}
    assert world.verify().reason == "driver-rim-sha256-mismatch"
    world.rims.change = None
    assert world.verify().measurements == "success"
