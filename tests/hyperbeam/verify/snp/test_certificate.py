"""AMD's certificates: its own, made ones, and anything else."""

import base64
import hashlib
import random
import textwrap
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp.certificate import MAX_SIZE, Certificate, read, read_all
from hyperbeam.verify.snp.chain import own
from hyperbeam.verify.snp.report import Tcb
from hyperbeam.verify.snp.roots import ROOTS, shipped

from .simulated import Processor, chip_key, rsa_key

VCEK = (Path(__file__).parent / "fixtures" / "milan_vcek.der").read_bytes()


def pem(der: bytes) -> bytes:
    lines = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n".encode()


@pytest.fixture(autouse=True)
def no_warnings() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_the_root_that_comes_with_the_package_is_amds() -> None:
    signing, root = own()
    assert (signing.name, root.name, root.issuer_name) == ("SEV-Milan", "ARK-Milan", "ARK-Milan")
    assert ROOTS[hashlib.sha256(shipped()[1]).hexdigest()] == "Milan"
    assert root.signed_by(root)
    assert signing.signed_by(root)
    assert signing.may_issue()
    assert root.may_issue()
    assert root.key.key_size == 4096


def test_a_genuine_vcek_with_its_serial_of_zero() -> None:
    vcek = read(VCEK)
    signing, root = own()
    assert vcek.der == VCEK
    assert vcek.fingerprint == hashlib.sha256(VCEK).hexdigest()
    assert vcek.tbs in VCEK
    assert vcek.name == "SEV-VCEK"
    assert vcek.signed_by(signing)
    assert not vcek.signed_by(root)
    assert not vcek.signed_by(vcek)
    assert not vcek.may_issue()
    assert vcek.tcb("Milan") == Tcb(bootloader=2, tee=0, snp=5, microcode=68)
    assert vcek.tcb("Turin") is None
    assert vcek.hardware_id().hex().startswith("3ac3fe21")
    assert vcek.product_name() == "Milan-B0"
    assert vcek.provider() == ""


def test_another_serial_is_another_certificate() -> None:
    at = VCEK.index(bytes.fromhex("a003020102020100")) + 7
    changed = read(VCEK[:at] + b"\1" + VCEK[at + 1 :])
    assert not changed.signed_by(own()[0])


@pytest.mark.parametrize("product", ["Milan", "Genoa", "Turin"])
def test_what_a_leaf_says(product: str) -> None:
    processor = Processor(product, levels={"bootloader": 1, "microcode": 213, "fmc": 9})
    leaf = read(processor.leaf())
    fmc = 9 if product == "Turin" else 0
    assert leaf.tcb(product) == Tcb(1, 0, 0, 213, fmc)
    assert leaf.hardware_id() == (
        processor.chip_id[:8] if product == "Turin" else processor.chip_id
    )
    assert leaf.signed_by(read(processor.issuer()))
    wrapped = Processor(product, extensions={"4": b"\x04\x40" + b"c" * 64})
    assert read(wrapped.leaf()).hardware_id() == b"c" * 64
    assert read(Processor(product, "vlek").leaf()).provider() == "A provider"


@pytest.mark.parametrize("value", [b"", b"\2\2\1\0", b"\2\1\xff", b"\2\2\1", b"\4\1\1", None])
def test_a_level_that_is_none(value: bytes | None) -> None:
    assert read(Processor(extensions={"3.1": value}).leaf()).tcb("Milan") is None


def test_pem_of_one_and_of_several() -> None:
    chain = [item.der for item in own()]
    assert [item.der for item in read_all([VCEK, b"".join(map(pem, chain))])] == [VCEK, *chain]
    assert [item.der for item in read_all([VCEK, pem(VCEK), VCEK])] == [VCEK]
    assert read_all([]) == []


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([b""], "certificates-malformed"),
        ([b"x"], "certificates-malformed"),
        ([VCEK[:-1]], "certificates-malformed"),
        ([VCEK + b"\0"], "certificates-malformed"),
        ([b"-----BEGIN CERTIFICATE-----"], "certificates-malformed"),
        (
            [b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----"],
            "certificates-malformed",
        ),
        ([pem(VCEK) + b"and more"], "certificates-malformed"),
        ([pem(b"nothing")], "certificates-malformed"),
        ([pem(VCEK).replace(b"\n-----END", b"=A\n-----END")], "certificates-malformed"),
        ([b"0" * (MAX_SIZE + 1)], "certificates-malformed"),
        ([b"-----" + b"x" * MAX_SIZE * 40], "certificates-malformed"),
        ([pem(VCEK) * 17], "certificates-too-many"),
    ],
)
def test_what_cannot_be_read_is_refused(items: list[bytes], reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_all(items)
    assert caught.value.reason == reason


def test_certificates_without_end_are_refused() -> None:
    issued = [Processor(levels={"tee": number}).leaf() for number in range(17)]
    assert len(read_all(issued[:16])) == 16
    with pytest.raises(Malformed) as caught:
        read_all(issued)
    assert caught.value.reason == "certificates-too-many"


def test_negative_serials_and_other_algorithms_are_refused_without_a_warning() -> None:
    at = VCEK.index(bytes.fromhex("a003020102020100")) + 7
    with pytest.raises(Malformed):
        read(VCEK[:at] + b"\xff" + VCEK[at + 1 :])
    pss, pkcs1 = bytes.fromhex("2a864886f70d01010a"), bytes.fromhex("2a864886f70d01010b")
    other = VCEK.replace(pss, pkcs1)
    with pytest.raises(Malformed):
        read(other)


def test_keys_are_told_apart() -> None:
    leaf, issuer = read(Processor().leaf()), read(Processor().issuer())
    assert leaf.report_key() == chip_key("chip").public_key()
    assert issuer.report_key() is None
    assert issuer.key == rsa_key("issuer").public_key()
    assert not issuer.signed_by(leaf)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(VCEK) - 1), st.integers(0, 255), st.integers(0, 20))
def test_a_changed_certificate_never_verifies(at: int, value: int, cut: int) -> None:
    changed = VCEK[:at] + bytes([value]) + VCEK[at + 1 : len(VCEK) - cut]
    try:
        certificate = read(changed)
    except Malformed as error:
        assert error.reason == "certificates-malformed"
    else:
        assert certificate.signed_by(own()[0]) == (changed == VCEK)
        certificate.tcb("Turin"), certificate.hardware_id(), certificate.product_name()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes_are_certificates_or_refused(data: bytes, chance: random.Random) -> None:
    spliced = VCEK[: chance.randrange(len(VCEK))] + data + VCEK[chance.randrange(len(VCEK)) :]
    for items in ([data], [spliced], [pem(spliced)], [b"-----BEGIN CERTIFICATE-----" + data]):
        try:
            found = read_all(items)
        except Malformed as error:
            assert error.reason == "certificates-malformed"
        else:
            assert all(isinstance(item, Certificate) for item in found)
