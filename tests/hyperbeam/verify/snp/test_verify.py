"""The verdict: on the genuine Milan report, and on made ones that fail one check each."""

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.snp import Policy, Verdict, verify
from hyperbeam.verify.snp.certificate import MAX_CERTIFICATES
from hyperbeam.verify.snp.kds import SERVICE, chain_url, vcek_url
from hyperbeam.verify.snp.report import parse
from hyperbeam.verify.snp.roots import shipped

from .simulated import (
    MEASUREMENT,
    NOW,
    Processor,
    certificate,
    chip_key,
    root,
    rsa_key,
    sign,
)

FIXTURES = Path(__file__).parent / "fixtures"
GENUINE = (FIXTURES / "milan_report.bin").read_bytes()
VCEK = (FIXTURES / "milan_vcek.der").read_bytes()
GENUINE_DATA = bytes([1, 2, 3, 4, 5]) + bytes(59)
GENUINE_NOW = datetime(2026, 12, 1, tzinfo=UTC)
GENUINE_MEASUREMENT = parse(GENUINE).measurement.hex()
DATA = bytes(range(64))


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def genuine(
    policy: Policy | None = None, report: bytes = GENUINE, vcek: bytes = VCEK, **changes: Any
) -> Verdict:
    asked = {"report_data": GENUINE_DATA, "now": GENUINE_NOW, **changes}
    return verify(report, [vcek], policy, **asked)


def made(
    processor: Processor | None = None,
    *,
    demands: dict[str, Any] | None = None,
    certificates: list[bytes] | None = None,
    now: datetime = NOW,
    expected: bytes | None = DATA,
    report: bytes | None = None,
    **fields: Any,
) -> Verdict:
    """The verdict on a made report that is good but for what is said."""
    processor = processor or Processor()
    usual = {"measurements": [MEASUREMENT.hex()], "trust": processor.trust}
    return verify(
        processor.report(DATA, **fields) if report is None else report,
        processor.certificates() if certificates is None else certificates,
        Policy.parse({**usual, **(demands or {})}),
        report_data=expected,
        now=now,
    )


def failures(verdict: Verdict) -> list[str]:
    return [check.reason for check in verdict.checks if check.result == "fail"]


def test_a_guest_that_may_be_debugged_is_refused_by_default() -> None:
    verdict = genuine(Policy(measurements=(GENUINE_MEASUREMENT,)))
    assert not verdict.verified
    assert failures(verdict) == ["debug-allowed"]
    assert (verdict.reason, verdict.trust, verdict.code) == ("debug-allowed", "amd", "accepted")


def test_the_genuine_report_verifies_where_all_is_allowed() -> None:
    verdict = genuine(Policy(measurements=(GENUINE_MEASUREMENT,), debug="allow"))
    assert verdict.verified
    assert (verdict.reason, verdict.trust, verdict.code) == ("", "amd", "accepted")
    assert verdict.revocation == "unchecked"
    assert verdict.measurement == GENUINE_MEASUREMENT
    (claims,) = verdict.claims
    assert claims["product"] == "Milan"
    assert claims["debug"] is True
    assert claims["reported_tcb"] == {
        "fmc": 0,
        "bootloader": 2,
        "tee": 0,
        "snp": 5,
        "microcode": 68,
    }
    sources = {check.name: check.source for check in verdict.checks if check.result == "pass"}
    assert sources["measurement"] == "hardware"
    assert verdict.as_dict()["policy_sha256"] == Policy.parse(verdict.policy).digest()


