"""What an order is, and what is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import HyperbeamError, Message
from hyperbeam.errors import BadRequest, Forbidden
from hyperbeam.operator import orders

from .support import ME, OTHER, request

NODE = "n" * 43
_OF_ORDERS = {"to", "timestamp", "nonce"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(said: Message, by: str | None = ME.address) -> orders.Order:
    return orders.read(said, by, NODE)


def word(said: Message, by: str | None = ME.address) -> str:
    with pytest.raises((Forbidden, BadRequest)) as caught:
        read(said, by)
    return caught.value.error


def test_an_order_is_what_its_body_says() -> None:
    order = read(request(NODE, {"log.level": "debug", "deep": {"a": [1]}}, nonce="not this"))
    assert order.keys == {"log.level": "debug", "deep": {"a": [1]}}
    assert order.by == ME.address
    assert order.nonce.startswith("nonce ")
    assert abs(order.time - orders.now()) < orders.WINDOW


def test_an_order_may_be_in_headers() -> None:
    said = request(NODE, signed=("path", "to", "timestamp", "nonce", "log.level"))
    said |= {"to": NODE, "timestamp": str(orders.now()), "nonce": "a", "log.level": "debug"}
    said["http.cors"] = "not signed"
    assert read(said).keys == {"log.level": "debug"}


def test_time_and_nonce_of_the_signature_do() -> None:
    now = orders.now() // 1000
    order = read(request(NODE, timestamp=None, created=now, nonce=None))
    assert order.time == now * 1000
    said = request(NODE, nonce=None)
    said["priv"]["signatures"][0]["nonce"] = "of the signature"
    said["body"] = said["body"].replace(b'"nonce"', b'"other"')
    assert read(said).nonce == "of the signature"


def test_whom_it_is_signed_by() -> None:
    assert word(request(NODE, by=OTHER.address)) == "not_the_operator"
    assert read(request(NODE, by=OTHER.address), None).by == OTHER.address
    unsigned = request(NODE)
    unsigned["priv"] = {}
    assert word(unsigned) == word(unsigned, None) == "not_the_operator"
    del unsigned["priv"]
    assert word(unsigned) == "not_the_operator"


def test_a_second_signature_takes_nothing_away() -> None:
    """Of a request that two have signed only what both cover is kept."""
    said = request(NODE, {"a": 1})
    also = {**said["priv"]["signatures"][0], "by": OTHER.address, "keys": frozenset({"path"})}
    said["priv"]["signatures"] += (also,)
    assert word(said) == "not_the_operator"
    assert word(said, None) == "not_the_operator"


@pytest.mark.parametrize("name", ["status", "@status", "ao-result"])
def test_a_signed_reply_is_no_order(name: str) -> None:
    said = request(NODE, {"a": 1}, signed=("path", "body", "content-type", name))
    assert word(said) == word(said, None) == "not_the_operator"


def test_a_body_or_path_that_is_not_signed() -> None:
    assert word(request(NODE, signed=("body",))) == "not_the_operator"
    assert word(request(NODE, signed=("path",))) == "another_node"


@pytest.mark.parametrize("to", [None, "", "m" * 43, ["n" * 43], NODE.upper()])
def test_an_order_for_another_node(to: Any) -> None:
    assert word(request(NODE, to=to)) == "another_node"


@pytest.mark.parametrize("off", [-orders.WINDOW - 1000, orders.WINDOW + 1000, -(10**15), 10**30])
def test_an_order_of_another_time(off: int) -> None:
    assert word(request(NODE, timestamp=orders.now() + off)) == "stale_order"


@pytest.mark.parametrize("at", [None, True, 1.5, "", "-1", "now", "\u0661", [1], {}])
def test_a_time_that_is_none(at: Any) -> None:
    assert word(request(NODE, timestamp=at)) == "bad_request"


@pytest.mark.parametrize("nonce", ["", "a" * (orders.MAX_NONCE + 1), 7, ["a"], True])
def test_a_nonce_that_is_none(nonce: Any) -> None:
    said = request(NODE, {"nonce": nonce})
    assert word(said) == "bad_request"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/jsonx"])
def test_a_body_of_another_type(kind: str) -> None:
    said = request(NODE)
    said["content-type"] = kind
    assert word(said) == "bad_request"


@pytest.mark.parametrize(
    "body", [b"[]", b'"a"', b"{", b"\xff", b"null", b'{"to": NaN}', b"[" * 9000]
)
def test_a_body_that_cannot_be_read(body: bytes) -> None:
    said = request(NODE)
    said["body"] = body
    assert word(said) in ("bad_request", "invalid_json")


@given(st.dictionaries(st.text() | st.sampled_from(["to", "nonce", "timestamp"]), JSON))
def test_whatever_the_body_says_it_is_an_order_or_refused(said: dict[str, Any]) -> None:
    try:
        order = read(request(NODE, said))
    except HyperbeamError as error:
        assert error.status in (400, 403)
    else:
        assert set(order.keys) == {n for n, v in said.items() if v is not None} - _OF_ORDERS
