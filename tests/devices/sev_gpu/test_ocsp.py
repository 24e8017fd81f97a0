"""Verification over real sockets: what an OCSP responder may say and do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from devices.sev_gpu.fetch import fetcher
from devices.sev_gpu.simulate import Simulator
from devices.sev_gpu.simulation import ocsp
from devices.sev_gpu.simulation.certificates import Issued
from hyperbeam.verify import nvidia

from .pki import Behaviour, OcspResponder, RimService, closed_port
from .world import NONCE, PATIENCE, World, running


@pytest.fixture
def world() -> Iterator[World]:
    with running(Simulator()) as found:
        yield found


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
    with running(simulator) as world:
        verdict = world.verify()
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