def test_an_unknown_measurement_verifies_nothing() -> None:
    nothing = genuine(Policy(debug="allow"))
    assert (nothing.verified, nothing.code) == (False, "unknown")
    assert nothing.reason == "measurement-unknown"
    assert failures(nothing) == []
    other = genuine(Policy(debug="allow", measurements=("00" * 48,)))
    assert (other.verified, other.code) == (False, "unknown")
    assert failures(other) == ["measurement-not-accepted"]


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (0x04, "report-signature"),
        (0x0A, "report-signature"),
        (0x50, "report-signature"),
        (0x90, "report-signature"),
        (0x1A0, "report-signature"),
        (0x29F, "report-signature"),
        (0x2A0, "report-signature"),
        (0x2E8, "report-signature"),
        (0x00, "report-version"),
        (0x34, "report-algorithm"),
        (0x400, "report-malformed"),
    ],
)
def test_the_genuine_report_changed_in_one_byte(at: int, reason: str) -> None:
    changed = GENUINE[:at] + bytes([GENUINE[at] ^ 0x40]) + GENUINE[at + 1 :]
    verdict = genuine(Policy(measurements=(GENUINE_MEASUREMENT,), debug="allow"), changed)
    assert not verdict.verified
    assert verdict.reason == reason
    assert verdict.claims == []
    assert verdict.code == "unknown"


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (datetime(2026, 8, 1, tzinfo=UTC), "certificate-not-yet-valid"),
        (datetime(2034, 1, 1, tzinfo=UTC), "certificate-expired"),
    ],
)
def test_the_genuine_report_at_another_time(now: datetime, reason: str) -> None:
    verdict = genuine(Policy(measurements=(GENUINE_MEASUREMENT,), debug="allow"), now=now)
    assert (verdict.verified, failures(verdict)) == (False, [reason])


@pytest.mark.parametrize("key", ["vcek", "vlek"])
@pytest.mark.parametrize("product", ["Milan", "Genoa", "Turin"])
def test_every_check_passes_on_each_product_line(product: str, key: str) -> None:
    processor = Processor(product, key, levels={"bootloader": 9, "fmc": 2, "microcode": 200})
    verdict = made(processor)
    assert failures(verdict) == []
    assert (verdict.verified, verdict.reason) == (False, "simulated")
    assert (verdict.trust, verdict.code) == ("simulated", "accepted")
    unknown = [check.reason for check in verdict.checks if check.result == "unknown"]
    assert unknown == [*(["chip-not-named"] if key == "vlek" else []), "revocation-unchecked"]
    assert verdict.claims[0]["provider"] == ("A provider" if key == "vlek" else None)
    assert verdict.claims[0]["reported_tcb"]["fmc"] == (2 if product == "Turin" else 0)


def test_a_simulated_root_is_not_amds() -> None:
    verdict = made(demands={"trust": "amd"})
    assert (verdict.verified, verdict.trust, verdict.reason) == (False, "none", "root-not-trusted")
    assert verdict.claims == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vmpl": 1}, "vmpl-too-high"),
        ({"vmpl": 0xFFFFFFFF}, "vmpl-too-high"),
        ({"policy": 0x30000 | 1 << 19}, "debug-allowed"),
        ({"policy": 0x30000 | 1 << 18}, "migration-allowed"),
        ({"measurement": bytes(48)}, "measurement-not-accepted"),
        ({"expected": bytes(64)}, "report-data-mismatch"),
        ({"expected": None}, "report-data-not-given"),
        ({"chip_id": bytes(64)}, "chip-mismatch"),
        ({"chip_id": b"c" * 64}, "chip-mismatch"),
        ({"reported_tcb": Processor().tcb(microcode=212)}, "tcb-mismatch"),
        ({"reported_tcb": Processor().tcb(bootloader=5)}, "tcb-mismatch"),
        ({"reported_tcb": Processor().tcb(tee=2)}, "tcb-mismatch"),
        ({"reported_tcb": Processor().tcb(snp=23)}, "tcb-mismatch"),
        ({"cpu": (0x19, 0x11)}, "product-mismatch"),
        ({"cpu": (0x17, 0x31)}, "product-mismatch"),
        (
            {
                "launch_tcb": Processor().tcb(snp=23),
                "demands": {"min_tcb": {"Milan": {"snp": 23}}},
            },
            "tcb-below-minimum",
        ),
        (
            {"launch_tcb": Processor().tcb(snp=21), "demands": {"min_tcb": {"Milan": {"snp": 22}}}},
            "launch-tcb-below-minimum",
        ),
        ({"demands": {"min_guest_svn": 4}}, "guest-svn-below-minimum"),
        ({"demands": {"keys": ["vlek"]}}, "key-refused"),
        ({"demands": {"products": ["Genoa"]}}, "product-refused"),
        ({"demands": {"chip_ids": ["00" * 64]}}, "chip-id-refused"),
        ({"demands": {"id_keys": ["11" * 48]}}, "id-key-refused"),
        ({"demands": {"host_data": ["11" * 32]}}, "host-data-refused"),
        ({"demands": {"author_keys": ["00" * 48]}}, "author-key-refused"),
        (
            {"flags": 1, "author_key_digest": b"a" * 48, "demands": {"author_keys": ["00" * 48]}},
            "author-key-refused",
        ),
    ],
)
def test_each_check_fails_alone(change: dict[str, Any], reason: str) -> None:
    verdict = made(**change)
    assert failures(verdict) == [reason]
    assert (verdict.verified, verdict.reason, verdict.trust) == (False, reason, "simulated")


