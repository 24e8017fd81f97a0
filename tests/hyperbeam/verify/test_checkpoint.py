import base64
import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify.checkpoint import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    Signature,
    SignedCheckpoint,
    VerifierKey,
)
from hyperbeam.verify.checks import Malformed

# A head of Go's checksum database, and the key that every `go` command has.
SUMDB_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
SUMDB = """\
go.sum database tree
63096908
8lHrQPRYe4KT4WQ9/Qk8/taKnD6IRHbFgfN7vQE2Y54=

— sum.golang.org Az3gri/oVBN1jAhNZ/iS+W31psFAWRT20/GyrhpU6taFwulQGetBkH5S7wpGXdS935jiIGiUUAXBVHzT/P6fYhqAmAk=
"""  # noqa: E501
# The example of the C2SP specifications, whose keys are not published.
EXAMPLE = """\
example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""  # noqa: E501
HEAD = Checkpoint("hyperbeam/receipts/" + "a" * 43, 7, b"\1" * 32)
LOG = Ed25519PrivateKey.from_private_bytes(b"\2" * 32)
WITNESS = Ed25519PrivateKey.from_private_bytes(b"\3" * 32)
LOG_KEY = VerifierKey(HEAD.origin, ED25519, LOG.public_key().public_bytes_raw())
WITNESS_KEY = VerifierKey("w.example/1", COSIGNATURE, WITNESS.public_key().public_bytes_raw())


def log_signature(head: Checkpoint = HEAD) -> Signature:
    return Signature(LOG_KEY.name, LOG_KEY.id, LOG.sign(head.body()))


def cosignature(time: int, head: Checkpoint = HEAD) -> Signature:
    message = b"cosignature/v1\ntime %d\n" % time + head.body()
    value = time.to_bytes(8, "big") + WITNESS.sign(message)
    return Signature(WITNESS_KEY.name, WITNESS_KEY.id, value)


def signed(*signatures: Signature) -> SignedCheckpoint:
    return SignedCheckpoint(HEAD, signatures or (log_signature(),))


def test_a_head_of_another_log() -> None:
    head = notes.parse(SUMDB)
    assert head.checkpoint.size == 63096908
    assert head.text() == SUMDB
    key = VerifierKey.parse(SUMDB_KEY)
    assert key.text() == SUMDB_KEY
    assert notes.verify(head, key)
    assert not notes.verify(notes.parse(SUMDB.replace("63096908", "63096907")), key)


def test_the_example_of_the_specification() -> None:
    head = notes.parse(EXAMPLE.encode())
    assert head.text() == EXAMPLE
    assert head.signatures[1].name == "witness.example.com/w1"
    assert int.from_bytes(head.signatures[1].value[:8], "big") == 1679315147


def test_signing_and_checking() -> None:
    head = signed()
    assert notes.parse(head.text()) == head
    assert notes.signature_line(HEAD.origin, LOG_KEY.key, LOG.sign(HEAD.body())) in head.text()
    assert notes.verify(head, LOG_KEY)


@pytest.mark.parametrize(
    "other",
    [
        replace(HEAD, size=8),
        replace(HEAD, root=b"\2" * 32),
        replace(HEAD, origin=HEAD.origin + "/" + "0" * 16),
    ],
)
def test_a_signature_is_of_one_head(other: Checkpoint) -> None:
    assert not notes.verify(SignedCheckpoint(other, (log_signature(),)), LOG_KEY)
    assert notes.cosigned_at(other, cosignature(5), WITNESS_KEY) is None


def test_signatures_of_unknown_keys_are_passed_over() -> None:
    unknown = Signature("x.example", LOG_KEY.id, b"\0" * 64)
    same_name = Signature(LOG_KEY.name, b"\0" * 4, b"\0" * 64)
    assert notes.verify(signed(unknown, same_name, log_signature()), LOG_KEY)
    assert not notes.verify(signed(unknown, same_name), LOG_KEY)


def test_one_bad_signature_by_a_known_key_spoils_the_note() -> None:
    bad = replace(log_signature(), value=b"\0" * 64)
    assert not notes.verify(signed(log_signature(), bad), LOG_KEY)
    assert notes.cosigned(signed(cosignature(5)), WITNESS_KEY) == 5
    bad = replace(cosignature(6), value=b"\0" * 72)
    assert notes.cosigned(signed(cosignature(5), bad), WITNESS_KEY) is None


def test_the_last_of_a_witness_counts() -> None:
    assert notes.cosigned(signed(cosignature(5), cosignature(9)), WITNESS_KEY) == 9
    assert notes.cosigned(signed(), WITNESS_KEY) is None


def test_a_cosignature_is_no_log_signature_and_the_other_way_round() -> None:
    as_log = VerifierKey(WITNESS_KEY.name, ED25519, WITNESS_KEY.key)
    assert not notes.verify(signed(replace(cosignature(5), key_id=as_log.id)), as_log)
    as_witness = VerifierKey(LOG_KEY.name, COSIGNATURE, LOG_KEY.key)
    forged = Signature(as_witness.name, as_witness.id, b"\0" * 8 + LOG.sign(HEAD.body()))
    assert notes.cosigned(signed(forged), as_witness) is None
    assert not notes.verify(signed(log_signature()), replace(LOG_KEY, kind=COSIGNATURE))


@pytest.mark.parametrize("time", [0, 1, 2**63 - 1])
def test_times(time: int) -> None:
    assert notes.cosigned_at(HEAD, cosignature(time), WITNESS_KEY) == time


def test_a_time_past_63_bits() -> None:
    assert notes.cosigned_at(HEAD, cosignature(2**63), WITNESS_KEY) is None


def test_a_time_is_signed() -> None:
    later = replace(cosignature(5), value=(6).to_bytes(8, "big") + cosignature(5).value[8:])
    assert notes.cosigned_at(HEAD, later, WITNESS_KEY) is None


LINE = log_signature().line()
ROOT = base64.b64encode(b"\1" * 32).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a\n1\n",
        f"a\n1\n{ROOT}\n",
        f"a\n1\n{ROOT}\n\n",
        f"a\n1\n{ROOT}\n{LINE}",
        f"\n1\n{ROOT}\n\n{LINE}",
        f"a\n01\n{ROOT}\n\n{LINE}",
        f"a\n-1\n{ROOT}\n\n{LINE}",
        f"a\n+1\n{ROOT}\n\n{LINE}",
        f"a\n1.0\n{ROOT}\n\n{LINE}",
        f"a\n\u0661\n{ROOT}\n\n{LINE}",
        f"a\n{2**63}\n{ROOT}\n\n{LINE}",
        f"a\n{'9' * 5000}\n{ROOT}\n\n{LINE}",
        f"a\n1\n{ROOT[:-1]}\n\n{LINE}",
        f"a\n1\n{ROOT[:-4]}\n\n{LINE}",
        f"a\n1\n{ROOT[:-2]}F=\n\n{LINE}",
        f"a\n1\n {ROOT}\n\n{LINE}",
        f"a\n1\n{ROOT}\nextension\n\n{LINE}",
        f"a\n1\n{ROOT}\r\n\n{LINE}",
        f"a\n1\n{ROOT}\n\n{LINE}\n",
        f"a\n1\n{ROOT}\n\n{LINE[:-1]}",
        f"a\n1\n{ROOT}\n\n{LINE.replace('— ', '- ')}",
        f"a\n1\n{ROOT}\n\n— {LINE.split(' ')[2]}",
        f"a\n1\n{ROOT}\n\n— a+b {LINE.split(' ')[2]}",
        f"a\n1\n{ROOT}\n\n— a\u00a0b {LINE.split(' ')[2]}",
        f"a\n1\n{ROOT}\n\n— a AAAAAA==\n",
        f"a\n1\n{ROOT}\n\n— a !!!!\n",
        f"a\n1\n{ROOT}\n\n" + LINE * 65,
        f"a\n1\n{ROOT}\n\n— {'a' * 70000} AAAAAAAA\n",
        f"a\t\n1\n{ROOT}\n\n{LINE}",
        f"a\ud800\n1\n{ROOT}\n\n{LINE}",
    ],
)
def test_what_is_no_checkpoint(text: str) -> None:
    with pytest.raises(Malformed) as raised:
        notes.parse(text)
    assert raised.value.reason == "checkpoint-malformed"


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(Malformed):
        notes.parse(b"a\xff\n1\n" + ROOT.encode() + b"\n\n" + LINE.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a+b",
        SUMDB_KEY + "=",
        SUMDB_KEY[:-4],
        SUMDB_KEY.replace("033de0ae", "033de0af"),
        SUMDB_KEY.replace("033de0ae", "033DE0AE"),
        SUMDB_KEY.replace("sum.golang.org", "sum golang.org"),
        SUMDB_KEY.replace("sum.golang.org", ""),
        "a+00000000+" + base64.b64encode(b"\6" + b"\0" * 32).decode(),
        "a+00000000+" + base64.b64encode(b"\1" + b"\0" * 33).decode(),
        "a" * 100_000,
    ],
)
def test_what_is_no_verifier_key(text: str) -> None:
    with pytest.raises(Malformed) as raised:
        VerifierKey.parse(text)
    assert raised.value.reason == "verifier-key-malformed"
    assert len(raised.value.detail) < 1000


def test_a_key_that_is_no_point_signs_nothing() -> None:
    key = VerifierKey(LOG_KEY.name, ED25519, b"\xff" * 32)
    assert not notes.verify(signed(replace(log_signature(), key_id=key.id)), key)


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_anything_is_read_or_refused(data: bytes | str) -> None:
    try:
        notes.parse(data)
    except Malformed:
        return


@given(st.data())
def test_a_changed_note_is_refused_or_not_verified(data: st.DataObject) -> None:
    text = signed(log_signature(), cosignature(5)).text()
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="utf-8").filter(lambda each: each != text[at]))
    changed = text[:at] + letter + text[at + 1 :]
    try:
        head = notes.parse(changed)
    except Malformed:
        return
    assert head.text() == changed
    both = notes.verify(head, LOG_KEY), notes.cosigned(head, WITNESS_KEY) == 5
    assert both != (True, True)


def test_an_empty_log_has_one_root() -> None:
    for root in (hashlib.sha256().digest(), bytes(32)):
        made = Checkpoint(HEAD.origin, 0, root)
        text = SignedCheckpoint(made, (log_signature(made),)).text()
        if root != bytes(32):
            assert notes.parse(text).checkpoint == made
        else:
            with pytest.raises(Malformed, match="hash of nothing"):
                notes.parse(text)
