"""Batches: each statement's place under one root, and no other place."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.verify import batch, jcs
from hyperbeam.verify.checks import Malformed


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_each_statement_has_its_place_and_no_other(raws: list[str]) -> None:
    root, batches, nonce = batch.tree(raws)
    text = f'{{"root":"{root.hex()}","size":{len(raws)},"v":"hyperbeam.batch/1"}}'
    assert nonce == hashlib.sha256(text.encode()).hexdigest()
    for place, (raw, value) in enumerate(zip(raws, batches, strict=True)):
        found = batch.parse(value)
        assert batch.verify(found, raw, nonce)
        assert not batch.verify(found, raw + "x", nonce)
        assert not batch.verify(found, raw, "00" * 32)
        for other, raw_there in enumerate(raws):
            if other != place and raw_there != raw:
                moved = batch.parse({**value, "index": other})
                assert not batch.verify(moved, raw, nonce)
        for size in range(place + 1, len(raws) + 3):
            if size != len(raws):
                assert not batch.verify(batch.parse({**value, "size": size}), raw, nonce)


def test_a_leaf_is_the_hash_of_the_statements_hash() -> None:
    root, _, _ = batch.tree(["a"])
    assert root == hashlib.sha256(b"\0" + hashlib.sha256(b"a").digest()).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"v": "hyperbeam.batch/2"},
        {"size": 0},
        {"size": -1},
        {"size": 2**40},
        {"size": True},
        {"index": 3},
        {"index": 1.0},
        {"root": "00"},
        {"path": ["00" * 32] * 21},
        {"path": [1]},
        {"path": None},
        {"leaf": "00" * 32},
    ],
    ids=str,
)
def test_what_is_no_batch_is_refused(changes: dict[str, Any]) -> None:
    _, batches, _ = batch.tree(["a", "b", "c"])
    with pytest.raises(Malformed) as caught:
        batch.parse({**batches[0], **changes})
    assert caught.value.reason == "batch-malformed"


@given(
    st.dictionaries(
        st.sampled_from(["v", "size", "root", "index", "path"]),
        st.integers() | st.just(batch.V) | st.lists(st.text(max_size=64)) | st.text(max_size=64),
    )
    | st.none()
    | st.text()
)
def test_no_value_gives_more_than_a_refusal(value: Any) -> None:
    try:
        jcs.encode({"size": batch.parse(value).size})
    except Malformed as error:
        assert error.reason == "batch-malformed"