def test_what_a_policy_allows_passes() -> None:
    verdict = made(
        demands={
            "debug": "allow",
            "migration": "allow",
            "max_vmpl": 2,
            "min_tcb": {"Milan": {"bootloader": 4, "tee": 1, "snp": 22, "microcode": 213}},
            "min_guest_svn": 3,
            "author_keys": [(b"a" * 48).hex()],
            "id_keys": [(b"i" * 48).hex()],
            "host_data": [(b"h" * 32).hex()],
            "chip_ids": [Processor().chip_id.hex()],
            "keys": ["vcek"],
            "products": ["Milan"],
        },
        vmpl=2,
        flags=1,
        author_key_digest=b"a" * 48,
        id_key_digest=b"i" * 48,
        host_data=b"h" * 32,
        report=None,
    )
    assert (failures(verdict), verdict.reason) == ([], "simulated")
    assert verdict.claims[0]["author_key_digest"] == (b"a" * 48).hex()


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        (Processor(days=(-300, -1)), "certificate-expired"),
        (Processor(days=(1, 300)), "certificate-not-yet-valid"),
        (Processor(extensions={"3.3": None}), "tcb-missing"),
        (Processor("Turin", extensions={"3.9": None}), "tcb-missing"),
        (Processor(extensions={"4": None}), "chip-mismatch"),
        (Processor(extensions={"4": bytes(64)}), "chip-mismatch"),
        (Processor(extensions={"2": None}), "product-mismatch"),
        (Processor(extensions={"2": b"\x16\x08Genoa-B0"}), "product-mismatch"),
        (Processor(issuer_extensions={"ca": False}), "not-an-authority"),
        (Processor(issuer_extensions={"ca": None}), "not-an-authority"),
        (Processor(issuer_extensions={"cert_sign": False}), "not-an-authority"),
        (Processor(issuer_extensions={"critical": "1.2.3"}), "not-an-authority"),
    ],
)
def test_certificates_that_fail_one_check(processor: Processor, reason: str) -> None:
    assert failures(made(processor)) == [reason]


def test_a_hidden_chip_never_passes() -> None:
    verdict = made(Processor(extensions={"4": bytes(64)}), chip_id=bytes(64))
    assert failures(verdict) == ["chip-mismatch"]


def test_chains_that_do_not_hold() -> None:
    good = Processor()
    leaf, issuer, top = good.certificates()
    other = Processor("Genoa")
    public = chip_key("chip").public_key()
    cases: list[tuple[list[bytes], str]] = [
        ([], "vcek-missing"),
        ([issuer, top], "vcek-missing"),
        (Processor(key="vlek").certificates(), "vcek-missing"),
        ([leaf, Processor(name="another").leaf(), issuer, top], "leaf-ambiguous"),
        ([leaf], "issuer-missing"),
        ([leaf, top], "issuer-missing"),
        ([leaf, issuer], "root-missing"),
        ([leaf, *other.certificates()[1:]], "issuer-missing"),
        ([leaf, issuer, b"nonsense"], "certificates-malformed"),
        (
            [leaf, issuer, *(Processor(levels={"tee": n}).leaf() for n in range(MAX_CERTIFICATES))],
            "certificates-too-many",
        ),
        (
            [certificate("SEV-VCEK", "SEV-Milan", rsa_key("thief"), public), issuer, top],
            "leaf-signature",
        ),
        (
            [
                leaf,
                certificate(
                    "SEV-Milan",
                    "ARK-Milan",
                    rsa_key("thief"),
                    rsa_key("issuer").public_key(),
                    ca=True,
                ),
                top,
            ],
            "issuer-signature",
        ),
        (
            [
                leaf,
                issuer,
                certificate(
                    "ARK-Milan", "ARK-Milan", rsa_key("root"), rsa_key("root").public_key(), ca=True
                ),
            ],
            "root-not-trusted",
        ),
        (
            [
                certificate("SEV-VCEK", "SEV-VLEK-Milan", rsa_key("issuer"), public),
                Processor(key="vlek").issuer(),
                top,
            ],
            "issuer-mismatch",
        ),
        (
            [
                certificate("SEV-VCEK", "SEV-Milan", rsa_key("issuer"), rsa_key("x").public_key()),
                issuer,
                top,
            ],
            "leaf-key",
        ),
        (
            [
                certificate("SEV-VCEK", "SEV-Milan", rsa_key("issuer"), public, critical="1.2.3"),
                issuer,
                top,
            ],
            "leaf-key",
        ),
    ]
    for certificates, reason in cases:
        verdict = made(good, certificates=certificates)
        assert failures(verdict) == [reason]
        assert (verdict.verified, verdict.trust, verdict.code) == (False, "none", "unknown")


