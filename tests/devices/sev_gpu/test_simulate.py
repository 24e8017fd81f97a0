"""The simulator compared with what a real H100 wrote, and what its evidence can be made to say."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lxml import etree

from devices.sev_gpu.simulate import DRIVER, Simulator
from devices.sev_gpu.simulation.gpu import FWID_FIELD, PROTECTED_FIELD
from hyperbeam.verify import nvidia
from hyperbeam.verify.nvidia import report
from tests.hyperbeam.verify.nvidia import samples

NONCE = bytes(range(32))
OTHER_NONCE = bytes(32)
CC_CERTIFICATES = 5120
"""Bytes of a chain that NVML has room for (NVML_GPU_ATTESTATION_CERT_CHAIN_SIZE)."""
KEY, FWID = slice(29, 126), slice(-48, None)
"""Where a Hopper leaf's CompositeDeviceID has the device's public point, and the firmware id."""


def report_of(entry: dict[str, str]) -> bytes:
    return base64.b64decode(entry["evidence"])


def chain_of(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


def opaque_of(report: bytes) -> list[tuple[int, bytes]]:
    """The opaque fields in order, read by offsets alone."""
    at = 37 + 8 + 64 * 55 + 32
    end = at + 2 + int.from_bytes(report[at : at + 2], "little")
    assert end == len(report) - 96
    at += 2
    found = []
    while at < end:
        kind, length = (int.from_bytes(report[i : i + 2], "little") for i in (at, at + 2))
        found.append((kind, report[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


def policy(simulator: Simulator, **fields: Any) -> nvidia.Policy:
    generous = {"rims": "allow-missing", "ocsp": "skip"}
    return nvidia.Policy(**{**generous, "trust": f"simulated:{simulator.fingerprint}", **fields})


def verify(
    simulator: Simulator, evidences: list[dict[str, str]] | None = None, **fields: Any
) -> nvidia.Verdict:
    evidences = simulator.evidence(NONCE) if evidences is None else evidences
    return nvidia.verify(evidences, NONCE.hex(), policy(simulator, **fields))


def test_a_hopper_report_has_the_bytes_of_a_genuine_one_but_for_its_values() -> None:
    made, genuine = report_of(Simulator().evidence(NONCE)[0]), samples.REPORT_2
    assert made[:4] == genuine[:4]
    assert made[36] == genuine[36]
    assert made[37:45] == genuine[37:45]
    for block in range(64):
        at = 45 + block * 55
        assert made[at : at + 7] == genuine[at : at + 7]
    mine, theirs = opaque_of(made), opaque_of(genuine)
    assert [kind for kind, _ in mine] == [kind for kind, _ in theirs]
    lengths = {kind: len(value) for kind, value in theirs}
    assert {kind: len(value) for kind, value in mine} == lengths
    same = {4, 11, 13, 14, 15, 16, 18, 19, 21}
    assert dict(mine).items() >= {kind: v for kind, v in theirs if kind in same}.items()


def test_what_a_report_says_reads_back() -> None:
    entry = Simulator(arch="BLACKWELL", mode="MPT").evidence(NONCE)[0]
    read = report.parse(report_of(entry))
    assert read.nonce == NONCE
    assert (read.driver, read.vbios, read.chip, read.mode) == (
        DRIVER, "97.00.00.00.01", "GB100", "MPT",
    )  # fmt: skip
    assert (read.project, read.project_sku, read.chip_sku) == ("SIM0", "0200", "882")


def _profile(value: x509.ExtensionType) -> object:
    """What of an extension is the same for all devices."""
    if isinstance(value, x509.BasicConstraints | x509.KeyUsage):
        return value
    if isinstance(value, x509.SubjectAlternativeName):
        return [one.type_id for one in value if isinstance(one, x509.OtherName)]
    if isinstance(value, x509.UnrecognizedExtension):
        fixed = value.value[: KEY.start] + value.value[KEY.stop : FWID.start]
        return fixed, len(value.value)
    return type(value)


def _extensions(certificate: x509.Certificate) -> dict[str, tuple[bool, object]]:
    """By name, but for those that say where to ask."""
    left_out = (x509.CRLDistributionPoints, x509.AuthorityInformationAccess)
    return {
        one.oid.dotted_string: (one.critical, _profile(one.value))
        for one in certificate.extensions
        if not isinstance(one.value, left_out)
    }


def test_a_hopper_chain_has_the_profile_of_a_genuine_one() -> None:
    pem = base64.b64decode(Simulator().evidence(NONCE)[0]["certificate"])
    made, genuine = chain_of(pem), chain_of(samples.CHAIN_2)
    assert [_extensions(one) for one in made] == [_extensions(one) for one in genuine]
    for mine, theirs in zip(made, genuine, strict=True):
        assert mine.signature_algorithm_oid == theirs.signature_algorithm_oid
        assert mine.not_valid_after_utc == theirs.not_valid_after_utc
        key = mine.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp384r1"
    assert len(pem) <= CC_CERTIFICATES


def test_a_hopper_leaf_holds_its_devices_key_as_a_genuine_one() -> None:
    made = chain_of(base64.b64decode(Simulator().evidence(NONCE)[0]["certificate"]))
    for leaf, device in (made[:2], chain_of(samples.CHAIN_2)[:2]):
        oid = x509.ObjectIdentifier("2.23.133.5.4.1")
        found = leaf.extensions.get_extension_for_oid(oid).value
        assert isinstance(found, x509.UnrecognizedExtension)
        point = device.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        assert found.value[KEY] == point


def test_a_leaf_is_named_by_its_key_as_a_genuine_one() -> None:
    for leaf in (
        chain_of(base64.b64decode(Simulator().evidence(NONCE)[0]["certificate"]))[0],
        chain_of(samples.CHAIN)[0],
    ):
        identifier = leaf.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        serial = leaf.subject.get_attributes_for_oid(x509.NameOID.SERIAL_NUMBER)[0].value
        assert leaf.serial_number == int.from_bytes(identifier.digest)
        assert serial == identifier.digest.hex().upper()


def _attributes(element: etree._Element) -> set[str]:
    return set(map(str, element.attrib)) - {"name"}


def test_manifests_have_the_shape_of_genuine_ones() -> None:
    simulator = Simulator()
    for made, genuine in (
        (simulator.driver_rim(), samples.DRIVER_RIM),
        (simulator.vbios_rim(), samples.VBIOS_RIM),
    ):
        mine, theirs = etree.fromstring(made), etree.fromstring(genuine)
        assert [one.tag for one in mine.iter()] == [one.tag for one in theirs.iter()]
        for own, other in zip(mine.iter(), theirs.iter(), strict=True):
            assert _attributes(own) == _attributes(other)
            assert own.get("Algorithm") == other.get("Algorithm")
            for name in ("index", "active", "alternatives", "size", "URI"):
                assert own.get(name) == other.get(name)


def test_all_that_a_person_reads_says_that_it_is_simulated() -> None:
    simulator = Simulator(arch="BLACKWELL")
    pem = base64.b64decode(simulator.evidence(NONCE)[0]["certificate"])
    for certificate in chain_of(pem):
        name = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
        assert str(name).startswith("SIMULATED ")
        assert "NVIDIA" not in certificate.subject.rfc4514_string()
    for rim in simulator.rims().values():
        assert b"NVIDIA" not in rim
        assert b'name="SIMULATED' in rim


def test_nothing_is_shared_between_two_simulators() -> None:
    one, other = Simulator(), Simulator()
    assert one.fingerprint != other.fingerprint
    evidences = one.evidence(NONCE)
    assert verify(one, evidences).trust == "simulated"
    assert verify(other, evidences).reason == "root-not-trusted"


def test_a_simulated_root_is_never_nvidias() -> None:
    simulator = Simulator()
    verdict = verify(simulator, trust="nvidia")
    assert (verdict.verified, verdict.trust, verdict.reason) == (False, "none", "root-not-trusted")


def test_the_same_nonce_twice_gives_two_reports() -> None:
    simulator = Simulator()
    assert simulator.evidence(NONCE)[0]["evidence"] != simulator.evidence(NONCE)[0]["evidence"]


def test_two_gpus_are_two_devices() -> None:
    simulator = Simulator(gpus=2)
    verdict = verify(simulator, gpu_count=2)
    assert verdict.reason == "simulated"
    assert len({claims["ueid"] for claims in verdict.claims}) == 2


@pytest.mark.parametrize(
    ("arch", "mode"),
    [("HOPPER", "SPT"), ("HOPPER", "PPCIE"), ("BLACKWELL", "SPT"), ("BLACKWELL", "MPT")],
)
def test_modes(arch: str, mode: str) -> None:
    simulator = Simulator(arch=arch, mode=mode)
    assert verify(simulator).claims[0]["mode"] == mode
    others = tuple({"SPT", "MPT", "PPCIE"} - {mode})
    assert verify(simulator, modes=others).reason == "mode-not-allowed"


def test_hopper_has_no_multi_pass_through() -> None:
    with pytest.raises(ValueError, match="MPT"):
        Simulator(arch="HOPPER", mode="MPT")


def test_mixed_modes() -> None:
    simulator = Simulator(arch="BLACKWELL")
    simulator.devices.append(simulator.make_gpu("BLACKWELL", "MPT"))
    assert verify(simulator).reason == "mixed-modes"


def test_mixed_archs() -> None:
    simulator = Simulator()
    simulator.devices.append(simulator.make_gpu("BLACKWELL"))
    assert verify(simulator).reason == "mixed-archs"


def test_another_nonce_than_the_one_asked_for() -> None:
    simulator = Simulator()
    lying = {**simulator.evidence(OTHER_NONCE)[0], "nonce": NONCE.hex()}
    assert verify(simulator, [lying]).reason == "evidence-nonce-conflict"
    silent = {name: value for name, value in lying.items() if name != "nonce"}
    assert verify(simulator, [silent]).reason == "nonce-mismatch"


def test_mixed_nonces() -> None:
    simulator = Simulator(gpus=2)
    mixed = [simulator.evidence(NONCE)[0], simulator.evidence(OTHER_NONCE)[1]]
    reasons = [check.reason for check in verify(simulator, mixed).checks]
    assert "mixed-nonces" in reasons


def test_a_device_twice() -> None:
    simulator = Simulator()
    assert verify(simulator, simulator.evidence(NONCE) * 2).reason == "repeated-leaf"


def test_a_device_with_a_second_leaf() -> None:
    """Two leaves of one device are one GPU that passes for two."""
    simulator = Simulator(gpus=2)
    first, second = simulator.devices
    second.chain[1:] = first.chain[1:]
    reasons = {check.reason for check in verify(simulator).checks}
    assert {"repeated-device", "chain-issuer-mismatch"} <= reasons


def test_a_changed_measurement(tmp_path: Any) -> None:
    """As in devtools mode, or with other firmware than the manifest is of."""
    simulator = Simulator()
    for id, data in simulator.rims().items():
        (tmp_path / f"{id}.swidtag").write_bytes(data)
    resources = nvidia.Resources(rim_folder=tmp_path)
    good = nvidia.verify(
        simulator.evidence(NONCE), NONCE.hex(), policy(simulator), resources=resources
    )
    assert (good.measurements, good.compared, good.reason) == ("success", 33, "simulated")
    simulator.devices[0].measurements[8] = bytes(48)
    bad = nvidia.verify(
        simulator.evidence(NONCE), NONCE.hex(), policy(simulator), resources=resources
    )
    assert (bad.measurements, bad.reason) == ("fail", "measurement-mismatch")
    assert bad.claims[0]["measres"] == "fail"
    assert bad.claims[0].get("dbgstat") != "disabled"


@pytest.mark.parametrize("arch", ["HOPPER", "BLACKWELL"])
def test_firmware_that_the_certificate_is_not_for(arch: str) -> None:
    simulator = Simulator(arch=arch)
    simulator.devices[0].opaque[FWID_FIELD] = b"\7" * 48
    assert verify(simulator).reason == "fwid-mismatch"


def test_firmware_that_reports_no_id() -> None:
    simulator = Simulator()
    del simulator.devices[0].opaque[FWID_FIELD]
    del simulator.devices[0].opaque[PROTECTED_FIELD]
    verdict = verify(simulator)
    assert "fwid-not-reported" in [check.reason for check in verdict.checks]


def test_certificates_that_have_ended() -> None:
    ended = datetime(2025, 1, 1, tzinfo=UTC)
    assert verify(Simulator(device_ends=ended)).reason == "chain-expired"


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (slice(0, 1), "root-not-trusted"),
        (slice(0, 3), "root-not-trusted"),
        (slice(1, 5), "chain-key-usage"),
        (slice(4, 5), "chain-repeated-certificate"),
    ],
)
def test_short_chains(cut: slice, reason: str) -> None:
    simulator = Simulator()
    simulator.devices[0].chain = simulator.devices[0].chain[cut]
    verdict = verify(simulator)
    assert verdict.trust == "none"
    assert reason in [check.reason for check in verdict.checks]


def test_a_gap_in_the_chain() -> None:
    simulator = Simulator()
    del simulator.devices[0].chain[2]
    assert verify(simulator).reason == "chain-issuer-mismatch"


def test_another_gpus_chain() -> None:
    simulator = Simulator(gpus=2)
    first, second = simulator.evidence(NONCE)
    swapped = {**first, "certificate": second["certificate"]}
    assert verify(simulator, [swapped]).reason == "report-signature-invalid"
