"""OCSP answers, each kind with its own reason; made and signed for real."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID

from hyperbeam.verify.nvidia import Cache, Policy, Resources, Verdict, verify

from . import pki
from .pki import NOW, Issued, World, answer

NONCE = bytes(range(32))
WORLD = World()
WORLD.gpu(0)
Fetch = Callable[[str, bytes | None, str], bytes]


@pytest.fixture(scope="module")
def rims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rims")
    (folder / "driver.swidtag").write_bytes(WORLD.driver_rim())
    (folder / "vbios.swidtag").write_bytes(WORLD.vbios_rim())
    return folder


def responder(**changes: Any) -> Fetch:
    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        assert content_type == "application/ocsp-request"
        return answer(body or b"", WORLD.issued(), **changes)

    return fetch


def check(
    rims: Path,
    fetch: Fetch,
    mode: str = "require",
    *,
    cache: Cache | None = None,
    later: timedelta = timedelta(),
    **more: Any,
) -> Verdict:
    policy = Policy.parse({"ocsp": mode, "trust": WORLD.trust})
    more.setdefault("ocsp_url", "http://ocsp.test/")
    resources = Resources(rim_folder=rims, fetch=fetch, cache=cache or Cache(), **more)
    entry = WORLD.entry(NONCE)
    return verify([entry], NONCE.hex(), policy, resources=resources, now=NOW + later)


def test_good(rims: Path) -> None:
    verdict = check(rims, responder())
    assert (verdict.reason, verdict.revocation) == ("simulated", "good")
    chain_claim = verdict.claims[0]["x-nvidia-gpu-attestation-report-cert-chain"]
    assert chain_claim["x-nvidia-cert-ocsp-status"] == "good"


def test_each_certificate_is_asked_for_once_but_leaf_and_root(rims: Path) -> None:
    serials: list[int] = []
    lock = threading.Lock()

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        with lock:
            serials.append(ocsp.load_der_ocsp_request(body or b"").serial_number)
        return answer(body or b"", WORLD.issued())

    check(rims, fetch)
    _, device = WORLD.gpu(0)
    wanted = [device, WORLD.middle, WORLD.rim_signer, WORLD.rim_root]
    assert sorted(serials) == sorted(one.certificate.serial_number for one in wanted)


def test_answers_of_delegates(rims: Path) -> None:
    verdict = check(rims, responder(signer=pki.delegate))
    assert verdict.revocation == "good"


def not_for_ocsp(issuer: Issued) -> Issued:
    return pki.delegate(issuer, extensions=pki.signer())


def other_purpose(issuer: Issued) -> Issued:
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return pki.delegate(issuer, extensions=[*pki.signer(), (server, False)])


def expired(issuer: Issued) -> Issued:
    return pki.delegate(issuer, ends=NOW - timedelta(minutes=1))


def self_issued(issuer: Issued) -> Issued:
    return pki.delegate(pki.issue("Middle", None, pki.authority()))


def below_the_root(issuer: Issued) -> Issued:
    """Under the same root, but not by who issued the certificate in question."""
    other = pki.issue("Other", WORLD.root, pki.authority())
    return pki.delegate(other)


def stranger(issuer: Issued) -> Issued:
    return pki.issue("Middle", None, pki.authority())


@pytest.mark.parametrize(
    "signer", [not_for_ocsp, other_purpose, expired, self_issued, below_the_root, stranger]
)
def test_answers_of_who_may_not(rims: Path, signer: Callable[[Issued], Issued]) -> None:
    assert check(rims, responder(signer=signer)).reason == "ocsp-signer"


def test_the_certificate_itself_may_not_answer(rims: Path) -> None:
    _, device = WORLD.gpu(0)
    verdict = check(rims, responder(signer=lambda issuer: device))
    assert verdict.reason == "ocsp-signer"


@pytest.mark.parametrize(
    ("changes", "reason", "revocation"),
    [
        ({"status": ocsp.OCSPCertStatus.REVOKED}, "certificate-revoked", "revoked"),
        (
            {"status": ocsp.OCSPCertStatus.REVOKED, "reason": x509.ReasonFlags.key_compromise},
            "certificate-revoked",
            "revoked",
        ),
        (
            {"status": ocsp.OCSPCertStatus.REVOKED, "reason": x509.ReasonFlags.certificate_hold},
            "certificate-hold",
            "revoked",
        ),
        ({"status": ocsp.OCSPCertStatus.UNKNOWN}, "ocsp-unknown", "unchecked"),
        ({"ends": NOW - timedelta(minutes=6)}, "ocsp-stale", "unchecked"),
        ({"begins": NOW + timedelta(minutes=6)}, "ocsp-stale", "unchecked"),
        ({"begins": NOW - timedelta(hours=25), "ends": None}, "ocsp-stale", "unchecked"),
        ({"nonce": bytes(32)}, "ocsp-nonce-mismatch", "unchecked"),
        ({"with_nonce": False}, "ocsp-nonce-mismatch", "unchecked"),
        ({"about": WORLD.rim_root}, "ocsp-wrong-certificate", "unchecked"),
    ],
)
def test_bad_answers(rims: Path, changes: dict[str, Any], reason: str, revocation: str) -> None:
    verdict = check(rims, responder(**changes))
    assert (verdict.reason, verdict.revocation) == (reason, revocation)
    assert verdict.verified is False


@pytest.mark.parametrize(
    "changes",
    [
        {"ends": NOW - timedelta(minutes=4)},
        {"begins": NOW + timedelta(minutes=4)},
        {"begins": NOW - timedelta(hours=23), "ends": None},
    ],
)
def test_clocks_may_differ_a_little(rims: Path, changes: dict[str, Any]) -> None:
    assert check(rims, responder(**changes)).revocation == "good"


def test_only_the_signers_rim_certificate_is_revoked(rims: Path) -> None:
    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        serial = ocsp.load_der_ocsp_request(body or b"").serial_number
        if serial != WORLD.rim_signer.certificate.serial_number:
            return answer(body or b"", WORLD.issued())
        return answer(body or b"", WORLD.issued(), status=ocsp.OCSPCertStatus.REVOKED)

    verdict = check(rims, fetch)
    failed = [check.name for check in verdict.checks if check.reason == "certificate-revoked"]
    assert failed == ["driver-rim-revocation", "vbios-rim-revocation"]
    claims = verdict.claims[0]
    assert claims["x-nvidia-gpu-driver-rim-cert-chain"]["x-nvidia-cert-status"] == "revoked"
    chain = claims["x-nvidia-gpu-attestation-report-cert-chain"]
    assert chain["x-nvidia-cert-ocsp-status"] == "good"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (TimeoutError(), "ocsp-timeout"),
        (ConnectionRefusedError(), "ocsp-unreachable"),
        (OSError("502"), "ocsp-unreachable"),
        (FileNotFoundError(), "ocsp-missing"),
    ],
)
def test_no_answer(rims: Path, raised: Exception, reason: str) -> None:
    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        raise raised

    verdict = check(rims, fetch)
    assert (verdict.reason, verdict.revocation) == (reason, "unchecked")


def test_a_responder_that_hangs(rims: Path) -> None:
    release = threading.Event()

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        release.wait()
        return b""

    assert check(rims, fetch, deadline=0.05).reason == "ocsp-timeout"
    release.set()


@pytest.mark.parametrize("status", ["TRY_LATER", "UNAUTHORIZED", "INTERNAL_ERROR", "SIG_REQUIRED"])
def test_refusals(rims: Path, status: str) -> None:
    kind = ocsp.OCSPResponseStatus[status]
    refusal = ocsp.OCSPResponseBuilder.build_unsuccessful(kind)
    data = refusal.public_bytes(Encoding.DER)
    verdict = check(rims, lambda url, body, content_type: data)
    assert verdict.reason == "ocsp-refused"


@pytest.mark.parametrize("data", [b"", b"\0", b"<html>", b"\x30\x82\xff\xff" + bytes(100)])
def test_nonsense(rims: Path, data: bytes) -> None:
    assert check(rims, lambda url, body, content_type: data).reason == "ocsp-malformed"


def test_too_large(rims: Path) -> None:
    data = bytes(8 * 1024 * 1024 + 1)
    assert check(rims, lambda url, body, content_type: data).reason == "ocsp-too-large"


def test_skipped_is_said(rims: Path) -> None:
    verdict = check(rims, responder(status=ocsp.OCSPCertStatus.REVOKED), "skip")
    assert (verdict.reason, verdict.revocation) == ("simulated", "unchecked")
    assert "revocation-unchecked" in {check.reason for check in verdict.checks}


class Counter:
    """A responder that counts."""

    def __init__(self, **changes: Any) -> None:
        self.count = 0
        self._fetch = responder(**changes)
        self._lock = threading.Lock()

    def __call__(self, url: str, body: bytes | None, content_type: str) -> bytes:
        with self._lock:
            self.count += 1
        return self._fetch(url, body, content_type)


def test_cached_answers_are_not_asked_for_again(rims: Path) -> None:
    cache, fetch = Cache(), Counter()
    for _ in range(3):
        assert check(rims, fetch, "cached", cache=cache).revocation == "good"
    assert fetch.count == 4


def test_cached_answers_serve_without_a_network(rims: Path) -> None:
    cache = Cache()
    check(rims, responder(), cache=cache)
    policy = Policy.parse({"ocsp": "cached", "trust": WORLD.trust})
    resources = Resources(rim_folder=rims, cache=cache)
    verdict = verify([WORLD.entry(NONCE)], NONCE.hex(), policy, resources=resources, now=NOW)
    assert (verdict.reason, verdict.revocation) == ("simulated", "good")
    strict = Policy.parse({"trust": WORLD.trust})
    verdict = verify([WORLD.entry(NONCE)], NONCE.hex(), strict, resources=resources, now=NOW)
    assert verdict.reason == "ocsp-unavailable"


def test_required_answers_are_always_asked_for(rims: Path) -> None:
    cache, fetch = Cache(), Counter()
    for _ in range(2):
        check(rims, fetch, "require", cache=cache)
    assert fetch.count == 8


@pytest.mark.parametrize(
    ("ends", "later", "count"),
    [
        (timedelta(hours=1), timedelta(minutes=59), 4),
        (timedelta(hours=1), timedelta(minutes=61), 8),
        (timedelta(days=30), timedelta(hours=23), 4),
        (timedelta(days=30), timedelta(hours=25), 8),
        (None, timedelta(minutes=1), 8),
    ],
)
def test_how_long_cached_answers_stand(
    rims: Path, ends: timedelta | None, later: timedelta, count: int
) -> None:
    cache = Cache()
    fetch = Counter(ends=None if ends is None else NOW + ends)
    first = check(rims, fetch, "cached", cache=cache)
    assert first.revocation == "good"
    check(rims, fetch, "cached", cache=cache, later=later)
    assert fetch.count == count


def test_a_revoked_answer_ends_what_was_cached(rims: Path) -> None:
    cache = Cache()
    check(rims, responder(), cache=cache)
    revoked = responder(status=ocsp.OCSPCertStatus.REVOKED)
    assert check(rims, revoked, cache=cache).reason == "certificate-revoked"
    assert check(rims, revoked, "cached", cache=cache).reason == "certificate-revoked"


def test_where_to_ask(rims: Path) -> None:
    urls: set[str] = set()

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        urls.add(url)
        raise OSError

    check(rims, fetch, ocsp_url="")
    assert urls == set(), "NVIDIA's own service is for certificates of NVIDIA's"
    check(rims, fetch, ocsp_url="http://127.0.0.1:1/")
    assert urls == {"http://127.0.0.1:1/"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [("http://ocsp.example/", {"http://ocsp.example/"}), ("file:///etc/passwd", set())],
)
def test_the_certificates_own_responder(place: str, expected: set[str], rims: Path) -> None:
    access = x509.AuthorityInformationAccess(
        [
            x509.AccessDescription(
                AuthorityInformationAccessOID.OCSP, x509.UniformResourceIdentifier(place)
            )
        ]
    )
    world = World()
    world.__dict__.update(WORLD.__dict__, keys={})
    world.middle = pki.issue("Middle", world.root, [*pki.authority(), (access, False)])
    urls: list[str] = []

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        urls.append(url)
        raise OSError

    policy = Policy.parse({"trust": world.trust})
    resources = Resources(rim_folder=rims, fetch=fetch)
    verify([world.entry(NONCE)], NONCE.hex(), policy, resources=resources, now=NOW)
    assert set(urls) == expected
