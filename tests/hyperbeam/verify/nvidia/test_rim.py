"""RIM files: what a genuine signature covers, and every way round it that is known."""

import base64
import hashlib
import re
from collections.abc import Callable

import pytest
from lxml import etree

from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.nvidia import chain, rim
from hyperbeam.verify.nvidia.refused import Refused

from . import pki, samples
from .pki import World

GENUINE = samples.DRIVER_RIM
SWID = "{http://standards.iso.org/iso/19770/-2/2015/schema.xsd}"
WORLD = World()


def reason(data: bytes, world: World | None = None) -> str:
    """Why a RIM is refused, "" where it is not."""
    root = world.root.certificate if world else chain.rim_root()
    try:
        rim.load(data, root)
    except (Malformed, Refused) as error:
        return error.reason
    return ""


def edited(change: Callable[[etree._Element], None]) -> bytes:
    """The genuine RIM with its tree changed."""
    root = etree.fromstring(GENUINE)
    change(root)
    return bytes(etree.tostring(root))


def signature(root: etree._Element) -> etree._Element:
    found = root.find(f"{{{pki.DS}}}Signature")
    assert found is not None
    return found


def test_genuine() -> None:
    loaded = rim.load(GENUINE, chain.rim_root())
    assert (loaded.version, loaded.product, len(loaded.golden)) == ("545.00", "GH100", 21)
    assert len(loaded.golden[36]) == 2
    assert 1 not in loaded.golden
    assert loaded.sha256 == hashlib.sha256(GENUINE).hexdigest()


def test_reserialised_is_still_genuine() -> None:
    assert reason(edited(lambda root: None)) == ""
    assert reason(b'<?xml version="1.0" encoding="UTF-8"?>\n' + GENUINE) == ""


def test_made_here() -> None:
    assert reason(WORLD.driver_rim(), WORLD) == ""
    assert reason(WORLD.driver_rim()) == "root-not-trusted"
    assert reason(GENUINE, WORLD) == "root-not-trusted"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"545.00", b"545.01", "digest-mismatch"),
        (b"0e0ee161", b"0e0ee162", "digest-mismatch"),
        (b'index="0" active="False"', b'index="0" active="True"', "digest-mismatch"),
        (b"Dc2Cm4YrVzFF", b"Ec2Cm4YrVzFF", "digest-mismatch"),
        (b"xml-c14n11", b"xml-c14n2", "malformed"),
        (b"#ecdsa-sha384", b"#ecdsa-sha256", "malformed"),
        (b"#enveloped-signature", b"#base64", "malformed"),
        (b'URI=""', b'URI="#x"', "malformed"),
        (b'URI=""', b'URI="" Id="x"', "malformed"),
        (b"</SoftwareIdentity>", b"", "malformed"),
        (b"</SoftwareIdentity>", b"</SoftwareIdentity>x", "malformed"),
        (b"<SoftwareIdentity ", b'<SoftwareIdentity xml:base="x" ', "malformed"),
        (b"<SoftwareIdentity ", b"<?x y?><SoftwareIdentity ", "malformed"),
        (b"</SoftwareIdentity>", b"</SoftwareIdentity><?x y?>", "malformed"),
        (b"<ns0:Entity", b"<?x y?><ns0:Entity", "malformed"),
        (b"<ns0:Entity", b'<ns0:Entity xmlns:q="relative"', "malformed"),
    ],
)
def test_changed_text(old: bytes, new: bytes, expected: str) -> None:
    assert old in GENUINE
    assert reason(GENUINE.replace(old, new)) == expected


def test_a_changed_signature() -> None:
    value = re.search(rb"<ds:SignatureValue>([^<]+)<", GENUINE)
    assert value is not None
    raw = bytearray(base64.b64decode(value[1]))
    raw[50] ^= 1
    changed = base64.b64encode(bytes(raw))
    assert reason(GENUINE.replace(value[1], changed)) == "signature-invalid"
    short = base64.b64encode(bytes(raw[:-1]))
    assert reason(GENUINE.replace(value[1], short)) == "signature-invalid"
    assert reason(GENUINE.replace(value[1], b"=")) == "malformed"