def test_order_repeats_and_strangers_among_certificates_do_not_matter() -> None:
    processor = Processor()
    leaf, issuer, top = processor.certificates()
    forged = certificate(
        "SEV-Milan", "ARK-Milan", rsa_key("thief"), rsa_key("thief").public_key(), ca=True
    )
    certificates = [top, forged, issuer, leaf, leaf, root("Genoa"), *shipped()]
    assert failures(made(processor, certificates=certificates)) == []


def test_another_chips_genuine_certificate() -> None:
    one, other = Processor(), Processor(name="another")
    verdict = made(one, certificates=other.certificates())
    assert failures(verdict) == ["report-signature", "chip-mismatch"]
    verdict = genuine(Policy(debug="allow"), report=one.report(GENUINE_DATA))
    assert verdict.reason == "report-signature"


@pytest.mark.parametrize(("r", "s"), [(0, 0), (0, 1), (2**384 - 1, 1)])
def test_numbers_that_are_no_signature(r: int, s: int) -> None:
    report = Processor().report(DATA)[:0x2A0]
    report += r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(368)
    assert failures(made(report=report)) == ["report-signature"]


def test_the_signature_is_over_all_before_it() -> None:
    report = bytearray(Processor().report(DATA))
    report[0x29F] = 1
    assert failures(made(report=bytes(report))) == ["report-signature"]
    assert failures(made(report=sign(report, chip_key("chip")))) == []


def test_the_clock_is_the_real_one_unless_said() -> None:
    soon = Processor(days=(-10_000, 10_000))
    verdict = verify(soon.report(DATA), soon.certificates(), report_data=DATA)
    assert verdict.reason == "root-not-trusted"
    assert failures(made(soon, now=NOW + timedelta(20_000))) == ["certificate-expired"]


def test_where_amd_has_the_certificates() -> None:
    report = parse(GENUINE)
    assert vcek_url(SERVICE, report, "Milan") == (
        f"https://kdsintf.amd.com/vcek/v1/Milan/{report.chip_id.hex()}"
        "?blSPL=02&teeSPL=00&snpSPL=05&ucodeSPL=68"
    )
    turin = Processor("Turin", levels={"fmc": 1, "bootloader": 2, "microcode": 130})
    said = vcek_url("http://here/", parse(turin.report()), "Turin")
    chip = turin.chip_id[:8].hex()
    assert said == (
        f"http://here/vcek/v1/Turin/{chip}?fmcSPL=01&blSPL=02&teeSPL=00&snpSPL=00&ucodeSPL=130"
    )
    assert chain_url(SERVICE, "Genoa", "vlek") == f"{SERVICE}/vlek/v1/Genoa/cert_chain"


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.binary(max_size=1500), st.integers(0, 0x4A0 - 1)),
    st.lists(st.one_of(st.binary(max_size=64), st.sampled_from([VCEK, *shipped()])), max_size=20),
    st.one_of(st.none(), st.binary(max_size=80)),
)
def test_nothing_that_is_sent_raises_or_verifies(
    report: bytes | int, certificates: list[bytes], expected: bytes | None
) -> None:
    if isinstance(report, int):
        report = GENUINE[:report] + bytes([GENUINE[report] ^ 1]) + GENUINE[report + 1 :]
    policy = Policy(measurements=(GENUINE_MEASUREMENT,), debug="allow")
    verdict = verify(report, certificates, policy, report_data=expected, now=GENUINE_NOW)
    assert not verdict.verified
    assert verdict.reason
    assert verdict.claims == []
