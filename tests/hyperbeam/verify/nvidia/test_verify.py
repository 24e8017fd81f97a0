"""What no published sample shows: other chips, several GPUs, modes, RIM sources, policies."""

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from hyperbeam.verify.nvidia import Cache, Policy, Resources, Verdict, verify

from . import pki
from .pki import NOW, World

NONCE = bytes(range(32))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def blackwell() -> World:
    return World(arch="BLACKWELL", chip="GB202", driver="575.10", mode=0)


def rims(folder: Path, *files: bytes) -> Resources:
    for number, data in enumerate(files):
        (folder / f"{number}.swidtag").write_bytes(data)
    return Resources(rim_folder=folder)


def check(
    world: World,
    *entries: dict[str, Any],
    resources: Resources | None = None,
    fetch: Callable[[str, bytes | None, str], bytes] | None = None,
    **policy: Any,
) -> Verdict:
    asked = Policy.parse({"ocsp": "skip", "trust": world.trust, **policy})
    resources = resources or Resources(fetch=fetch, rim_url="http://rim.test")
    return verify(list(entries), NONCE.hex(), asked, resources=resources, now=NOW)


def service(**files: bytes) -> Callable[[str, bytes | None, str], bytes]:
    """A RIM service as a function."""

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        id = url.rpartition("/v1/rim/")[2]
        if id not in files:
            raise FileNotFoundError(url)
        return reply(id, files[id])

    return fetch


def reply(id: str, data: bytes, /, **changes: Any) -> bytes:
    said = {
        "id": id,
        "rim": base64.b64encode(data).decode(),
        "sha256": hashlib.sha256(data).hexdigest(),
        "last_updated": "2026-01-01T00:00:00Z",
        "rim_format": "TEXT",
    }
    return json.dumps(said | changes).encode()


def test_simulated_evidence_passes_everything_but_trust(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(), world.vbios_rim())
    verdict = check(world, world.entry(NONCE), resources=resources)
    assert (verdict.verified, verdict.reason, verdict.trust) == (False, "simulated", "simulated")
    assert (verdict.measurements, verdict.compared) == ("success", 28)
    failed = [check.name for check in verdict.checks if check.result == "fail"]
    assert failed == ["trust"]


@pytest.mark.parametrize("trust", ["nvidia", "simulated:" + "1" * 64])
def test_simulated_evidence_has_no_other_root(world: World, trust: str) -> None:
    verdict = check(world, world.entry(NONCE), trust=trust)
    assert (verdict.verified, verdict.reason, verdict.trust) == (False, "root-not-trusted", "none")


def test_blackwell(blackwell: World, tmp_path: Path) -> None:
    fetch = service(
        **{
            blackwell.driver_id: blackwell.driver_rim(),
            blackwell.vbios_id: blackwell.vbios_rim(),
        }
    )
    assert blackwell.driver_id == "NV_GPU_CC_DRIVER_GB202_575.10"
    verdict = check(blackwell, blackwell.entry(NONCE), fetch=fetch)
    assert (verdict.reason, verdict.measurements) == ("simulated", "success")
    assert verdict.claims[0]["x-nvidia-gpu-attestation-report-cert-chain-fwid-match"] is True
    wrong = check(blackwell, blackwell.entry(NONCE, opaque={20: bytes(48)}), fetch=fetch)
    assert wrong.reason == "fwid-mismatch"


def test_blackwell_without_a_chip_name_is_gb100() -> None:
    world = World(arch="BLACKWELL", chip="GB100")
    asked: list[str] = []

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        asked.append(url.rpartition("/")[2])
        raise FileNotFoundError(url)

    check(world, world.entry(NONCE, opaque={34: None, 35: None}), fetch=fetch)
    assert sorted(asked) == ["NV_GPU_CC_DRIVER_GB100_550.90.07", world.vbios_id]


