"""Verification against a simulated PKI whose services are asked over real sockets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devices.sev_gpu.fetch import fetcher
from devices.sev_gpu.simulate import Simulator
from devices.sev_gpu.simulation import ocsp, rim
from devices.sev_gpu.simulation.certificates import Issued
from devices.sev_gpu.simulation.gpu import DRIVER_VALUES, KINDS
from hyperbeam.verify import nvidia

from .pki import Behaviour, OcspResponder, RimService, closed_port

NONCE = bytes(range(32))
PATIENCE = 20.0
"""Seconds that no test uses up: a longer wait than any that is under test."""


@dataclass
class World:
    """A simulation, its two services, and a verifier that knows where they are."""

    simulator: Simulator
    rims: RimService
    ocsp: OcspResponder
    one_reply: float = PATIENCE
    deadline: float = PATIENCE
    cache: nvidia.Cache = field(default_factory=nvidia.Cache)
    rim_url: str = ""
    ocsp_url: str = ""

    def verify(
        self, evidences: list[dict[str, str]] | None = None, **policy: Any
    ) -> nvidia.Verdict:
        rim_url, ocsp_url = self.rim_url or self.rims.url, self.ocsp_url or self.ocsp.url
        resources = nvidia.Resources(
            fetch=fetcher((rim_url, ocsp_url), self.one_reply),
            rim_url=rim_url,
            ocsp_url=ocsp_url,
            cache=self.cache,
            deadline=self.deadline,
        )
        trust = f"simulated:{self.simulator.fingerprint}"
        return nvidia.verify(
            self.simulator.evidence(NONCE) if evidences is None else evidences,
            NONCE.hex(),
            nvidia.Policy(**{"trust": trust, **policy}),
            resources=resources,
        )


@pytest.fixture
def world() -> Iterator[World]:
    simulator = Simulator()
    rims = RimService(simulator.rims())
    responder = OcspResponder(simulator.ocsp)
    with rims, responder:
        yield World(simulator, rims, responder)


def driver_id(world: World) -> str:
    return KINDS[world.simulator.arch].driver_rim_id(world.simulator.driver)


def driver_golden(world: World) -> dict[int, list[bytes]]:
    return KINDS[world.simulator.arch].golden(DRIVER_VALUES, world.simulator.driver)


@pytest.mark.parametrize("arch", ["HOPPER", "BLACKWELL"])
def test_all_is_good_but_the_root(arch: str) -> None:
    simulator = Simulator(gpus=2, arch=arch)
    rims, responder = RimService(simulator.rims()), OcspResponder(simulator.ocsp)
    with rims, responder:
        verdict = World(simulator, rims, responder).verify()
    assert [check.reason for check in verdict.checks if check.result != "pass"] == ["simulated"]
    assert not verdict.verified
    assert (verdict.trust, verdict.freshness, verdict.reason) == ("simulated", "fresh", "simulated")
    assert (verdict.revocation, verdict.measurements, verdict.rims) == ("good", "success", "valid")
    assert verdict.compared == 66
    assert all("SIMULATED" in claims["hwmodel"] for claims in verdict.claims)
    assert sorted(rims.asked) == sorted(f"/v1/rim/{id}" for id in simulator.rims())


def test_each_certificate_is_asked_about_once(world: World) -> None:
    """Three of the device, three of each manifest, of which both share two."""
    assert world.verify().revocation == "good"
    assert len(world.ocsp.asked) == 3 + 3 + 1


def test_the_responder_that_certificates_name_is_asked() -> None:
    with OcspResponder(lambda request: simulator.ocsp(request)) as responder:
        simulator = Simulator(ocsp_url=responder.url)
        with RimService(simulator.rims()) as rims:
            resources = nvidia.Resources(
                fetch=fetcher((rims.url, responder.url)), rim_url=rims.url, deadline=PATIENCE
            )
            policy = nvidia.Policy(trust=f"simulated:{simulator.fingerprint}")
            verdict = nvidia.verify(
                simulator.evidence(NONCE), NONCE.hex(), policy, resources=resources
            )
        assert verdict.revocation == "good"
        assert responder.asked


def test_a_host_that_only_a_certificate_names_is_not_asked(world: World) -> None:
    """Anybody may send a certificate: it must not make a node call where it says."""
    with OcspResponder(world.simulator.ocsp) as other:
        world.simulator = Simulator(ocsp_url=other.url)
        world.rims.rims = world.simulator.rims()
        resources = nvidia.Resources(
            fetch=fetcher((world.rims.url,)), rim_url=world.rims.url, deadline=PATIENCE
        )
        policy = nvidia.Policy(trust=f"simulated:{world.simulator.fingerprint}")
        verdict = nvidia.verify(
            world.simulator.evidence(NONCE), NONCE.hex(), policy, resources=resources
        )
        assert verdict.reason == "ocsp-unreachable"
        assert other.asked == []


Answer = Callable[[Simulator, bytes], bytes]


def at(hours: float) -> Answer:
    moment = datetime.now(UTC) + timedelta(hours=hours)

    def answer(simulator: Simulator, request: bytes) -> bytes:
        return ocsp.answer(request, simulator.authorities.issuers(), at=moment)

    return answer


def with_nonce(nonce: bytes) -> Answer:
    def answer(simulator: Simulator, request: bytes) -> bytes:
        return ocsp.answer(request, simulator.authorities.issuers(), nonce=nonce)

    return answer


def signed_by(choose: Callable[[Simulator], Issued]) -> Answer:
    def answer(simulator: Simulator, request: bytes) -> bytes:
        issuers = simulator.authorities.issuers()
        return ocsp.answer(request, issuers, signer=choose(simulator))

    return answer


def of_another_simulation(simulator: Simulator, request: bytes) -> bytes:
    return Simulator().ocsp(request)


def cut_short(simulator: Simulator, request: bytes) -> bytes:
    return simulator.ocsp(request)[:-1]


def empty(simulator: Simulator, request: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda simulator, request: simulator.ocsp(request, "revoked"), "certificate-revoked"),
        (lambda simulator, request: simulator.ocsp(request, "hold"), "certificate-hold"),
        (lambda simulator, request: simulator.ocsp(request, "unknown"), "ocsp-unknown"),
        (at(-48), "ocsp-stale"),
        (at(+48), "ocsp-stale"),
        (with_nonce(bytes(32)), "ocsp-nonce-mismatch"),
        (with_nonce(b"\1"), "ocsp-nonce-mismatch"),
        (signed_by(lambda simulator: simulator.devices[0].chain[0]), "ocsp-signer"),
        (signed_by(lambda simulator: Simulator().authorities.root), "ocsp-signer"),
        (of_another_simulation, "ocsp-refused"),
        (cut_short, "ocsp-malformed"),
        (empty, "ocsp-malformed"),
    ],
    ids=[
        "revoked", "hold", "unknown", "stale", "future", "nonce", "short-nonce", "gpu-signed",
        "other-root", "unauthorized", "cut", "empty",
    ],
)  # fmt: skip
def test_what_the_responder_may_answer(world: World, answer: Answer, reason: str) -> None:
    world.ocsp.answer = lambda request: answer(world.simulator, request)
    verdict = world.verify()
    assert verdict.reason == reason
    assert verdict.revocation == ("revoked" if reason.startswith("certificate") else "unchecked")
    assert verdict.measurements == "success"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("error", "ocsp-unreachable"),
        ("nonsense", "ocsp-malformed"),
        ("huge", "ocsp-unreachable"),
        ("redirects", "ocsp-unreachable"),
        ("silent", "ocsp-timeout"),
        ("drips", "ocsp-timeout"),
    ],
)
def test_a_responder_that_behaves_badly(world: World, behaviour: Behaviour, reason: str) -> None:
    assert world.verify(ocsp="skip").measurements == "success"  # manifests are at hand now
    if reason == "ocsp-timeout":
        world.one_reply = 0.1
    world.ocsp.behaviour = behaviour
    with OcspResponder(world.simulator.ocsp) as elsewhere:
        world.ocsp.elsewhere = elsewhere.url
        verdict = world.verify()
        assert elsewhere.asked == []
    assert (verdict.reason, verdict.revocation) == (reason, "unchecked")


@pytest.mark.parametrize("service", ["rims", "ocsp"])
def test_a_reply_that_ends_too_early(world: World, service: str) -> None:
    getattr(world, service).behaviour = "cut"
    what = {"rims": "driver-rim", "ocsp": "ocsp"}[service]
    assert world.verify().reason in {
        f"{what}-unreachable", f"{what}-reply-malformed", f"{what}-malformed"
    }  # fmt: skip


@pytest.mark.parametrize("service", ["rims", "ocsp"])
@pytest.mark.parametrize("behaviour", ["silent", "drips-head"])
def test_the_deadline_ends_what_no_time_limit_of_a_reply_does(
    world: World, service: str, behaviour: Behaviour
) -> None:
    if service == "ocsp":
        assert world.verify(ocsp="skip").measurements == "success"
    world.deadline = 0.5
    getattr(world, service).behaviour = behaviour
    assert world.verify().reason == {"rims": "driver-rim-timeout", "ocsp": "ocsp-timeout"}[service]


def test_a_responder_that_is_down(world: World) -> None:
    world.ocsp_url = f"http://127.0.0.1:{closed_port()}"
    verdict = world.verify()
    assert (verdict.reason, verdict.revocation) == ("ocsp-unreachable", "unchecked")


def test_skipping_says_so_and_asks_nobody(world: World) -> None:
    verdict = world.verify(ocsp="skip")
    assert (verdict.reason, verdict.revocation) == ("simulated", "unchecked")
    assert world.ocsp.asked == []


def test_cached_answers_outlive_the_responder(world: World) -> None:
    assert world.verify(ocsp="cached").revocation == "good"
    world.ocsp_url = f"http://127.0.0.1:{closed_port()}"
    assert world.verify(ocsp="cached").revocation == "good"
    assert world.verify(ocsp="require").reason == "ocsp-unreachable"


@pytest.mark.parametrize(
    ("status", "reason"), [("revoked", "certificate-revoked"), ("hold", "certificate-hold")]
)
def test_one_revoked_device_among_two(status: ocsp.Status, reason: str) -> None:
    simulator = Simulator(gpus=2)
    device = simulator.devices[1].chain[1].certificate
    simulator.statuses[device.serial_number] = status
    with RimService(simulator.rims()) as rims, OcspResponder(simulator.ocsp) as responder:
        verdict = World(simulator, rims, responder).verify()
    assert (verdict.reason, verdict.revocation) == (reason, "revoked")
    failed = [check.detail for check in verdict.checks if check.reason == reason]
    assert len(failed) == 1
    assert failed[0].startswith("GPU 1: ")


@pytest.mark.parametrize("kind", ["driver", "vbios"])
def test_a_revoked_signer_of_a_manifest(world: World, kind: str) -> None:
    signer = world.simulator.authorities.rim_chain(kind)[0].certificate
    world.simulator.statuses[signer.serial_number] = "revoked"
    verdict = world.verify()
    failed = [check.name for check in verdict.checks if check.reason == "certificate-revoked"]
    assert failed == [f"{kind}-rim-revocation"]


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
    del world.rims.rims[driver_id(world)]
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
    world.rims.rims[driver_id(world)] = make(world.simulator.driver_rim())
    verdict = world.verify()
    assert (verdict.reason, verdict.rims) == ("driver-rim-malformed", "invalid")


def test_a_changed_golden_value(world: World) -> None:
    good = driver_golden(world)[7][0].hex().encode()
    changed = world.simulator.driver_rim().replace(good, b"ab" * 48)
    world.rims.rims[driver_id(world)] = changed
    assert world.verify().reason == "driver-rim-digest-mismatch"


def test_another_manifest_under_this_name(world: World) -> None:
    """The service is honest about a manifest that is genuine, and not the one asked for."""
    world.rims.rims[driver_id(world)] = world.simulator.vbios_rim()
    assert world.verify().reason == "driver-rim-version-mismatch"


def test_the_manifest_of_another_chip(world: World) -> None:
    world.rims.rims[driver_id(world)] = world.simulator.driver_rim("BLACKWELL")
    assert world.verify().reason == "driver-rim-product-mismatch"


def test_a_manifest_by_another_root(world: World) -> None:
    world.rims.rims[driver_id(world)] = Simulator().driver_rim()
    assert world.verify().reason == "driver-rim-root-not-trusted"


def test_a_manifest_signed_by_a_key_that_its_chain_does_not_name(world: World) -> None:
    signer, *above = world.simulator.authorities.rim_chain("driver")
    other = Simulator().authorities.rim_chain("driver")[0]
    chain = [Issued(signer.certificate, other.key), *above]
    data = rim.build(world.simulator.driver, "GH100", driver_golden(world), chain)
    world.rims.rims[driver_id(world)] = data
    assert world.verify().reason == "driver-rim-signature-invalid"


def test_a_manifest_without_a_value(world: World) -> None:
    chain = world.simulator.authorities.rim_chain("driver")
    world.rims.rims[driver_id(world)] = rim.build(world.simulator.driver, "GH100", {}, chain)
    assert world.verify().reason == "driver-rim-empty"


def test_a_manifest_whose_signer_has_ended() -> None:
    ended = datetime(2025, 6, 26, tzinfo=UTC)
    simulator = Simulator(rim_ends=ended)
    with RimService(simulator.rims()) as rims, OcspResponder(simulator.ocsp) as responder:
        world = World(simulator, rims, responder)
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
