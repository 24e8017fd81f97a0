"""Upstream's vectors of messages: what each codec, id and signature has to keep.

Source: upstream hb_message_test_vectors, dev_codec_httpsig, dev_codec_flat.
"""

import pytest
from hypothesis import given, settings

from hyperbeam import BadRequest, Link, Message
from hyperbeam.cache import Cache
from hyperbeam.codecs import httpsig, siginfo, structured
from hyperbeam.codecs.siginfo import BadSignature
from hyperbeam.commitments import (
    as_signed,
    commit,
    commitments,
    committed,
    committers,
    message_id,
    unsigned_id,
    verify,
)
from hyperbeam.signers import HMAC
from hyperbeam.store.memory import MemoryStore

from .codecs.strategies import messages, same
from .vectors import (
    CODECS,
    KEEP_COMMITMENTS,
    MESSAGES,
    arweave,
    ed25519,
    id_of,
    is_json,
    signed_by,
    there_and_back,
)

SIGNERS = ("ed25519", "rsa", "both")
CASES = [
    (name, codec)
    for name, message in MESSAGES.items()
    for codec in CODECS
    if codec != "json@1.0" or is_json(message)
]


@pytest.mark.parametrize(("name", "codec"), CASES)
def test_a_message_comes_back_the_same_how_often_it_may_be_written(name: str, codec: str) -> None:
    message = MESSAGES[name]
    write, read = CODECS[codec]
    written = write(message)
    once = read(written)
    assert same(once, message)
    assert write(once) == written
    assert unsigned_id(once) == unsigned_id(message)


@pytest.mark.parametrize("signers", SIGNERS)
@pytest.mark.parametrize(("name", "codec"), [case for case in CASES if MESSAGES[case[0]]])
def test_a_signed_message_holds_wherever_it_has_been(name: str, codec: str, signers: str) -> None:
    message = MESSAGES[name]
    signed = signed_by(signers, message)
    verify(signed)
    again = there_and_back(codec, signed)
    verify(again)
    assert same(again, signed)
    expected = {"ed25519": [ed25519(1)], "rsa": [arweave()], "both": [ed25519(1), arweave()]}
    assert set(committers(again)) == {signer.address for signer in expected[signers]}
    assert set(committed(again)) == message.keys()
    assert message_id(again) == unsigned_id(message)
    assert message_id(again, "all") == message_id(signed, "all") != unsigned_id(message)


@pytest.mark.parametrize("signers", SIGNERS)
@pytest.mark.parametrize("name", [name for name, message in MESSAGES.items() if message])
def test_commitments_come_back_from_their_headers(name: str, signers: str) -> None:
    signed = signed_by(signers, MESSAGES[name])
    fields = siginfo.Fields()
    expected = [as_signed(signed, one) for one in commitments(signed).values()]
    for one in expected:
        fields.add(one)
    headers = fields.headers()
    assert siginfo.parse(headers["signature"], headers["signature-input"]) == expected


@settings(deadline=None, max_examples=40)
@given(messages.filter(bool))
def test_any_signed_message_holds_wherever_it_has_been(message: Message) -> None:
    signed = commit(message, ed25519(1))
    for codec in CODECS:
        if codec == "httpsig@1.0" and message.get("body") == "":
            continue  # HTTP does not tell an empty body from none
        if codec != "json@1.0" or is_json(message):
            verify(there_and_back(codec, signed))


@settings(deadline=None)
@given(messages)
def test_an_hmac_is_the_id_of_what_it_is_for(message: Message) -> None:
    signed = commit(message, ed25519(1))
    (mac,) = [id for id, one in commitments(signed).items() if one["type"] == HMAC]
    assert mac == unsigned_id(message)


@pytest.mark.parametrize("key", ["@path", "@method", "@query-param"])
def test_a_key_that_would_be_signed_as_another_is_refused(key: str) -> None:
    with pytest.raises(BadRequest, match=key):
        commit({key: "x"}, ed25519(1))
    verify(commit({"@status": "x", "@other": "y"}, ed25519(1)))