def test_hopper_evidence_under_a_blackwell_name(world: World) -> None:
    evidence = world.entry(NONCE) | {"arch": "BLACKWELL"}
    assert check(world, evidence).reason == "arch-mismatch"


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "SPT"),
        ({21: b"\x55"}, "SPT"),
        ({21: b"\xaa"}, "PPCIE"),
        ({36: b"\0\0\0\0"}, "SPT"),
        ({36: b"\1\0\0\0"}, "MPT"),
        ({36: b"\2\0\0\0"}, "PPCIE"),
        ({21: b"\xaa", 36: b"\2"}, "PPCIE"),
        ({22: bytes(144)}, "SPT"),
    ],
)
def test_modes(world: World, fields: dict[int, bytes], mode: str) -> None:
    evidence = world.entry(NONCE, opaque=fields)
    verdict = check(world, evidence, rims="allow-missing", modes=[mode])
    assert verdict.reason == "simulated"
    assert verdict.claims[0]["mode"] == mode
    other = "MPT" if mode != "MPT" else "SPT"
    assert check(world, evidence, modes=[other]).reason == "mode-not-allowed"


@pytest.mark.parametrize(
    "fields",
    [
        {36: b"\3"},
        {36: b""},
        {21: b"\1"},
        {21: b"\xaa", 36: b"\1"},
        {22: bytes(7)},
        {12: bytes(5)},
        {20: bytes(47)},
        {6: bytes(7)},
        {3: b"..\0"},
        {3: b"\xff\0"},
        {3: None},
        {17: b"../x\0"},
        {35: b"GB/100"},
    ],
)
def test_opaque_fields_that_make_no_sense(world: World, fields: dict[int, bytes | None]) -> None:
    assert check(world, world.entry(NONCE, opaque=fields)).reason == "report-opaque"


def test_several_gpus(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(), world.vbios_rim())
    gpus = [world.entry(NONCE, number) for number in range(4)]
    verdict = check(world, *gpus, resources=resources, gpu_count=4)
    assert (verdict.reason, verdict.compared, len(verdict.claims)) == ("simulated", 4 * 28, 4)
    ueids = [claims["ueid"] for claims in verdict.claims]
    assert len(set(ueids)) == 4
    assert check(world, *gpus, ueids=ueids[:3], rims="allow-missing").reason == "ueid-not-allowed"


def test_one_bad_gpu_among_several_is_named(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(), world.vbios_rim())
    wrong = {index: pki.measured(index) for index in range(1, 65)} | {25: bytes(48)}
    bad = world.entry(NONCE, 1, measurements=wrong)
    verdict = check(world, world.entry(NONCE), bad, resources=resources)
    assert (verdict.reason, verdict.measurements) == ("measurement-mismatch", "fail")
    (failed,) = (check for check in verdict.checks if check.name == "measurements" and check.reason)
    assert failed.detail == "GPU 1: not the golden value: measurement 24"
    assert [claims["measres"] for claims in verdict.claims] == ["success", "fail"]


def test_an_unreadable_gpu_among_several(world: World) -> None:
    broken = world.entry(NONCE, 1) | {"evidence": base64.b64encode(b"nothing").decode()}
    verdict = check(world, world.entry(NONCE), broken, rims="allow-missing")
    assert (verdict.verified, verdict.reason, verdict.trust) == (False, "report-truncated", "none")
    assert len(verdict.claims) == 2


@pytest.mark.parametrize(
    ("fields", "reason"), [({36: b"\1"}, "mixed-modes"), ({21: b"\xaa"}, "mixed-modes")]
)
def test_mixed_modes(world: World, fields: dict[int, bytes], reason: str) -> None:
    gpus = world.entry(NONCE), world.entry(NONCE, 1, opaque=fields)
    assert check(world, *gpus, rims="allow-missing").reason == reason


def test_mixed_nonces_without_a_callers() -> None:
    world = World()
    gpus = [world.entry(NONCE), world.entry(bytes(32), 1)]
    policy = Policy.parse({"trust": world.trust})
    verdict = verify(gpus, None, policy, now=NOW)
    assert verdict.reason == "nonce-not-given"
    assert "mixed-nonces" in {check.reason for check in verdict.checks}


