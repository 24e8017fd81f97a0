"""Documents, tokens, policies, revocation lists and remembered heads, read from anybody."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.verify import document, token
from hyperbeam.verify.checks import Checks, Malformed
from hyperbeam.verify.heads import KEPT, FileHeads, MemoryHeads
from hyperbeam.verify.policy import Policy
from hyperbeam.verify.revoked import Revoked

from .documents import ANSWER, STREAM, Signer

SIGNER = Signer()
NODE, NAME, UEID = SIGNER.node, SIGNER.keyset_name, "4" * 48
EVIDENCE = [{"arch": "HOPPER", "nonce": "00" * 32, "evidence": "AAAA", "certificate": "BBBB"}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (ANSWER, "answer"),
        (b'{"attestation":{}}', "answer"),
        (b'{"object":"list","data":[]}', "answer"),
        (STREAM, "stream"),
        (b": keep-alive\n\n" + STREAM, "stream"),
        (b"event: x\r\ndata: 1\r\n\r\n", "stream"),
        (json.dumps(EVIDENCE), "evidence"),
        (json.dumps({"evidences": EVIDENCE, "nonce": "00" * 32}), "evidence"),
        (json.dumps({"token": "x"}), "evidence"),
        (token.encode(EVIDENCE), "evidence"),
        (json.dumps(token.encode(EVIDENCE)), "evidence"),
        (token.encode(EVIDENCE) + "\n", "evidence"),
        ("[]", "evidence"),
        ('{"raw":"","signature":{}}', "attestation"),
        ('{"challenge":"{}","evidences":[]}', "challenge"),
        (json.dumps(SIGNER.keyset(), indent=1), "keyset"),
        (json.dumps(SIGNER.make_receipt(None, b"")), "receipt"),
        ('{"v":"hyperbeam.inclusion/1"}', "inclusion"),
        ('{"v":"hyperbeam.consistency/1"}', "consistency"),
        (f"hyperbeam/receipts/{NODE}\n1\nAAAA\n", "checkpoint"),
    ],
    ids=lambda value: str(value)[:18],
)
def test_a_document_is_told_by_what_it_says(text: bytes | str, kind: str) -> None:
    assert document.read(text).kind == kind
    assert document.read(text, kind).kind == kind
    with pytest.raises(Malformed) as caught:
        document.read(text, "inclusion" if kind != "inclusion" else "receipt")
    assert caught.value.reason == "document-kind"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "document-unreadable"),
        (b" \n", "document-unreadable"),
        (b"{", "document-unreadable"),
        (b"\xff", "document-unreadable"),
        (b"<html>", "document-unreadable"),
        (b'{"a":1,"a":2}', "document-unreadable"),
        (b"12", "document-unknown"),
        (b"{}", "document-unknown"),
        (b'{"v":"hyperbeam.receipt/2"}', "document-unknown"),
        (b'{"error":{"message":"no"}}', "document-unknown"),
        (b"[" * 200, "document-unreadable"),
    ],
)
def test_what_is_no_document_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        document.read(text)
    assert caught.value.reason == reason


def test_parsed_documents_are_taken_too() -> None:
    assert document.read(EVIDENCE).value == {"evidences": EVIDENCE}
    assert document.read(SIGNER.keyset()).kind == "keyset"
    for wrong in ({"a": {1, 2}}, [float("nan")], {"a": "\ud800"}):
        with pytest.raises(Malformed):
            document.read(wrong)


@given(st.binary() | st.text())
def test_no_text_gives_more_than_a_refusal(text: bytes | str) -> None:
    try:
        assert document.read(text).kind in document.KINDS
    except Malformed as error:
        assert error.reason


def test_a_token_is_its_list() -> None:
    assert token.decode(token.encode(EVIDENCE)) == EVIDENCE


@pytest.mark.parametrize(
    "text",
    [
        None,
        [],
        "",
        "x",
        "AA\nAA",
        base64.b64encode(b"{}").decode(),
        base64.b64encode(b"[1,]").decode(),
        token.encode(EVIDENCE)[:-1],
        "W10=\n",
        "W11=",
        "A" * (token.MAX_CHARACTERS + 4),
        base64.b64encode(b"[" + b"0," * 20_000 + b"0]").decode(),
        base64.b64encode(base64.b64encode(b"A" * 3_000_000)).decode(),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_token_is_refused(text: Any) -> None:
    with pytest.raises(Malformed) as caught:
        token.decode(text)
    assert caught.value.reason == "token-malformed"


@given(st.data())
def test_no_character_of_a_token_can_be_changed_unseen(data: st.DataObject) -> None:
    text = token.encode(EVIDENCE)
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.characters().filter(lambda character: character != text[at]))
    try:
        assert token.decode(text[:at] + new + text[at + 1 :]) != EVIDENCE
    except Malformed as error:
        assert error.reason == "token-malformed"


@pytest.mark.parametrize(
    "text",
    [
        f"# old\n{NODE}\n\n{NAME}\n  {UEID}\n",
        json.dumps([NODE, NAME, UEID]),
        json.dumps({"nodes": [NODE], "keysets": [NAME], "ueids": [UEID]}),
    ],
)
def test_a_revocation_list_is_read_in_each_shape(text: str) -> None:
    found = Revoked.parse(text)
    assert found == Revoked(frozenset({NODE}), frozenset({NAME}), frozenset({UEID}))
    assert Revoked.parse(text.encode()) == found
    for node, keyset, ueid, reason in (
        (NODE, "", "", "node-revoked"),
        ("", NAME, "", "keyset-revoked"),
        ("", "", UEID, "ueid-revoked"),
        ("A" * 43, "00" * 32, "1", ""),
    ):
        checks = Checks()
        found.check(checks, node, keyset, [ueid])
        assert checks.reason() == reason


@pytest.mark.parametrize(
    "text",
    [
        "what is this",
        f"{NODE} {NAME}",
        '{"nodes":["x"]}',
        f'{{"nodes":["{NAME}"]}}',
        '{"nodes":1}',
        '{"others":[]}',
        "[1]",
        "[[]]",
        "[",
        b"\xff",
        1,
    ],
    ids=range(11),
)
def test_a_revocation_list_that_is_half_understood_is_refused(text: Any) -> None:
    with pytest.raises(Malformed) as caught:
        Revoked.parse(text)
    assert caught.value.reason == "revoked-malformed"


def test_a_policy_says_all_its_fields_and_reads_them_again() -> None:
    policy = Policy.parse(
        {
            "ocsp": "skip",
            "nodes": [NODE],
            "models": ["ab" * 32],
            "measurements": ["cd" * 48],
            "snp": {"debug": "allow"},
            "require_fresh": True,
            "require_cpu": True,
        }
    )
    assert policy.cpu.measurements == ("cd" * 48,) and policy.cpu.debug == "allow"
    assert policy.gpu.ocsp == "skip" and policy.nodes == (NODE,)
    assert Policy.parse(json.dumps(policy.as_dict())).as_dict() == policy.as_dict()
    assert policy.digest() == Policy.parse(policy.as_dict()).digest() != Policy().digest()
    trusting = policy.with_trust("simulated:" + "ef" * 32)
    assert trusting.gpu.ocsp == "skip" and trusting.gpu.trust.startswith("simulated:")


@pytest.mark.parametrize(
    "value",
    [
        {"ocps": "skip"},
        {"nodes": []},
        {"nodes": ["x"]},
        {"nodes": NODE},
        {"models": ["x"]},
        {"require_fresh": 1},
        {"require_cpu": "yes"},
        {"measurements": ["00"]},
        {"snp": {"x": 1}},
        {"snp": [], "measurements": ["cd" * 48]},
        {"trust": "everybody"},
        "[]",
        b"\xff",
        " " * (1 << 21),
    ],
    ids=range(14),
)
def test_a_policy_that_is_not_understood_is_refused(value: Any) -> None:
    with pytest.raises(Malformed) as caught:
        Policy.parse(value)
    assert caught.value.reason == "policy-malformed"


def test_heads_are_remembered_in_a_file_for_each_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    heads = FileHeads(folder)
    assert heads.seen("a") == {}
    heads.remember("a", 1, b"1" * 32)
    heads.remember("b/../c", 2, b"2" * 32)
    heads.remember("a", 1, b"x" * 32)
    again = FileHeads(folder)
    assert again.seen("a") == {1: b"1" * 32}
    assert again.seen("b/../c") == {2: b"2" * 32}
    assert len(list(folder.iterdir())) == 2
    assert sorted(again.origins()) == ["a", "b/../c"]
    assert FileHeads(tmp_path / "none").origins() == []


def test_the_largest_heads_are_kept(tmp_path: Path) -> None:
    path = tmp_path
    heads = FileHeads(path)
    for size in range(KEPT + 3):
        heads.remember("a", size, bytes(32))
    assert sorted(heads.seen("a")) == list(range(3, KEPT + 3))


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"origin":"b","heads":[]}'])
def test_a_damaged_memory_is_not_taken_for_an_empty_one(tmp_path: Path, text: bytes) -> None:
    heads = FileHeads(tmp_path)
    heads.remember("a", 1, bytes(32))
    next(tmp_path.iterdir()).write_bytes(text)
    with pytest.raises(Malformed) as caught:
        heads.seen("a")
    assert caught.value.reason == "state-malformed"
    if b"heads" not in text:
        with pytest.raises(Malformed):
            heads.origins()


def test_heads_in_memory() -> None:
    heads = MemoryHeads()
    heads.remember("a", 1, b"1")
    assert heads.origins() == ["a"]
    heads.remember("a", 1, b"2")
    assert heads.seen("a") == {1: b"1"} and heads.seen("b") == {}


@settings(max_examples=100)
@given(st.text() | st.binary())
def test_no_list_or_policy_gives_more_than_a_refusal(text: Any) -> None:
    for read in (Revoked.parse, Policy.parse):
        try:
            read(text)
        except Malformed as error:
            assert error.reason


def test_base64_inside_base64_is_not_followed() -> None:
    text = b"x" * 300_000
    while len(text) < 16 << 20:
        text = base64.b64encode(text * 4)
    for large in (text, b'"' + text + b'"', b'{"token":"' + text + b'"}'):
        with pytest.raises(Malformed):
            found = document.read(large)
            token.decode(found.value["token"])


def test_verifying_starts_no_server_and_loads_none() -> None:
    code = (
        "import sys, hyperbeam.verify as v\n"
        "early = {'lxml', 'cryptography'} & set(sys.modules)\n"
        "assert not early, early\n"
        "v.verify('[]')\n"
        "loaded = {'starlette', 'uvicorn', 'hyperbeam.node', 'lmdb'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_policy_that_is_wrong_is_told_all_its_fields() -> None:
    with pytest.raises(Malformed) as caught:
        Policy.parse({"min_drivers": "1"})
    assert "`min_drivers` is not one of" in caught.value.detail
    known = Policy().as_dict().keys() | {"measurements"}
    assert all(name in caught.value.detail for name in known)
    for value in (
        {"measurements": ["ab" * 48], "snp": 1},
        {"measurements": ["ab" * 48], "snp": {"measurements": ["cd" * 48]}},
    ):
        with pytest.raises(Malformed) as caught:
            Policy.parse(value)
        assert caught.value.reason == "policy-malformed"
    same = {"measurements": ["ab" * 48], "snp": {"measurements": ["ab" * 48]}}
    assert Policy.parse(same).cpu.measurements == ("ab" * 48,)
