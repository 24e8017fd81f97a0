"""Every parser of evidence against bytes and structures that nobody meant: refused, quickly."""

import base64
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import OCSPNonce, ocsp
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.nvidia import Policy, Resources, chain, der, evidence, report, rim, verify
from hyperbeam.verify.nvidia.refused import Refused

from . import pki, samples
from .pki import NOW, World, answer
from .samples import CHAIN, NONCE, REPORT, THEN, entry

OFFLINE = Policy(ocsp="skip")
RESOURCES = Resources(rim_folder=samples.RIMS)
WORLD = World()
DEVICE = WORLD.gpu(0)[1]
RIM = samples.VBIOS_RIM


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` with a part replaced, cut out, repeated or filled with other bytes."""

    def change(parts: tuple[int, int, bytes, int]) -> bytes:
        start, length, new, times = parts
        end = min(len(data), start + length)
        return data[:start] + (new or data[start:end] * times) + data[end:]

    places = st.integers(0, len(data))
    return st.tuples(places, st.integers(0, 64), st.binary(max_size=64), st.integers(0, 3)).map(
        change
    )


@settings(deadline=None)
@given(st.binary(max_size=400) | mutations(REPORT))
def test_reports(data: bytes) -> None:
    try:
        read = report.parse(data)
    except Malformed as error:
        assert error.reason.startswith("report-")
    else:
        assert read.signed + read.signature == data
        assert len(read.nonce) == 32


@settings(deadline=None)
@given(mutations(REPORT))
def test_changed_reports_never_verify(data: bytes) -> None:
    verdict = verify([entry(data)], NONCE, OFFLINE, resources=RESOURCES, now=THEN)
    assert verdict.verified is (data == REPORT)
    assert verdict.verified or verdict.reason


@settings(deadline=None)
@given(st.binary(max_size=300) | mutations(CHAIN))
def test_chains(data: bytes) -> None:
    try:
        chain.read_pem(data)
    except Malformed as error:
        assert error.reason in ("chain-malformed", "chain-too-long")


@settings(deadline=None)
@given(mutations(CHAIN))
def test_changed_chains_never_raise(data: bytes) -> None:
    verdict = verify([entry(chain=data)], NONCE, OFFLINE, resources=RESOURCES, now=THEN)
    assert verdict.verified or verdict.reason


@settings(deadline=None)
@given(mutations(WORLD.middle.certificate.public_bytes(Encoding.DER)))
def test_certificates(data: bytes) -> None:
    try:
        read = chain.read(data)
        chain.check([read, WORLD.root.certificate])
        chain.check_dates([read], NOW)
        chain.name(read)
        der.firmware_id(read, der.TCB_INFO)
    except (Malformed, Refused) as error:
        assert error.reason


@settings(deadline=None)
@given(st.binary(max_size=200) | mutations(RIM))
def test_rims(data: bytes) -> None:
    try:
        loaded = rim.load(data, chain.rim_root())
    except (Malformed, Refused) as error:
        assert error.reason
    else:
        genuine = rim.load(RIM, chain.rim_root())
        assert (loaded.golden, loaded.version) == (genuine.golden, genuine.version)


@settings(deadline=None)
@given(
    st.recursive(
        st.sampled_from(["<a>", "</a>", "<!DOCTYPE a>", "&a;", "<![CDATA[", "]]>", "<?x?>", "x"])
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=6).map("".join),
        max_leaves=30,
    )
)
def test_xml(text: str) -> None:
    try:
        rim.load(text.encode("utf-8", "surrogatepass"), chain.rim_root())
    except Malformed:
        return
    raise AssertionError("nothing made by chance is a RIM")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["arch", "nonce", "evidence", "certificate", "x"]), inner)
    ),
    max_leaves=20,
)
ENTRIES = st.fixed_dictionaries(
    {
        "arch": st.sampled_from(["HOPPER", "BLACKWELL", "x", ""]),
        "nonce": st.sampled_from([NONCE, "00" * 32, "", "x"]),
        "evidence": st.binary(max_size=100).map(lambda b: base64.b64encode(b).decode()) | JSON,
        "certificate": st.sampled_from([CHAIN, b"", b"x"]).map(
            lambda b: base64.b64encode(b).decode()
        ),
    }
)


@settings(deadline=None)
@given(JSON | st.lists(ENTRIES | JSON, max_size=4), st.none() | st.text(max_size=70))
def test_structures(value: Any, nonce: str | None) -> None:
    verdict = verify(value, nonce, OFFLINE, resources=RESOURCES, now=THEN)
    assert verdict.verified is False
    assert verdict.reason
    assert verdict.as_dict()["checks"]
    try:
        evidence.read(value)
    except Malformed as error:
        assert error.reason


@settings(deadline=None)
@given(st.binary(max_size=400) | mutations(pki.tcb_info()))
def test_der(data: bytes) -> None:
    try:
        found = der.first_of_tcb_info(data)
    except ValueError:
        return
    assert len(found) in (0, 48)
    assert found in data


def _request() -> bytes:
    builder = ocsp.OCSPRequestBuilder().add_certificate(
        DEVICE.certificate, WORLD.middle.certificate, SHA384()
    )
    built = builder.add_extension(OCSPNonce(bytes(32)), False).build()
    return built.public_bytes(Encoding.DER)


ANSWER = answer(_request(), WORLD.issued())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | mutations(ANSWER))
def test_ocsp_answers(data: bytes) -> None:
    """Another nonce is asked for each time, so that nothing at all may pass."""
    policy = Policy.parse({"rims": "allow-missing", "trust": WORLD.trust})

    def fetch(url: str, body: bytes | None, content_type: str) -> bytes:
        if content_type:
            return data
        raise FileNotFoundError

    resources = Resources(fetch=fetch)
    nonce = bytes(range(32))
    verdict = verify([WORLD.entry(nonce)], nonce.hex(), policy, resources=resources, now=NOW)
    assert verdict.revocation in ("unchecked", "revoked")
    assert verdict.reason.startswith(("ocsp-", "certificate-"))


def test_16_mib_of_nested_base64() -> None:
    text = "AAAA"
    while len(text) < 2**24:
        text = base64.b64encode(text.encode() * 8).decode()
    verdict = verify([entry() | {"evidence": text}], NONCE)
    assert verdict.reason == "evidence-too-large"
    verdict = verify([entry() | {"certificate": text}] * 16, NONCE)
    assert verdict.reason == "evidence-too-large"


def test_certificates_without_end() -> None:
    verdict = verify([entry(chain=CHAIN * 5)], NONCE, OFFLINE, now=THEN)
    assert verdict.reason == "chain-too-long"
    chain_of_ten = CHAIN * 2
    verdict = verify([entry(chain=chain_of_ten)], NONCE, OFFLINE, now=THEN)
    assert verdict.reason == "chain-repeated-certificate"
