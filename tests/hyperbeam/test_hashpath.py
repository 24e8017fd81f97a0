import base64
import hashlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import Message, hashpath
from hyperbeam.commitments import commit, message_id, unsigned_id
from hyperbeam.errors import BadRequest

from .codecs.strategies import messages
from .vectors import ed25519

BASE: Message = {"a": 1, "b": {"c": [2]}}
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=50)


def native(id: str) -> bytes:
    return base64.urlsafe_b64decode(id + "=")


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def test_a_message_is_its_own_root() -> None:
    assert hashpath.root(BASE) == unsigned_id(BASE)


def test_a_message_that_is_signed_whole_has_the_id_of_its_signatures() -> None:
    signed = commit(BASE, ed25519(1))
    assert hashpath.root(signed) == message_id(signed, "all")
    assert hashpath.root({**signed, "priv": {"commitments": {}}}) == hashpath.root(signed)


def variants(signed: Message) -> Iterator[Message]:
    yield signed
    yield {key: value for key, value in signed.items() if key != "commitments"}
    for key in ("a", "x", "content-digest", "ao-types", "commitments\n"):
        yield {**signed, key: "changed"}
    yield {**signed, "b": commit(BASE["b"], ed25519(1))}
    yield {**signed, "b": {**BASE["b"], "commitments": {"x": {"committer": "y"}}}}
    for id, one in signed["commitments"].items():
        others = {other: it for other, it in signed["commitments"].items() if other != id}
        yield {**signed, "commitments": others}
        for changed in ({"x": 1}, {"committed": ["b", "a"]}, {"committer": None}, {"keyid": "x"}):
            yield {**signed, "commitments": {**others, id: {**one, **changed}}}


@pytest.mark.parametrize("signers", [1, 2])
def test_what_is_not_the_same_has_another_root(signers: int) -> None:
    signed = BASE
    for number in range(signers):
        signed = commit(signed, ed25519(number))
    every = list(variants(signed))
    every += [{key: value for key, value in one.items() if key != "a"} for one in every]
    kinds = {json.dumps(one, sort_keys=True) for one in every}
    assert len({hashpath.root(one) for one in every}) == len(kinds) > 20


@given(messages, messages)
def test_two_messages_have_two_roots(one: Message, other: Message) -> None:
    pair = ({**one, "commitments": other}, {**one, "commitments\n": other}, {**one, "b": 1})
    assert len({hashpath.root(message) for message in pair}) == 3


def test_of_bytes_and_text_it_is_the_digest() -> None:
    assert hashpath.root(b"x") == hashpath.root("x") == encoded(b"x")


def test_a_request_that_says_nothing_is_its_key() -> None:
    root = hashpath.root(BASE)
    assert hashpath.after(root, "a", {"path": "a", "priv": {"x": 1}}) == f"{root}/a"


def test_what_says_how_to_answer_does_not_count() -> None:
    asked = {"cache-control": "store", "hashpath": True, "private": 1}
    assert hashpath.after("r" * 43, "a", asked) == "r" * 43 + "/a"


def test_a_request_that_says_more_is_its_id() -> None:
    root = hashpath.root(BASE)
    asked = {"path": "a", "x": 1}
    assert hashpath.after(root, "a", asked) == f"{root}/{unsigned_id(asked)}"


def test_the_next_step_rolls_the_path() -> None:
    root = hashpath.root(BASE)
    first = hashpath.after(root, "b", {})
    assert hashpath.after(first, "c", {}) == f"{encoded(native(root) + b'b')}/c"
    id = unsigned_id({"path": "b", "x": 1})
    first = hashpath.after(root, "b", {"x": 1})
    assert hashpath.after(first, "c", {}) == f"{encoded(native(root) + native(id))}/c"


@given(st.dictionaries(TEXTS, TEXTS), TEXTS, st.data())
def test_the_order_of_keys_says_nothing(
    request: dict[str, str], called: str, data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(request.items()))))
    try:
        path = hashpath.after("r" * 43, called, request)
    except BadRequest:
        return
    assert path == hashpath.after("r" * 43, called, shuffled)
    base, _, name = path.partition("/")
    assert base == "r" * 43
    assert "/" not in name


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=2, unique=True))
def test_other_requests_have_other_paths(requests: list[tuple[str, str]]) -> None:
    paths = {hashpath.after("r" * 43, called, {"x": value}) for called, value in requests}
    assert len(paths) == 2


@pytest.mark.parametrize("called", ["x" * 43, "a/b", "/"])
def test_a_key_never_looks_like_more(called: str) -> None:
    path = hashpath.after("r" * 43, called, {})
    assert path == "r" * 43 + "/" + unsigned_id({"path": called})


def test_what_came_from_the_head_is_told_apart() -> None:
    of_query = hashpath.after("r" * 43, "set", {"x": "1"})
    of_head = hashpath.after("r" * 43, "set", {"x": "1", "priv": {"request-headers": {"x", "y"}}})
    assert of_query != of_head
