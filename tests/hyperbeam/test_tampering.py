"""Signed messages of which something was changed: whatever it is, they are refused."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hyperbeam import Atom, HyperbeamError, Link, Message
from hyperbeam.codecs.siginfo import BadSignature
from hyperbeam.commitments import commit, commitments, committers, message_id, verify
from hyperbeam.signers import HMAC

from .codecs.strategies import messages, same, values
from .vectors import arweave, ed25519, id_of, signed_by

MESSAGE: Message = {
    "text": "one",
    "number": 1,
    "float": 2.5,
    "atom": Atom("ok"),
    "flag": True,
    "nothing": None,
    "bytes": b"\xff\x00",
    "empty": {},
    "list": [1, "two", [3]],
    "nested": {"a": {"b": [{"c": "deep"}]}, "body": "in\nlines"},
    "link": Link(id_of(1)),
    "long": "x" * 5000,
    "body": "the body",
    "path": "/~message@1.0/text",
}
SIGNERS = ("ed25519", "rsa", "both")
OTHERS: dict[str, list[Any]] = {
    "text": ["One", "one ", "", 1, Atom("one"), ["one"], {"1": "one"}, Link(id_of(1))],
    "number": [2, "1", 1.0, True, None, [1]],
    "float": [2.50001, "2.5", 2],
    "atom": ["ok", Atom("no"), True],
    "flag": [False, "true", 1],
    "nothing": ["null", False, "", Atom("nul")],
    "bytes": [b"\xff\x01", b"\xff", "\x00"],
    "empty": [[], "", {"a": {}}, None],
    "list": [[1, "two"], [1, "two", 3], ["1", "two", [3]], ["two", 1, [3]], {"1": 1, "2": "two"}],
    "nested": [
        {"a": {"b": [{"c": "Deep"}]}, "body": "in\nlines"},
        {"a": {"b": [{"c": "deep"}]}, "body": "in lines"},
        {"a": {"b": [{"c": "deep", "d": 1}]}, "body": "in\nlines"},
        {"a": {"b": {"c": "deep"}}, "body": "in\nlines"},
        {"a": {}, "body": "in\nlines"},
        "in\nlines",
    ],
    "link": [Link(id_of(2)), id_of(1), {}],
    "long": ["x" * 4999, "x" * 5000 + "\n"],
    "body": ["the Body", b"the body\xff", {"body": "the body"}, ""],
    "path": ["/~message@1.0/number", "", ["/~message@1.0/text"]],
}


@pytest.mark.parametrize("signers", SIGNERS)
@pytest.mark.parametrize("key", MESSAGE)
def test_another_value_of_a_key(key: str, signers: str) -> None:
    signed = signed_by(signers, MESSAGE)
    verify(signed)
    for value in OTHERS[key]:
        with pytest.raises(BadSignature):
            verify({**signed, key: value})
    with pytest.raises(BadSignature, match="not there"):
        verify({name: value for name, value in signed.items() if name != key})


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(HyperbeamError) as caught:
        verify({**signed_by("both", MESSAGE), "Text": "two"})
    assert caught.value.status == 400


@pytest.mark.parametrize("signers", SIGNERS)
def test_another_signature(signers: str) -> None:
    """Every character of it counts, those whose last bits say nothing too."""
    signed = signed_by(signers, {"a": 1})
    for id, one in commitments(signed).items():
        text = one["signature"]
        places = range(len(text)) if len(text) < 100 else (0, 1, 200, len(text) - 1)
        for place in places:
            for letter in "AZaz09-_":
                if letter != text[place]:
                    changed = text[:place] + letter + text[place + 1 :]
                    refuse(signed, id, {**one, "signature": changed})
        for changed in ("", text[:-1], text + "A", text + "=", text + "\n", None, 5, [text], b""):
            refuse(signed, id, {**one, "signature": changed})


@pytest.mark.parametrize("signers", SIGNERS)
def test_another_part_of_a_commitment(signers: str) -> None:
    signed = signed_by(signers, {"a": 1, "b": {"c": 2}, "d": "3", "priv": {"e": 4}})
    signed = {**signed, "added": "5", "ao-types": "x", "content-digest": "y"}
    verify(signed)
    for id, one in commitments(signed).items():
        assert one["committed"] == ["a", "b", "d"]
        more = ("added", "missing", "priv", "commitments", "ao-types", "content-digest", 1)
        lists: list[Any] = [["a", "b", "d", name] for name in more]
        lists += [["a", "b"], [], ["added"], "a", {"1": "a", "2": "b", "3": "d"}, None]
        for keys in lists:
            refuse(signed, id, {**one, "committed": keys})
        refuse(signed, id, {name: value for name, value in one.items() if name != "committed"})
        for kind in ("ed25519", "rsa-pss-sha512", "rsa-v1_5-sha256", HMAC, "", None, 5):
            if kind != one["type"]:
                refuse(signed, id, {**one, "type": kind})
        for keyid in ("ao", "", ed25519(2).keyid, arweave().keyid, "no key", None, 5):
            if keyid != one["keyid"]:
                refuse(signed, id, {**one, "keyid": keyid})
        for who in (ed25519(2).address, arweave().address, "", "x" * 43, 5, ["x"]):
            if who != one.get("committer"):
                refuse(signed, id, {**one, "committer": who})
        refuse(signed, id, {**one, "commitment-device": "ans104@1.0"})


def test_a_signer_that_is_not_named() -> None:
    signed = commit({"a": 1}, ed25519(1))
    for id, one in commitments(signed).items():
        if "committer" in one:
            refuse(signed, id, {name: value for name, value in one.items() if name != "committer"})


PARAMETERS: dict[str, Any] = {
    "created": 1700000000,
    "expires": 1900000000,
    "nonce": "n",
    "tag": 't"\\',
}


@pytest.mark.parametrize("name", [*PARAMETERS, "bundle"])
def test_another_parameter(name: str) -> None:
    signed = commit({"a": {"b": 1}}, arweave(), **PARAMETERS, bundle="true")
    verify(signed)
    plain = commit({"a": {"b": 1}}, arweave())
    for id, one in commitments(signed).items():
        if "committer" not in one:
            continue
        for other in ("x", "", "tru", "false", 5, -1, None, True, 1.5, ["x"]):
            refuse(signed, id, {**one, name: other})
        refuse(signed, id, {key: value for key, value in one.items() if key != name})
    for id, one in commitments(plain).items():
        for other in ("true", 5, None, True, 1.5, ["x"]):
            refuse(plain, id, {**one, name: other})


def refuse(signed: Message, id: str, one: Message) -> None:
    with pytest.raises(BadSignature):
        verify({**signed, "commitments": {**signed["commitments"], id: one}})


@pytest.mark.parametrize("signers", SIGNERS)
def test_another_id(signers: str) -> None:
    signed = signed_by(signers, {"a": 1})
    for id, one in commitments(signed).items():
        for other in ("", id_of(1), id.swapcase(), id[:-1], id + "=", *commitments(signed)):
            if other != id:
                with pytest.raises(BadSignature):
                    verify({**signed, "commitments": {other: one}})


def test_a_signature_of_another_message_or_signer() -> None:
    one, other = signed_by("both", {"a": 1}), signed_by("both", {"a": 2})
    with pytest.raises(BadSignature):
        verify({**one, "commitments": other["commitments"]})
    first, second = (
        next(iter(commitments(commit({"a": 1}, signer)).items()))
        for signer in (ed25519(1), arweave())
    )
    swapped = {**first[1], "signature": second[1]["signature"]}
    for id in (first[0], second[0]):
        with pytest.raises(BadSignature):
            verify({"a": 1, "commitments": {id: swapped}})


def test_one_bad_signature_among_good_ones() -> None:
    signed = signed_by("both", {"a": 1})
    by = {one.get("committer"): id for id, one in commitments(signed).items()}
    bad, good = by[ed25519(1).address], by[arweave().address]
    one = {**commitments(signed)[bad], "tag": "x"}
    changed = {**signed, "commitments": {**commitments(signed), bad: one}}
    with pytest.raises(BadSignature, match=bad):
        verify(changed)
    verify(changed, [good])
    with pytest.raises(BadSignature, match="no commitment"):
        verify(changed, [good, id_of(1)])


@settings(deadline=None, max_examples=60)
@given(messages.filter(bool), messages)
def test_one_signature_is_for_one_message(message: Message, other: Message) -> None:
    assume(any(key not in other or not same(other[key], message[key]) for key in message))
    signed = commit(message, ed25519(1))
    with pytest.raises(BadSignature):
        verify({"commitments": signed["commitments"], **other})


NAMES = [
    *("commitment-device", "type", "keyid", "committer", "committed", "signature"),
    *("tag", "created", "bundle"),
]
LIKELY = st.one_of(
    st.sampled_from([HMAC, "ed25519", "rsa-pss-sha512", "ao", "httpsig@1.0", "true"]),
    st.sampled_from([["a"], ["a", "b"]]),
    st.just(ed25519(1).keyid),
    st.text(max_size=90),
    values,
)


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        values,
        st.dictionaries(st.text(max_size=50), st.dictionaries(st.sampled_from(NAMES), LIKELY)),
    )
)
def test_whatever_stands_there_is_refused_or_has_no_signer(found: Any) -> None:
    message = {"a": 1, "b": "x", "commitments": found}
    assert committers(message) is not None
    message_id(message, "all")
    try:
        verify(message)
    except BadSignature as error:
        assert str(error)
        return
    except HyperbeamError as error:
        assert 400 <= error.status < 500
        return
    assert found == {}