def test_another_digest_with_the_same_signature() -> None:
    """The digest covers the document, the signature covers the digest."""
    changed = GENUINE.replace(b"545.00", b"545.01")
    root = etree.fromstring(changed)
    root.remove(signature(root))
    digest = base64.b64encode(hashlib.sha384(etree.tostring(root, method="c14n")).digest())
    changed = re.sub(rb"(<ds:DigestValue>)[^<]+", lambda match: match[1] + digest, changed)
    assert reason(changed) == "signature-invalid"


def test_comments_change_nothing() -> None:
    assert reason(GENUINE.replace(b"<ns0:Entity", b"<!-- x --><ns0:Entity")) == ""
    split = GENUINE.replace(b"Dc2Cm4YrVzFF", b"Dc2C<!-- -->m4YrVzFF")
    assert reason(split) == ""


def duplicate_signature(root: etree._Element) -> None:
    root.append(etree.fromstring(etree.tostring(signature(root))))


def nested_signature(root: etree._Element) -> None:
    root[0].append(signature(root))


def second_signature_elsewhere(root: etree._Element) -> None:
    root[0].append(etree.Element("{urn:other}Signature"))


def second_identity(root: etree._Element) -> None:
    root.append(etree.fromstring(f'<S xmlns="{SWID[1:-1]}"/>'.replace("S ", "SoftwareIdentity ")))


def identity_in_the_signature(root: etree._Element) -> None:
    evil = etree.SubElement(signature(root), f"{{{pki.DS}}}Object")
    evil.append(etree.Element(SWID + "SoftwareIdentity"))


def payload_in_the_signature(root: etree._Element) -> None:
    etree.SubElement(signature(root), SWID + "Payload")


def payload_in_the_key_info(root: etree._Element) -> None:
    signature(root)[2].append(etree.Element(SWID + "Payload"))


def key_value(root: etree._Element) -> None:
    signature(root)[2].insert(0, etree.Element(f"{{{pki.DS}}}KeyValue"))


def no_certificates(root: etree._Element) -> None:
    data = signature(root)[2][0]
    for certificate in list(data):
        data.remove(certificate)


def too_many_certificates(root: etree._Element) -> None:
    data = signature(root)[2][0]
    for _ in range(8):
        data.append(etree.fromstring(etree.tostring(data[0])))


def no_transforms(root: etree._Element) -> None:
    transforms = signature(root)[0][2][0]
    for transform in list(transforms):
        transforms.remove(transform)


def xpath_transform(root: etree._Element) -> None:
    transforms = signature(root)[0][2][0]
    transform = etree.SubElement(transforms, f"{{{pki.DS}}}Transform")
    transform.set("Algorithm", "http://www.w3.org/TR/1999/REC-xpath-19991116")


def second_reference(root: etree._Element) -> None:
    info = signature(root)[0]
    info.append(etree.fromstring(etree.tostring(info[2])))


def other_root(root: etree._Element) -> None:
    root.tag = SWID + "Other"


def unsigned(root: etree._Element) -> None:
    root.remove(signature(root))


@pytest.mark.parametrize(
    "change",
    [
        duplicate_signature,
        nested_signature,
        second_signature_elsewhere,
        identity_in_the_signature,
        payload_in_the_signature,
        payload_in_the_key_info,
        key_value,
        no_certificates,
        too_many_certificates,
        no_transforms,
        xpath_transform,
        second_reference,
        unsigned,
    ],
)
def test_wrapping(change: Callable[[etree._Element], None]) -> None:
    assert reason(edited(change)) == "malformed"


@pytest.mark.parametrize("change", [second_identity, other_root])
def test_other_content_is_refused_even_where_signed(
    change: Callable[[etree._Element], None],
) -> None:
    assert reason(edited(change)) == "digest-mismatch"
    assert reason(WORLD.driver_rim(change=change), WORLD) == "malformed"


def wrapped() -> bytes:
    """A signed document put inside another that has the attacker's values."""
    inner = GENUINE.decode()
    return f'<SoftwareIdentity xmlns="{SWID[1:-1]}">{inner}</SoftwareIdentity>'.encode()