def test_mixed_archs(world: World) -> None:
    other = world.entry(NONCE, 1) | {"arch": "BLACKWELL"}
    verdict = check(world, world.entry(NONCE), other)
    assert "mixed-archs" in {check.reason for check in verdict.checks}


def test_two_leaves_of_one_device(world: World) -> None:
    _, device = world.gpu(0)
    again = pki.issue("GH100 again", device, [*pki.signer(), pki.hopper_extension()])
    twin = World()
    twin.__dict__.update(world.__dict__, keys={0: (again, device)})
    verdict = check(world, world.entry(NONCE), twin.entry(NONCE), rims="allow-missing")
    assert verdict.reason == "repeated-device"


def test_one_serial_for_two_devices(world: World) -> None:
    leaf, _ = world.gpu(0)
    _, device = world.gpu(1)
    same = pki.issue("GH100", device, pki.signer(), serial=leaf.certificate.serial_number)
    twin = World()
    twin.__dict__.update(world.__dict__, keys={0: (same, device)})
    gpus = world.entry(NONCE), twin.entry(NONCE, opaque={20: None})
    assert check(world, *gpus, rims="allow-missing").reason == "repeated-ueid"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "evidence-not-a-list"),
        (None, "evidence-not-a-list"),
        ("[]", "evidence-not-a-list"),
        ([], "evidence-empty"),
        ([None], "evidence-malformed"),
        ([{}], "evidence-malformed"),
        ([{"arch": "HOPPER"}], "evidence-malformed"),
        ([{"arch": "HOPPER", "evidence": "é", "certificate": "AA=="}], "evidence-malformed"),
        ([{"arch": "HOPPER", "evidence": "A", "certificate": "AA=="}], "evidence-malformed"),
        ([{"arch": "HOPPER", "evidence": "A" * 90_000}], "evidence-too-large"),
        (
            [{"arch": "HOPPER", "evidence": "AAAA", "certificate": "A" * 2**24}],
            "evidence-too-large",
        ),
        (
            [{"arch": "HOPPER", "nonce": 1, "evidence": "AA==", "certificate": "A"}],
            "nonce-malformed",
        ),
        ([{}] * 17, "too-many-gpus"),
    ],
)
def test_no_evidence(value: Any, reason: str) -> None:
    verdict = verify(value, NONCE.hex())
    assert (verdict.verified, verdict.reason, verdict.claims) == (False, reason, [])


def test_rims_from_the_service_are_cached(world: World) -> None:
    asked: list[str] = []
    inner = service(**{world.driver_id: world.driver_rim(), world.vbios_id: world.vbios_rim()})

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        asked.append(url)
        return inner(url, body, content_type)

    resources = Resources(fetch=fetch, rim_url="http://rims.example/", cache=Cache())
    for _ in range(2):
        assert check(world, world.entry(NONCE), resources=resources).measurements == "success"
    assert sorted(asked) == [
        f"http://rims.example/v1/rim/{world.driver_id}",
        f"http://rims.example/v1/rim/{world.vbios_id}",
    ]


def test_an_expired_rim_at_hand_is_asked_for_again(world: World, tmp_path: Path) -> None:
    old = pki.issue("Old", world.rim_root, pki.signer(), ends=NOW - timedelta(hours=1))
    folder = rims(tmp_path, world.driver_rim(chain=[old, world.rim_root]), world.vbios_rim())
    assert check(world, world.entry(NONCE), resources=folder).reason == "driver-rim-expired"
    fetch = service(**{world.driver_id: world.driver_rim()})
    online = Resources(rim_folder=tmp_path, fetch=fetch, rim_url="http://rim.test")
    assert check(world, world.entry(NONCE), resources=online).reason == "simulated"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (FileNotFoundError(), "driver-rim-missing"),
        (TimeoutError(), "driver-rim-timeout"),
        (ConnectionRefusedError(), "driver-rim-unreachable"),
        (RuntimeError("a bug"), "driver-rim-unreachable"),
    ],
)
def test_no_rim_from_the_service(world: World, raised: Exception, reason: str) -> None:
    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        raise raised

    assert check(world, world.entry(NONCE), fetch=fetch).reason == reason
    allowed = check(world, world.entry(NONCE), fetch=fetch, rims="allow-missing")
    assert (allowed.reason, allowed.measurements, allowed.rims) == (
        "simulated",
        "absent",
        "missing",
    )


