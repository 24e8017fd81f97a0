"""Taking reports apart: the genuine one, each refusal, and anything at all."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp.report import SIZE, Report, Tcb, parse
from hyperbeam.verify.snp.roots import product_of_cpu

from .simulated import Processor

GENUINE = (Path(__file__).parent / "fixtures" / "milan_report.bin").read_bytes()


def test_the_genuine_report() -> None:
    report = parse(GENUINE)
    assert (report.version, report.key, report.vmpl, report.cpu) == (2, "vcek", 0, None)
    assert report.report_data == bytes([1, 2, 3, 4, 5]) + bytes(59)
    assert report.measurement.hex().startswith("b07af9620f3b839b")
    assert report.chip_id.hex().startswith("3ac3fe21e13fb099")
    assert (report.debug, report.migration, report.smt) == (True, False, True)
    assert Tcb.read(report.reported_tcb, "Milan") == Tcb(2, 0, 5, 68)
    assert not report.has_author_key
    assert report.product is None


def test_patch_levels_stand_elsewhere_on_turin() -> None:
    raw = bytes(range(8))
    assert Tcb.read(raw, "Turin") == Tcb(bootloader=1, tee=2, snp=3, microcode=7, fmc=0)
    assert Tcb.read(raw, "Genoa") == Tcb(bootloader=0, tee=1, snp=6, microcode=7)


@pytest.mark.parametrize(
    ("cpu", "product"),
    [
        ((0x19, 0x01), "Milan"),
        ((0x19, 0x11), "Genoa"),
        ((0x19, 0xA0), "Genoa"),
        ((0x1A, 0x02), "Turin"),
        ((0x1A, 0x11), "Turin"),
        ((0x17, 0x31), None),
        ((0x19, 0x21), None),
        ((0x1A, 0x50), None),
    ],
)
def test_product_lines_by_cpu(cpu: tuple[int, int], product: str | None) -> None:
    assert product_of_cpu(*cpu) == product


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 1}, "report-version"),
        ({"version": 6}, "report-version"),
        ({"algorithm": 0}, "report-algorithm"),
        ({"algorithm": 2}, "report-algorithm"),
        ({"flags": 7 << 2}, "report-key"),
        ({"flags": 2 << 2}, "report-key"),
    ],
)
def test_what_is_no_known_report_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse(Processor().report(**change))
    assert caught.value.reason == reason


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1, 4000])
def test_the_size_is_exact(size: int) -> None:
    with pytest.raises(Malformed) as caught:
        parse(GENUINE.ljust(4000, b"\0")[:size])
    assert caught.value.reason == "report-size"


@pytest.mark.parametrize("at", [0x2A0 + 48, 0x2E8 - 1, 0x2E8 + 48, 0x330, SIZE - 1])
def test_nothing_else_fits_beside_a_signature(at: int) -> None:
    with pytest.raises(Malformed) as caught:
        parse(GENUINE[:at] + b"\1" + GENUINE[at + 1 :])
    assert caught.value.reason == "report-malformed"


@given(st.one_of(st.binary(max_size=2 * SIZE), st.binary(min_size=SIZE, max_size=SIZE)))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse(data), Report)
    except Malformed as error:
        assert error.reason.startswith("report-")


@settings(max_examples=300)
@given(st.integers(0, SIZE - 1), st.integers(0, 255))
def test_any_byte_of_a_report_may_be_another(at: int, value: int) -> None:
    try:
        report = parse(GENUINE[:at] + bytes([value]) + GENUINE[at + 1 :])
    except Malformed as error:
        assert error.reason.startswith("report-")
    else:
        assert len(report.signed) == 0x2A0
