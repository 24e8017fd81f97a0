"""Genuine H100 reports: what passes, and that each kind of tampering fails for its own reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from hyperbeam.verify.nvidia import Policy, Resources, Verdict, chain, report, rim, verify

from . import samples
from .samples import CHAIN, CHAIN_2, NONCE, NONCE_2, REPORT, REPORT_2, THEN, entry, flipped

OFFLINE = Policy(ocsp="skip")
RESOURCES = Resources(rim_folder=samples.RIMS)


def check(*entries: dict[str, Any], nonce: str | None = NONCE, policy: Policy = OFFLINE) -> Verdict:
    return verify(list(entries) or [entry()], nonce, policy, resources=RESOURCES, now=THEN)


def test_sample_verifies_with_all_measurements() -> None:
    verdict = check()
    assert verdict.verified is True
    assert verdict.reason == ""
    assert (verdict.trust, verdict.freshness) == ("nvidia", "fresh")
    assert (verdict.measurements, verdict.rims, verdict.compared) == ("success", "valid", 33)
    assert verdict.revocation == "unchecked"
    assert any("33 of 33" in check.detail for check in verdict.checks)


def test_claims_have_nvidias_names_and_values() -> None:
    (claims,) = check().claims
    assert claims["measres"] == "success"
    assert claims["secboot"] is True
    assert claims["dbgstat"] == "disabled"
    assert claims["oemid"] == "5703"
    assert claims["hwmodel"] == "GH100 A01 GSP BROM"
    assert claims["ueid"] == "460032006552296075780760406069494258829212062021"
    assert claims["x-nvidia-gpu-driver-version"] == "545.00"
    assert claims["x-nvidia-gpu-vbios-version"] == "96.00.5E.00.01"
    assert claims["x-nvidia-gpu-attestation-report-signature-verified"] is True
    chain_claim = claims["x-nvidia-gpu-driver-rim-cert-chain"]
    assert chain_claim["x-nvidia-cert-expiration-date"] == "2025-06-26T06:10:12"


def test_that_confidential_mode_is_on_is_only_declared() -> None:
    found = [check for check in check().checks if check.name == "confidential-mode"]
    assert [(check.result, check.source) for check in found] == [("unknown", "declared")]


def test_the_verdict_is_json_and_repeats_its_policy() -> None:
    document = json.loads(json.dumps(check().as_dict()))
    assert document["policy"] == OFFLINE.as_dict()
    assert document["policy_sha256"] == OFFLINE.digest()


def test_the_default_policy_demands_revocation() -> None:
    verdict = check(policy=Policy())
    assert (verdict.verified, verdict.reason) == (False, "ocsp-unavailable")
    assert verdict.revocation == "unchecked"
    assert verdict.measurements == "success"


def test_without_resources_the_default_policy_demands_rims() -> None:
    verdict = verify([entry()], NONCE, now=THEN)
    assert (verdict.verified, verdict.reason) == (False, "driver-rim-missing")
    assert verdict.measurements == "absent"


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (10, "evidence-nonce-conflict"),
        (36, "report-slot"),
        (200, "measurement-mismatch"),
        (3952, "report-opaque"),
        (4048, "report-signature-invalid"),
    ],
)
def test_a_flipped_bit_fails_for_its_own_reason(offset: int, reason: str) -> None:
    verdict = check(entry(flipped(REPORT, offset)))
    assert (verdict.verified, verdict.reason) == (False, reason)


@pytest.mark.parametrize("offset", range(0, len(REPORT), 61))
@pytest.mark.parametrize("bit", [0, 7])
def test_no_flipped_bit_verifies(offset: int, bit: int) -> None:
    verdict = check(entry(flipped(REPORT, offset, bit)))
    assert verdict.verified is False
    assert verdict.reason
    assert "secboot" not in verdict.claims[0]


def test_a_changed_report_is_never_said_to_measure_right() -> None:
    verdict = check(entry(flipped(REPORT, 4048)))
    assert (verdict.measurements, verdict.compared) == ("absent", 0)
    assert verdict.freshness == "unknown"


@pytest.mark.parametrize("length", [0, 1, 36, 37, 45, 100, 3565, 3600, 3953, 4048])
def test_truncated(length: int) -> None:
    reason = "report-truncated" if length else "evidence-malformed"
    assert check(entry(REPORT[:length])).reason == reason


def test_lengthened() -> None:
    assert check(entry(REPORT + b"\0")).reason == "report-length"


def test_wrong_nonce() -> None:
    verdict = check(nonce=NONCE_2)
    assert (verdict.verified, verdict.reason) == (False, "nonce-mismatch")
    assert verdict.freshness == "unknown"


def test_nonce_not_given() -> None:
    verdict = check(nonce=None, policy=Policy())
    assert (verdict.verified, verdict.reason) == (False, "nonce-not-given")


@pytest.mark.parametrize("nonce", ["", "00", NONCE + "0", "g" * 64, " " * 64])
def test_a_nonce_of_another_shape(nonce: str) -> None:
    assert check(nonce=nonce).reason == "nonce-malformed"


def test_another_gpus_chain() -> None:
    assert check(entry(chain=CHAIN_2)).reason == "report-signature-invalid"
    verdict = check(entry(REPORT_2, CHAIN, NONCE_2), nonce=NONCE_2)
    assert verdict.reason == "fwid-mismatch"


def test_wrong_root() -> None:
    leaf_to_ica = b"".join(CHAIN.partition(b"-----END CERTIFICATE-----\n")[:2])
    assert check(entry(chain=leaf_to_ica)).reason == "root-not-trusted"
    verdict = check(policy=Policy(ocsp="skip", trust="simulated:" + "0" * 64))
    assert (verdict.reason, verdict.trust) == ("root-not-trusted", "none")


def test_a_flipped_bit_in_the_chain() -> None:
    for certificate in range(4):
        blocks = CHAIN.split(b"-----END CERTIFICATE-----")
        # Inside the base64 of the signature, which ends each certificate.
        end = len(blocks[certificate]) - 20
        swapped = b"A" if blocks[certificate][end : end + 1] != b"A" else b"B"
        blocks[certificate] = blocks[certificate][:end] + swapped + blocks[certificate][end + 1 :]
        verdict = check(entry(chain=b"-----END CERTIFICATE-----".join(blocks)))
        assert verdict.reason == (
            "root-not-trusted" if certificate == 3 else "chain-signature-invalid"
        )
        assert verdict.trust == "none"


def test_todays_clock_finds_expired_rims() -> None:
    verdict = verify([entry()], NONCE, OFFLINE, resources=RESOURCES)
    assert (verdict.verified, verdict.reason) == (False, "driver-rim-expired")
    assert (verdict.rims, verdict.measurements) == ("expired", "absent")


def test_a_past_rim_clock_passes_but_is_shown() -> None:
    policy = Policy(ocsp="skip", rim_clock=int(THEN.timestamp() * 1000))
    verdict = verify([entry()], NONCE, policy, resources=RESOURCES)
    assert (verdict.verified, verdict.rims) == (True, "expired")


def test_rims_missing(tmp_path: Path) -> None:
    (tmp_path / "driver.swidtag").write_bytes(samples.DRIVER_RIM)
    resources = Resources(rim_folder=tmp_path)
    verdict = verify([entry()], NONCE, OFFLINE, resources=resources, now=THEN)
    assert (verdict.reason, verdict.rims) == ("vbios-rim-missing", "missing")
    allowed = Policy(ocsp="skip", rims="allow-missing")
    verdict = verify([entry()], NONCE, allowed, resources=resources, now=THEN)
    assert (verdict.verified, verdict.measurements) == (True, "absent")
    assert "secboot" not in verdict.claims[0]


def test_the_second_sample_has_no_rims() -> None:
    allowed = Policy(ocsp="skip", rims="allow-missing")
    evidence = [entry(REPORT_2, CHAIN_2, NONCE_2)]
    verdict = verify(evidence, NONCE_2, allowed, resources=RESOURCES)
    assert (verdict.verified, verdict.trust, verdict.rims) == (True, "nvidia", "missing")
    assert verdict.claims[0]["x-nvidia-gpu-attestation-report-cert-chain-fwid-match"] is True
    strict = verify(evidence, NONCE_2, OFFLINE, resources=RESOURCES)
    assert (strict.verified, strict.reason) == (False, "driver-rim-missing")


def test_rim_ids() -> None:
    first, second = report.parse(REPORT), report.parse(REPORT_2)
    assert rim.driver_id(first, "HOPPER") == "NV_GPU_DRIVER_GH100_545.00"
    assert rim.driver_id(second, "HOPPER") == "NV_GPU_DRIVER_GH100_550.90.07"
    assert rim.vbios_id(first) == "NV_GPU_VBIOS_1010_0200_882_96005E0001"
    assert rim.vbios_id(second) == "NV_GPU_VBIOS_1010_0200_882_96009F0001"


@pytest.mark.parametrize("file", sorted(samples.PROD_RIMS.iterdir()), ids=lambda file: file.stem)
def test_other_rims_verify(file: Path) -> None:
    loaded = rim.load(file.read_bytes(), chain.rim_root())
    chain.check_dates(loaded.chain, THEN)
    assert loaded.version.replace(".", "") in file.name
    assert len(loaded.golden) == 12


def test_both_gpus_in_one_list() -> None:
    verdict = check(entry(), entry(REPORT_2, CHAIN_2, NONCE_2))
    assert verdict.verified is False
    assert {"nonce-mismatch", "mixed-nonces"} <= {check.reason for check in verdict.checks}
    assert len(verdict.claims) == 2


def test_one_gpu_twice() -> None:
    verdict = check(entry(), entry())
    assert (verdict.verified, verdict.reason) == (False, "repeated-leaf")


def test_a_second_valid_signature_changes_nothing() -> None:
    """ECDSA: (r, n - s) verifies as well, so evidence bytes are no id."""
    order = int(
        "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf"
        "581a0db248b0a77aecec196accc52973",
        16,
    )
    s = order - int.from_bytes(REPORT[-48:])
    verdict = check(entry(REPORT[:-48] + s.to_bytes(48)))
    assert verdict.verified is True
    assert verdict.claims == check().claims


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"modes": ["PPCIE"]}, "mode-not-allowed"),
        ({"min_driver": "545.00.01"}, "driver-too-old"),
        ({"ueids": ["1"]}, "ueid-not-allowed"),
        ({"gpu_count": 2}, "gpu-count"),
    ],
)
def test_policy_fields(policy: dict[str, object], reason: str) -> None:
    assert check(policy=OFFLINE.tightened(policy)).reason == reason


def test_policy_fields_that_are_met() -> None:
    policy = OFFLINE.tightened(
        {
            "modes": ["SPT"],
            "min_driver": "535.86",
            "ueids": ["460032006552296075780760406069494258829212062021"],
            "gpu_count": 1,
        }
    )
    assert check(policy=policy).verified is True


@pytest.mark.parametrize("arch", ["BLACKWELL", "AMPERE"])
def test_another_architecture_than_the_chips(arch: str) -> None:
    reason = "arch-mismatch" if arch == "BLACKWELL" else "arch-unknown"
    assert check(entry(arch=arch)).reason == reason


def test_a_flag_in_the_evidence_counts_for_nothing() -> None:
    assert check({**entry(), "simulated": True, "verified": False}).verified is True


def test_nvidia_is_asked_about_a_gpu_of_its_own() -> None:
    asked: list[str] = []

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        asked.append(url)
        raise ConnectionRefusedError(url)

    resources = Resources(rim_folder=samples.RIMS, fetch=fetch)
    verdict = verify([entry()], NONCE, Policy(), resources=resources, now=THEN)
    assert verdict.reason == "ocsp-unreachable"
    assert len(asked) == 7, "one question for a certificate, the RIMs share theirs"
    assert {url.split("/")[2] for url in asked} == {"ocsp.ndis.nvidia.com"}