def test_a_signed_document_inside_another() -> None:
    assert reason(wrapped()) == "malformed"


ENTITIES = b"""<!DOCTYPE SoftwareIdentity [
<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>"""
EXTERNAL = b'<!DOCTYPE SoftwareIdentity SYSTEM "file:///etc/passwd">'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"<",
        b"<a/>",
        ENTITIES + GENUINE,
        EXTERNAL + GENUINE,
        (ENTITIES + GENUINE).decode().encode("utf-16"),
        GENUINE.decode().encode("utf-16"),
        b'<?xml version="1.0" encoding="utf-7"?>' + GENUINE[:100],
        b"\xff\xfe" + GENUINE,
        GENUINE.replace(b"<ns0:Entity", b"&x;<ns0:Entity"),
        b"<a>" * 30_000,
        b"<a>" * 5_000,
        b"<a " + b" ".join(b'x%d=""' % n for n in range(200_000)) + b"/>",
        b"<a>" + b"x" * (rim.MAX_RIM + 1) + b"</a>",
        b"<a>" + b"x" * (rim.MAX_RIM - 100) + b"</a>",
    ],
    ids=range(16),
)
def test_xml_that_is_refused_quickly(data: bytes) -> None:
    assert reason(data) == "malformed"


def resource(root: etree._Element) -> etree._Element:
    return root[1][0]


def twice(root: etree._Element) -> None:
    root[1].append(etree.fromstring(etree.tostring(resource(root))))


def setting(name: str, value: str) -> Callable[[etree._Element], None]:
    return lambda root: resource(root).set(name, value)


def without(name: str) -> Callable[[etree._Element], None]:
    def change(root: etree._Element) -> None:
        del resource(root).attrib[name]

    return change


def second_payload(root: etree._Element) -> None:
    root.append(etree.Element(SWID + "Payload"))


def no_version(root: etree._Element) -> None:
    del root[0].attrib["colloquialVersion"]


def file_in_payload(root: etree._Element) -> None:
    root[1].append(etree.Element(SWID + "File", type="Measurement"))


HASH = "{http://www.w3.org/2001/04/xmlenc#sha384}Hash"


@pytest.mark.parametrize(
    "change",
    [
        twice,
        second_payload,
        no_version,
        file_in_payload,
        setting("index", "-1"),
        setting("index", "255"),
        setting("index", "x"),
        setting("index", "٣"),
        setting("active", "false"),
        setting("active", ""),
        setting("alternatives", "0"),
        setting("alternatives", "2"),
        setting("alternatives", "9999"),
        setting("size", "32"),
        setting("type", "Other"),
        setting(HASH + "0", "00"),
        setting(HASH + "1", "0" * 96),
        without(HASH + "0"),
        without("active"),
        without("index"),
    ],
)
def test_signed_but_senseless(change: Callable[[etree._Element], None]) -> None:
    assert reason(WORLD.driver_rim(change=change), WORLD) == "malformed"


def test_attributes_unknown_here_do_no_harm() -> None:
    assert reason(WORLD.driver_rim(change=setting("note", "x")), WORLD) == ""


def test_inactive_values_do_not_count() -> None:
    loaded = rim.load(WORLD.driver_rim(change=setting("active", "False")), WORLD.root.certificate)
    assert 21 not in loaded.golden
    assert 22 in loaded.golden


def test_a_signer_that_may_not_sign() -> None:
    issuer = pki.issue("Issuer", WORLD.rim_root, pki.authority())
    data = WORLD.driver_rim(chain=[issuer, WORLD.rim_root])
    assert reason(data, WORLD) == "key-usage"


def test_a_key_that_is_not_the_chains() -> None:
    stranger = pki.issue("Signer", WORLD.rim_root, pki.signer())
    stranger.key = pki.issue("X", None, pki.signer()).key
    data = WORLD.driver_rim(chain=[stranger, WORLD.rim_root])
    assert reason(data, WORLD) == "signature-invalid"
