"""What is written has bounds, however often one value stands in it."""

from typing import Any

import pytest

from hyperbeam import TooLarge
from hyperbeam.codecs import flat, httpsig, json, msgpack
from hyperbeam.codecs.room import MAX_TEXT
from hyperbeam.commitments import unsigned_id


def doubled(value: Any, times: int) -> Any:
    for _ in range(times):
        value = {"a": value, "b": [value]}
    return value


@pytest.mark.parametrize("encode", [json.encode, msgpack.encode, flat.encode, httpsig.encode])
@pytest.mark.parametrize(
    "value",
    [
        doubled("x", 60),
        doubled("x" * 1_000_000, 7),
        {"a": ["x" * (MAX_TEXT // 100)] * 101},
        {f"{'k' * 10_000}{number}": [{}] for number in range(7000)},
    ],
)
def test_what_is_too_much_is_413(encode: Any, value: Any) -> None:
    with pytest.raises(TooLarge):
        encode(value)
    with pytest.raises(TooLarge):
        unsigned_id(value)


async def test_a_path_does_not_grow_without_end(node: Any) -> None:
    path = "/~json@1.0/deserialize" + "/serialize~json@1.0" * 60
    with pytest.raises(TooLarge):
        await node.resolve(None, {"path": path, "body": '{"a": "\\"\\"\\"\\"\\"\\""}'})
