import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam import Atom, BadRequest, Link, Message
from hyperbeam.codecs import httpsig
from hyperbeam.commitments import unsigned_id
from hyperbeam.message import is_id, without

from .codecs.strategies import messages, same
from .codecs.wire import TRANSPORT, request


@pytest.mark.parametrize(
    ("number", "id"),
    [
        ("02", "1sCX3bUsWnd6QkOWMrBTervlsS5kXY-rNtRwlzuxB7E"),
        ("04", "NKRxtJ9itYAW8sV1_2BKSqMjEUGa5CU-lX7__3NPq1Y"),
        ("08", "Zpxr3c4EtEEhBQ9S6zbxGmyMCeJk6YQvBGSYHEXNpCI"),
    ],
)
def test_captured_requests(number: str, id: str) -> None:
    message = without(httpsig.decode(*request(number)), TRANSPORT)
    if number == "02":
        # What the client says of a request that has no body.
        assert message.pop("content-type") == "application/octet-stream"
    assert unsigned_id(message) == id


@pytest.mark.parametrize(
    ("message", "id"),
    [
        ({"d": [1, 2]}, "-OzKPPlx00fdIwiuB0iLR66B021hBe23K0wA_D3dqeY"),
        ({"b": {"c": "deep"}}, "pbHUErK60jpH9AcNrw-P7-cpXeYQ4RAIVYk5oZy0LW8"),
        (
            {"node": {"prefix": "http://127.0.0.1:9801"}, "template": "/v1/.*"},
            "zRh5Pvv5y0yJq0Ps8BarYY0wrR9xYZY0OXMOo465x_c",
        ),
        (
            {
                "a": "1",
                "accept": "*/*",
                "accept-bundle": False,
                "body": "",
                "device": "message@1.0",
                "host": "127.0.0.1:8734",
                "method": "GET",
                "user-agent": "curl/7.88.1",
            },
            "qtvGjQy-vRypn09um_wZGxud4jegyK_q7Lw6HTWtMpA",
        ),
    ],
)
def test_ids_that_an_upstream_node_gave(message: Message, id: str) -> None:
    """The links of rows 23, 74 and 47 of the wire table, and the answer of row 76."""
    assert unsigned_id(message) == id


@pytest.mark.parametrize(
    ("message", "id"),
    [
        ({}, "VnYnaoOvankqXk13s502zpiq9PIaqFHDRcIrTNhyqKQ"),
        (
            {"a": None, "b": [], "c": b"\xff", "d": 2**70, "e": Atom("x y")},
            "sCLL7jBolmasne0Cm4duYFZ3PwVdzzKrNrpaIlPmhNs",
        ),
        (
            {"long": "x" * 5000, "content-type": "text/plain", "body": "b"},
            "WILZrGcJMRIMRB2LV1_-DZP-EXMylbsr1lSzXVOu0mI",
        ),
        (
            {"a": "two\nlines", 'quo"te': "1", "é": "ü", "data": "d"},
            "B_exa0cq6-4PBNwquf55ZEgBaBpSpsKVBfO9ACmt3rc",
        ),
        (
            {"NKRxtJ9itYAW8sV1_2BKSqMjEUGa5CU-lX7__3NPq1Y": "x"},
            "usrjwf4k8-YoDV0VOB503JDwSqMT_NifSeuh2zr8O3g",
        ),
        (
            {f"k{number}": number for number in range(40)},
            "6hJ07w_AXFyEZoMkekMu7zctb8pgsoUeRR44ThE_IhY",
        ),
    ],
)
def test_stored_ids_stay(message: Message, id: str) -> None:
    """Ids that this project has given: they name what lies in stores and never change."""
    assert unsigned_id(message) == id


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(item, order)) for key, item in value.items()]
        order.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


@settings(deadline=None)
@given(messages, st.randoms(use_true_random=False))
def test_order_and_private_keys_do_not_count(message: Message, order: random.Random) -> None:
    id = unsigned_id(message)
    assert is_id(id)
    assert unsigned_id(shuffled(message, order)) == id
    assert unsigned_id({**message, "priv": {"a": 1}, "priv.b": object()}) == id


@settings(deadline=None)
@given(messages, messages)
def test_different_messages_have_different_ids(one: Message, other: Message) -> None:
    assert (unsigned_id(one) == unsigned_id(other)) == same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": '1\n"b": 2', "b": "3"}, {"a": "1", "b": '2\n"b": 3'}),
        ({"a": "1", 'a": 1\n"b': "2"}, {"a": "1", "b": "2"}),
        ({"a%22": "1"}, {'a"': "1"}),
        (
            {"content-type": "text/plain", "long": "x" * 5000},
            {"content-type": "text/html", "long": "x" * 5000},
        ),
        ({"a": 1}, {"a": "1", "ao-types": 'a="integer"'}),
        ({"a": 1}, {"a": True}),
        ({"a": " x"}, {"a": "x"}),
        ({"signature": "x"}, {}),
        ({"body": ""}, {}),
    ],
)
def test_messages_made_to_share_an_id_do_not(one: Message, other: Message) -> None:
    assert unsigned_id(one) != unsigned_id(other)


def test_a_body_of_parts_is_not_the_message_that_the_parts_are() -> None:
    headers, body = httpsig.encode({"long": "x" * 5000})
    opaque = {"content-type": headers["content-type"], "body": body}
    assert unsigned_id(opaque) != unsigned_id({"long": "x" * 5000})


def test_a_link_stands_for_its_message() -> None:
    inner = {"b": [1, {"c": "d"}]}
    assert unsigned_id({"a": inner}) == unsigned_id({"a": Link(unsigned_id(inner))})
    listed = [Link(unsigned_id({"c": "d"})), "x"]
    assert unsigned_id({"a": [{"c": "d"}, "x"]}) == unsigned_id({"a": listed})
    assert unsigned_id({"a": b"text"}) == unsigned_id({"A": "text"})


def test_what_has_no_id() -> None:
    with pytest.raises(BadRequest):
        unsigned_id({"a": float("nan")})
    with pytest.raises(BadRequest):
        unsigned_id({"a": 1, "A": 2})