def test_a_service_that_hangs_ends_with_the_deadline(world: World) -> None:
    release = threading.Event()

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        release.wait()
        return b""

    resources = Resources(fetch=fetch, rim_url="http://rim.test", deadline=0.05)
    assert check(world, world.entry(NONCE), resources=resources).reason == "driver-rim-timeout"
    release.set()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "NV_GPU_DRIVER_GH100_1.0"}, "driver-rim-wrong-id"),
        ({"sha256": "0" * 64}, "driver-rim-sha256-mismatch"),
        ({"sha256": None}, "driver-rim-sha256-mismatch"),
        ({"rim": "%"}, "driver-rim-reply-malformed"),
        ({"rim": None}, "driver-rim-reply-malformed"),
    ],
)
def test_a_service_that_lies(world: World, changes: dict[str, Any], reason: str) -> None:
    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        return reply(url.rpartition("/")[2], world.driver_rim(), **changes)

    for policy in ("require", "allow-missing"):
        assert check(world, world.entry(NONCE), fetch=fetch, rims=policy).reason == reason


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"id":1,"id":1}', b"[" * 10**6])
def test_a_service_that_talks_nonsense(world: World, data: bytes) -> None:
    fetch = lambda url, body, content_type: data  # noqa: E731
    assert check(world, world.entry(NONCE), fetch=fetch).reason == "driver-rim-reply-malformed"


def test_a_rim_of_another_version(world: World) -> None:
    fetch = service(
        **{world.driver_id: world.driver_rim(version="1.2"), world.vbios_id: world.vbios_rim()}
    )
    assert check(world, world.entry(NONCE), fetch=fetch).reason == "driver-rim-version-mismatch"


def test_a_rim_of_another_architecture(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(product="GB100"), world.vbios_rim())
    verdict = check(world, world.entry(NONCE), resources=resources)
    assert verdict.reason == "driver-rim-product-mismatch"


def test_a_driver_rim_in_the_place_of_the_vbios(world: World) -> None:
    fetch = service(**{world.driver_id: world.driver_rim(), world.vbios_id: world.driver_rim()})
    assert check(world, world.entry(NONCE), fetch=fetch).reason == "vbios-rim-version-mismatch"


def test_rims_with_a_value_for_the_same_measurement(world: World, tmp_path: Path) -> None:
    both = {n: [pki.measured(n + 1)] for n in range(7, 12)}
    resources = rims(tmp_path, world.driver_rim(golden=both), world.vbios_rim())
    assert check(world, world.entry(NONCE), resources=resources).reason == "rim-index-conflict"


def test_a_rim_without_a_value(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(golden={}), world.vbios_rim())
    assert check(world, world.entry(NONCE), resources=resources).reason == "driver-rim-empty"


def test_the_video_decoders_measurement(world: World, tmp_path: Path) -> None:
    golden = {n: [bytes(48)] if n == 35 else [pki.measured(n + 1)] for n in range(20, 40)}
    resources = rims(tmp_path, world.driver_rim(golden=golden), world.vbios_rim())
    on = check(world, world.entry(NONCE), resources=resources)
    assert on.reason == "measurement-mismatch"
    off = check(world, world.entry(NONCE, opaque={11: b"\x55"}), resources=resources)
    assert (off.reason, off.compared) == ("simulated", 27)
    absent = check(world, world.entry(NONCE, opaque={11: None}), resources=resources)
    assert absent.reason == "measurement-mismatch"


def test_a_rim_of_which_nothing_was_compared(world: World, tmp_path: Path) -> None:
    only = {35: [bytes(48)]}
    resources = rims(tmp_path, world.driver_rim(golden=only), world.vbios_rim())
    off = check(world, world.entry(NONCE, opaque={11: b"\x55"}), resources=resources)
    assert off.reason == "driver-not-compared"


