"""Certificate chains: each rule of the path by a chain that breaks it alone."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import Encoding

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.nvidia import chain, der
from hyperbeam.verify.nvidia.refused import Refused

from . import samples
from .pki import (
    FWID,
    NOW,
    Issued,
    authority,
    blackwell_extension,
    hopper_extension,
    issue,
    signer,
    tlv,
    usage,
)

ROOT = issue("Root", None, authority())
MIDDLE = issue("Middle", ROOT, authority())
LEAF = issue("Leaf", MIDDLE, signer())


def reason(*issued: Issued) -> str:
    """Why the chain is refused, "" where it is not."""
    try:
        chain.check([one.certificate for one in issued])
        chain.check_dates([one.certificate for one in issued], NOW)
    except Refused as refused:
        return refused.reason
    return ""


def test_a_good_chain() -> None:
    assert reason(LEAF, MIDDLE, ROOT) == ""


def test_path_length() -> None:
    for limit, expected in ((0, "path-length"), (1, ""), (2, "")):
        top = issue("Top", ROOT, authority(limit))
        middle = issue("Middle", top, authority())
        assert reason(issue("Leaf", middle, signer()), middle, top, ROOT) == expected


def test_path_length_of_the_root() -> None:
    root = issue("Root", None, authority(0))
    middle = issue("Middle", root, authority())
    assert reason(issue("Leaf", middle, signer()), middle, root) == "path-length"
    assert reason(issue("Leaf", root, signer()), root) == ""


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ([], "not-an-authority"),
        ([(usage(issue=True), True)], "not-an-authority"),
        (
            [(x509.BasicConstraints(False, None), True), (usage(issue=True), True)],
            "not-an-authority",
        ),
        ([(x509.BasicConstraints(True, None), True)], "key-usage"),
        ([(x509.BasicConstraints(True, None), True), (usage(sign=True), True)], "key-usage"),
    ],
)
def test_who_may_issue(extensions: list[tuple[x509.ExtensionType, bool]], expected: str) -> None:
    middle = issue("Middle", ROOT, extensions)
    assert reason(issue("Leaf", middle, signer()), middle, ROOT) == expected


@pytest.mark.parametrize(
    "extensions", [[], authority(), [(usage(sign=True, issue=True), True)], [(usage(), True)]]
)
def test_who_may_sign(extensions: list[tuple[x509.ExtensionType, bool]]) -> None:
    assert reason(issue("Leaf", MIDDLE, extensions), MIDDLE, ROOT) == "key-usage"


def test_critical_extensions() -> None:
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    leaf = issue("Leaf", MIDDLE, [*signer(), (unknown, True)])
    assert reason(leaf, MIDDLE, ROOT) == "critical-extension"
    assert reason(issue("Leaf", MIDDLE, [*signer(), (unknown, False)]), MIDDLE, ROOT) == ""
    dice = (hopper_extension()[0], True)
    assert reason(issue("Leaf", MIDDLE, [*signer(), dice]), MIDDLE, ROOT) == ""


def test_name_constraints_are_not_understood_so_refused() -> None:
    names = x509.NameConstraints([x509.DNSName("a")], None)
    middle = issue("Middle", ROOT, [*authority(), (names, True)])
    assert reason(issue("Leaf", middle, signer()), middle, ROOT) == "critical-extension"


def test_dates() -> None:
    old = issue("Leaf", MIDDLE, signer(), ends=NOW - timedelta(seconds=1))
    new = issue("Leaf", MIDDLE, signer(), begins=NOW + timedelta(seconds=1))
    assert reason(old, MIDDLE, ROOT) == "expired"
    assert reason(new, MIDDLE, ROOT) == "not-yet-valid"
    root = issue("Root", None, authority(), ends=NOW - timedelta(seconds=1))
    assert reason(issue("Leaf", root, signer()), root) == "expired"


def test_algorithms() -> None:
    for digest in (SHA256(), SHA512()):
        assert (
            reason(issue("Leaf", MIDDLE, signer(), algorithm=digest), MIDDLE, ROOT) == "algorithm"
        )
    small = ec.generate_private_key(ec.SECP256R1())
    assert reason(issue("Leaf", MIDDLE, signer(), key=small), MIDDLE, ROOT) == "algorithm"
    middle = issue("Middle", ROOT, authority(), key=small)
    assert reason(issue("Leaf", middle, signer()), middle, ROOT) == "algorithm"


@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
def test_other_keys(kind: str) -> None:
    key = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ed25519.Ed25519PrivateKey.generate()
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(LEAF.certificate.subject)
        .issuer_name(MIDDLE.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(MIDDLE.key, SHA384())
    )
    with pytest.raises(Refused) as refused:
        chain.check([certificate, MIDDLE.certificate, ROOT.certificate])
    assert refused.value.reason == "algorithm"


def test_signatures() -> None:
    stranger = issue("Middle", None, authority())
    assert reason(issue("Leaf", stranger, signer()), MIDDLE, ROOT) == "signature-invalid"
    assert reason(LEAF, MIDDLE, issue("Root", None, authority())) == "root-not-trusted"
    assert (
        reason(issue("Leaf", MIDDLE, signer(), issuer_name="X"), MIDDLE, ROOT) == "issuer-mismatch"
    )
    assert reason(issue("Leaf", ROOT, signer(), issuer_name="X"), ROOT) == "root-not-trusted"


def test_key_identifiers_that_disagree() -> None:
    root = issue("Root", None, [*authority(), (x509.SubjectKeyIdentifier(b"1"), False)])
    wrong = (x509.AuthorityKeyIdentifier(b"2", None, None), False)
    right = (x509.AuthorityKeyIdentifier(b"1", None, None), False)
    assert reason(issue("Leaf", root, [*signer(), wrong]), root) == "root-not-trusted"
    assert reason(issue("Leaf", root, [*signer(), right]), root) == ""


def test_shape() -> None:
    assert reason(ROOT) == "too-short"
    assert reason(LEAF, MIDDLE, MIDDLE, ROOT) == "repeated-certificate"
    assert reason(MIDDLE, LEAF, ROOT) != ""


def test_a_leaf_may_not_issue() -> None:
    below = issue("Below", LEAF, signer())
    assert reason(below, LEAF, MIDDLE, ROOT) == "not-an-authority"


def test_the_chains_own_root_is_replaced() -> None:
    own = [LEAF.certificate, MIDDLE.certificate, issue("Root", None, authority()).certificate]
    assert chain.complete(own, ROOT.certificate) == [*own[:2], ROOT.certificate]
    assert chain.complete(own[:2], ROOT.certificate) == [*own[:2], ROOT.certificate]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "chain-malformed"),
        (b"nothing", "chain-malformed"),
        (LEAF.certificate.public_bytes(Encoding.DER), "chain-malformed"),
        (LEAF.pem[:-10], "chain-malformed"),
        (LEAF.pem + b"more", "chain-malformed"),
        (LEAF.pem.replace(b"M", b"-"), "chain-malformed"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "chain-malformed"),
        (LEAF.pem * 11, "chain-too-long"),
        (b"-----BEGIN CERTIFICATE-----" * 2000, "chain-too-long"),
    ],
)
def test_what_is_no_pem(data: bytes, expected: str) -> None:
    with pytest.raises(Malformed) as error:
        chain.read_pem(data)
    assert error.value.reason == expected


def test_pem_with_padding_around_it() -> None:
    assert len(chain.read_pem(b"\n" + samples.CHAIN + b"\r\n\0\0")) == 5


def test_pinned_roots() -> None:
    device, rims = chain.device_root(), chain.rim_root()
    assert chain.name(device) == "NVIDIA Device Identity CA"
    assert chain.name(rims) == "NVIDIA CoRIM signing Root CA"
    assert chain.fingerprint(device).startswith("102bf659d5419614")
    assert chain.fingerprint(rims).startswith("12977b5115acb038")


def test_firmware_ids() -> None:
    hopper = issue("L", MIDDLE, [*signer(), hopper_extension()]).certificate
    blackwell = issue("L", MIDDLE, [*signer(), blackwell_extension()]).certificate
    assert der.firmware_id(hopper, der.COMPOSITE_DEVICE_ID) == FWID
    assert der.firmware_id(blackwell, der.TCB_INFO) == FWID
    assert der.firmware_id(hopper, der.TCB_INFO) == b""
    assert der.firmware_id(blackwell, der.COMPOSITE_DEVICE_ID) == b""
    genuine = chain.read_pem(samples.CHAIN_2)[0]
    assert der.firmware_id(genuine, der.COMPOSITE_DEVICE_ID).hex().startswith("f5c384ae")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x30",
        b"\x30\x80",
        b"\x30\x84\0\0\0\0",
        b"\x30\x05\xa6\x03\x30\x01",
        tlv(0x30, tlv(0xA6, b"")),
        tlv(0x30, tlv(0xA6, tlv(0x30, b"\x06\x01\x01\x04\x30" + FWID))),
        tlv(0x30, tlv(0xA6, tlv(0x04, FWID))),
        tlv(0x30, b"") * 2,
        tlv(0x31, b""),
    ],
)
def test_firmware_ids_that_cannot_be_read(value: bytes) -> None:
    for oid in (der.TCB_INFO, der.COMPOSITE_DEVICE_ID):
        extension = x509.UnrecognizedExtension(oid, value)
        leaf = issue("L", MIDDLE, [*signer(), (extension, False)]).certificate
        assert der.firmware_id(leaf, oid) == b""