def test_the_order_of_keys_and_of_what_is_committed_does_not_count() -> None:
    message: Message = {"key-1": "1", "key-2": {"body": [1, 2]}, "key-3": "3"}
    order = ["key-3", "key-1", "key-2"]
    signed = commit(message, ed25519(1), order)
    verify(signed)
    assert committed(signed) == sorted(order)
    assert message_id(signed, "all") == message_id(commit(message, ed25519(1)), "all")
    verify({name: signed[name] for name in reversed(signed)})


def test_keys_are_committed_in_lower_case() -> None:
    signed = commit({"Content-Type": "text/plain", "B": 1}, ed25519(1), ["B", "CONTENT-TYPE"])
    assert committed(signed) == ["b", "content-type"]
    verify(signed)
    verify({name.lower(): value for name, value in signed.items()})


def test_only_committed_keys_count() -> None:
    signed = commit({"a": 1, "b": 2}, ed25519(1), ["a"])
    more = {**signed, "b": 3, "c": {"d": 4}, "priv": {"e": 5}}
    verify(more)
    assert committed(more) == ["a"]
    assert message_id(more, "all") == message_id(signed, "all")


def test_a_second_signer_signs_what_the_first_has() -> None:
    signed = commit(commit({"a": 1, "b": 2}, ed25519(1), ["a"]), arweave())
    assert [one["committed"] for one in commitments(signed).values()] == [["a"]] * 3
    verify({**signed, "b": 3})


def test_what_all_have_committed_is_what_each_has() -> None:
    signed = commit({"a": 1, "b": 2, "c": 3}, ed25519(1), ["a", "b"])
    signed = commit(signed, arweave(), ["b", "c"])
    by = {one.get("committer"): id for id, one in commitments(signed).items()}
    both = [by[ed25519(1).address], by[arweave().address]]
    assert committed(signed, both) == ["b"]
    assert committed(signed, both[:1]) == ["a", "b"]


def test_some_committers_of_several() -> None:
    signed = signed_by("both", {"basic": "value"})
    first, second = committers(signed)
    ids = {message_id(signed), message_id(signed, "all"), message_id(signed, [first])}
    assert len(ids | {message_id(signed, [second])}) == 4
    assert message_id(signed, [first, second]) == message_id(signed, [second, first])
    assert message_id(signed, [second, first]) == message_id(signed, "all")
    assert message_id(signed, ["x" * 43]) == unsigned_id(signed)


@pytest.mark.parametrize("signers", SIGNERS)
def test_nothing_to_sign_is_for_nothing(signers: str) -> None:
    signed = signed_by(signers, {"priv": {"a": 1}})
    assert committed(signed) == []
    with pytest.raises(BadSignature, match="not there"):
        verify(signed)


@pytest.mark.parametrize("codec", KEEP_COMMITMENTS)
@pytest.mark.parametrize("signers", SIGNERS)
def test_signed_messages_in_signed_messages(signers: str, codec: str) -> None:
    inner = signed_by(signers, {"c": "abc", "e": 5, "body": {"list": [1.5, {"d": "x\ny"}]}})
    outer = signed_by(signers, {"a": 1, "inner": {**inner, "not-signed": 6}})
    again = there_and_back(codec, outer)
    verify(again)
    verify(again["inner"])
    only = {key: again["inner"][key] for key in committed(again["inner"])}
    assert only == {key: inner[key] for key in ("c", "e", "body")}
    assert message_id(again["inner"], "all") == message_id(inner, "all")
    changed = {**again, "inner": {**again["inner"], "not-signed": 7}}
    verify(changed["inner"])
    with pytest.raises(BadSignature):
        verify(changed)
    with pytest.raises(BadSignature):
        verify({**again["inner"], "e": 6})


def test_private_keys_are_neither_written_nor_signed() -> None:
    message: Message = {"a": {"priv-b": 1, "c": 2}, "priv": {"hashpath": f"{id_of(1)}/{id_of(2)}"}}
    signed = commit(message, ed25519(1))
    assert committed(signed) == ["a"]
    for codec in CODECS:
        assert there_and_back(codec, message) == {"a": {"c": 2}}
        verify(there_and_back(codec, signed))
    with pytest.raises(BadSignature, match="not there"):
        verify(commit(message, ed25519(1), ["a", "priv"]))


