"""What a CPU's report is bound to: key set, nonce and GPU evidence, and nothing beside them."""

import hashlib
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.verify.challenge import gpu_digest, quote
from hyperbeam.verify.snp import Policy, Verdict, verify
from tests.hyperbeam.verify.snp.simulated import MEASUREMENT, NOW, Processor

KEYSET = hashlib.sha256(b"a key set").hexdigest()
NONCE = hashlib.sha256(b"a nonce").hexdigest()
FIRST, SECOND = b"first GPU" * 40 + bytes(96), b"second GPU" * 40 + bytes(96)
GPU = gpu_digest([FIRST, SECOND])
HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
DIGEST = st.none() | HEX
REPORTS = st.lists(st.binary(min_size=97, max_size=200), max_size=4)


def check(report: bytes, keyset: str, nonce: str | None, gpu: str | None) -> Verdict:
    processor = Processor()
    policy = Policy(measurements=(MEASUREMENT.hex(),), trust=processor.trust)
    return verify(
        report,
        processor.certificates(),
        policy,
        report_data=quote(keyset, nonce, gpu),
        now=NOW,
    )


@given(keyset=HEX, nonce=DIGEST, gpu=DIGEST)
def test_report_data_is_as_specified(keyset: str, nonce: str | None, gpu: str | None) -> None:
    said = {"v": "hyperbeam.quote/1", "keyset": keyset, "nonce": nonce, "gpu": gpu}
    digest = hashlib.sha256(rfc8785.dumps(said)).digest()
    assert quote(keyset, nonce, gpu) == digest + bytes(32)


@given(REPORTS)
def test_the_digest_of_gpu_evidence_is_as_specified(reports: list[bytes]) -> None:
    whole = b"".join(len(r[:-96]).to_bytes(4, "big") + r[:-96] for r in reports)
    assert gpu_digest(reports) == hashlib.sha256(whole).hexdigest()


def test_a_report_verifies_for_its_own_binding() -> None:
    verdict = check(Processor().report(quote(KEYSET, NONCE, GPU)), KEYSET, NONCE, GPU)
    assert (verdict.reason, verdict.trust, verdict.code) == ("simulated", "simulated", "accepted")


@pytest.mark.parametrize(
    "other",
    [
        {"keyset": hashlib.sha256(b"another key set").hexdigest()},
        {"keyset": KEYSET.upper()},
        {"nonce": hashlib.sha256(b"another nonce").hexdigest()},
        {"nonce": None},
        {"nonce": GPU},
        {"gpu": None},
        {"gpu": gpu_digest([FIRST])},
        {"gpu": gpu_digest([SECOND, FIRST])},
        {"gpu": gpu_digest([FIRST, SECOND, SECOND])},
        {"gpu": gpu_digest([FIRST[:-97] + b"!" + FIRST[-96:], SECOND])},
        {"nonce": GPU, "gpu": NONCE},
    ],
)
def test_a_report_verifies_for_no_other_binding(other: dict[str, Any]) -> None:
    report = Processor().report(quote(KEYSET, NONCE, GPU))
    verdict = check(report, **{"keyset": KEYSET, "nonce": NONCE, "gpu": GPU, **other})
    assert verdict.reason == "report-data-mismatch"
    assert not verdict.verified


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex(KEYSET) + bytes(32),
        bytes.fromhex(NONCE) + bytes(32),
        quote(KEYSET, NONCE, GPU)[:32] + b"\1" + bytes(31),
        bytes(32) + quote(KEYSET, NONCE, GPU)[:32],
        bytes(64),
    ],
)
def test_the_other_half_is_zero_and_no_bare_digest_counts(data: bytes) -> None:
    verdict = check(Processor().report(data), KEYSET, NONCE, GPU)
    assert verdict.reason == "report-data-mismatch"


def test_another_signature_of_the_same_gpu_report_changes_nothing() -> None:
    # ECDSA is malleable: r, n - s verifies too.
    assert gpu_digest([FIRST[:-96] + b"s" * 96, SECOND]) == GPU


@given(st.binary(min_size=2, max_size=60), st.data())
def test_reports_cannot_be_cut_elsewhere(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(content) - 1))
    end = bytes(96)
    assert gpu_digest([content + end]) != gpu_digest([content[:at] + end, content[at:] + end])


@pytest.mark.parametrize("report", [b"", bytes(95), bytes(96)])
def test_a_report_that_is_all_signature_has_no_digest(report: bytes) -> None:
    with pytest.raises(ValueError, match="shorter"):
        gpu_digest([report])