def test_a_measurement_that_the_report_lacks(world: World, tmp_path: Path) -> None:
    resources = rims(tmp_path, world.driver_rim(), world.vbios_rim())
    few = {index: pki.measured(index) for index in range(1, 40)}
    verdict = check(world, world.entry(NONCE, measurements=few), resources=resources)
    assert verdict.reason == "measurement-mismatch"


def test_a_rim_chain_under_a_root_of_its_own(world: World, tmp_path: Path) -> None:
    root = pki.issue("RIM Root", None, pki.authority())
    own = pki.issue("Signer", root, pki.signer())
    resources = rims(tmp_path, world.driver_rim(chain=[own, root]), world.vbios_rim())
    verdict = check(world, world.entry(NONCE), resources=resources)
    assert verdict.reason == "driver-rim-root-not-trusted"


def test_a_good_rim_beside_a_bad_one(world: World, tmp_path: Path) -> None:
    """A folder may hold several for one version: one that verifies is enough."""
    bad = world.driver_rim().replace(b"GH100", b"GH10O")
    resources = rims(tmp_path, bad, world.driver_rim(), world.vbios_rim())
    assert check(world, world.entry(NONCE), resources=resources).reason == "simulated"
    for file in tmp_path.iterdir():
        file.unlink()
    resources = rims(tmp_path, bad, world.vbios_rim())
    verdict = check(world, world.entry(NONCE), resources=resources)
    assert (verdict.reason, verdict.rims) == ("driver-rim-digest-mismatch", "invalid")


def test_nothing_is_asked_for_evidence_that_fails(world: World) -> None:
    asked: list[str] = []

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        asked.append(url)
        return b""

    evidence = world.entry(NONCE)
    report = base64.b64decode(evidence["evidence"])
    evidence["evidence"] = base64.b64encode(report[:-1] + bytes([report[-1] ^ 1])).decode()
    assert check(world, evidence, fetch=fetch, ocsp="require").reason == "report-signature-invalid"
    assert asked == []


def test_the_simulated_root_is_the_chains_last_certificate(world: World) -> None:
    """A root that stands anywhere else in the chain trusts nothing."""
    leaf, device = world.gpu(0)
    other = pki.issue("Other Root", None, pki.authority())
    chain = leaf.pem + device.pem + world.middle.pem + world.root.pem + other.pem
    evidence = world.entry(NONCE) | {"certificate": base64.b64encode(chain).decode()}
    assert check(world, evidence).reason == "root-not-trusted"
    der = base64.b64encode(leaf.certificate.public_bytes(Encoding.DER)).decode()
    assert check(world, evidence | {"certificate": der}).reason == "chain-malformed"


@pytest.mark.parametrize("trust", ["nvidia", None])
def test_no_hardware_stands_behind_another_root(world: World, trust: str | None) -> None:
    verdict = check(world, world.entry(NONCE), trust=trust or world.trust)
    assert verdict.checks
    assert "hardware" not in {check.source for check in verdict.checks}


@pytest.mark.parametrize("ocsp", ["require", "cached", "skip"])
def test_nvidia_is_never_asked_about_simulated_gpus(world: World, ocsp: str) -> None:
    asked: list[str] = []

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        asked.append(url)
        raise ConnectionRefusedError(url)

    resources = Resources(fetch=fetch)
    verdict = check(world, world.entry(NONCE), resources=resources, ocsp=ocsp)
    assert verdict.reason == "driver-rim-missing"
    more = {"ocsp": ocsp, "rims": "allow-missing"}
    verdict = check(world, world.entry(NONCE), resources=resources, **more)
    assert verdict.reason == ("simulated" if ocsp == "skip" else "ocsp-missing")
    assert not [url for url in asked if "nvidia" in url]


def test_what_is_no_file_in_the_rims_folder_is_left_alone(world: World, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "!pipe.swidtag")
    (tmp_path / "!endless.swidtag").symlink_to("/dev/zero")
    (tmp_path / "!folder.swidtag").mkdir()
    resources = rims(tmp_path, world.driver_rim(), world.vbios_rim())
    assert check(world, world.entry(NONCE), resources=resources).reason == "simulated"