def test_a_hashpath_is_signed_as_tag() -> None:
    tag = f"{id_of(1)}/{id_of(2)}"
    signed = commit({"a": 1}, arweave(), tag=tag)
    assert [one.get("tag") for one in commitments(signed).values()] == [tag, None]
    verify(signed)


def test_a_bundle_is_signed_as_a_whole() -> None:
    """Its unsigned id stays that of the message; upstream gives a bundle another."""
    message: Message = {"a": "1", "b": {"nested": {"n": 2}}, "c": [{"d": "3"}], "e": "4"}
    plain, bundled = commit(message, ed25519(1)), commit(message, ed25519(1), bundle="true")
    for signed in (plain, bundled, commit(plain, arweave(), bundle="true")):
        verify(signed)
        with pytest.raises(BadSignature):
            verify({**signed, "b": {"nested": {"n": 3}}})
    assert message_id(bundled, "all") != message_id(plain, "all")
    assert message_id(bundled) == message_id(plain) == unsigned_id(message)
    components = [
        set(as_signed(signed, one).components)
        for signed in (plain, bundled)
        for one in commitments(signed).values()
        if one["type"] != HMAC
    ]
    assert components == [
        {"a", "b+link", "c+link", "e"},
        {"a", "e", "content-type", "content-digest"},
    ]


def test_derived_components_are_named_as_such() -> None:
    signed = commit(MESSAGES["derived"], ed25519(1))
    for one in commitments(signed).values():
        text = siginfo.base_of_upstream(as_signed(signed, one), lambda name: name)
        *lines, parameters = text.split("\n")
        assert '"path": path' in lines
        assert '("@authority" "content-digest" "@method" "normal" "@path" "@query"' in parameters
        assert '"reason-phrase" "@request-target" "@scheme" "status" "@target-uri"' in parameters


def test_what_lies_in_a_store_is_signed_without_loading_it() -> None:
    inner: Message = {"text": "x" * 2000, "more": {"text": "y" * 2000}}
    message: Message = {"immediate": "value", "inner": inner, "gone": Link(id_of(1))}
    cache = Cache(MemoryStore())
    read = cache.read(cache.write(message))
    assert read["inner"] == Link(unsigned_id(inner))
    assert isinstance(cache.load(read["inner"])["more"], Link)
    signed = commit(read, ed25519(1))
    verify(signed)
    verify({**signed, "inner": inner})
    assert unsigned_id(read) == unsigned_id(message)
    with pytest.raises(BadSignature):
        verify({**signed, "gone": Link(id_of(2))})


def test_large_nested_values_are_committed() -> None:
    message: Message = {"a": 1, "b": {"c": {"d": "\0" * 1_000_000}}, "e": "\0" * 1_000_000}
    signed = signed_by("both", message)
    assert committed(signed) == ["a", "b", "e"]
    for codec in CODECS:
        verify(there_and_back(codec, signed))
    with pytest.raises(BadSignature):
        verify({**signed, "b": {"c": {"d": "\0" * 999_999 + "\1"}}})


def test_grouped_messages_are_paths_too() -> None:
    """A nested message is a part named by its path, so that it can be read as flat@1.0."""
    message: Message = {
        "a": "1",
        "b": {"x": "10", "y": {"z": "20"}, "foo": {"bar": {"fizz": "buzz"}}},
        "c": {"d": "30"},
    }
    headers, body = httpsig.encode(message)
    assert headers.keys() == {"a", "content-type", "content-digest"}
    for name in ("b", "b/foo/bar", "b/y", "c"):
        assert f'name="{name}"\r\n'.encode() in body
    assert b'name="b/foo"' not in body


def test_a_tabm_is_not_changed_by_being_read_again() -> None:
    for message in MESSAGES.values():
        tabm = structured.encode(message)
        assert structured.encode(structured.decode(tabm)) == tabm
