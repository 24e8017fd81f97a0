"""Wherever a request says `tee` and `nonce`, by a running node and by the grammar of paths."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.inference import Inference
from devices.inference.options import take, written
from hyperbeam import BadRequest
from hyperbeam.node import Node
from hyperbeam.path import Resolve, parse
from tests.hyperbeam.conftest import StartNode

from .dummy import Dummy, say

A = "ab" * 32
B = "cd" * 32
ROOT = "/~inference@1.0"
PLAIN = {"prompt": "x"}


@pytest.fixture
async def dummy() -> AsyncIterator[Dummy]:
    async with Dummy(say("In ", "Rom")) as dummy:
        yield dummy


@pytest.fixture
async def http(start_node: StartNode, dummy: Dummy) -> AsyncIterator[httpx.AsyncClient]:
    node: Node = await start_node(sev_gpu__backend="simulated")
    device = node.device("inference@1.0")
    assert isinstance(device, Inference)
    device.backend = dummy
    await device.start()
    url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


Headers = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("path", "headers", "fields"),
    [
        ("completions?tee=true&tee=false", [], {}),
        ("completions?tee=false&tee=true", [], {}),
        ("completions?tee&tee=false", [], {}),
        ("completions?tee=digest&tee=true", [], {}),
        ("completions&tee=true?tee=false", [], {}),
        ("completions&tee?tee=0", [], {}),
        ("completions&tee=true&tee=false", [], {}),
        ("completions&t%65e=true?tee=false", [], {}),
        ("completions&TEE=true?Tee=false", [], {}),
        ("completions?tee=true&tee%2Bboolean=false", [], {}),
        ("completions&tee+boolean=true?tee=false", [], {}),
        ("completions?1.tee=true&tee=false", [], {}),
        ("completions?tee=true&x-tee=false", [], {}),
        ("completions?x-tee=true&x-tee=false", [], {}),
        ("completions?tee=true", [], {"tee": False}),
        ("completions?tee=true", [("x-tee", "false")], {}),
        ("completions?tee=true", [("tee", "false")], {}),
        ("completions&tee=true", [("tee", "false")], {}),
        ("completions?tee=false", [("tee", "true")], {}),
        ("completions?tee=false", [("tee+boolean", "true")], {}),
        ("completions?tee=false", [("1.tee", "true")], {}),
        ("completions?x-tee=false", [("x-tee", "true")], {}),
        ("completions", [("tee", "true"), ("tee", "false")], {}),
        ("completions", [("x-tee", "true"), ("x-tee", "false")], {}),
        ("completions", [("tee", "true"), ("x-tee", "false")], {}),
        ("completions", [("tee", "true"), ("tee+boolean", "false")], {}),
        ("completions", [("1.tee", "true"), ("tee", "false")], {}),
        ("completions", [("x-tee", "true")], {"tee": False}),
        ("v1&tee=true/completions?tee=false", [], {}),
        ("v1&tee=true/completions", [], {"tee": False}),
    ],
)
async def test_who_says_two_things_of_tee_gets_no_answer(
    http: httpx.AsyncClient, dummy: Dummy, path: str, headers: Headers, fields: Any
) -> None:
    reply = await http.post(f"{ROOT}/{path}", headers=headers, json={**PLAIN, **fields})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert "tee" in reply.json()["error"]["param"]
    assert dummy.calls == []


@pytest.mark.parametrize(
    ("path", "headers", "fields"),
    [
        (f"completions?nonce={A}&nonce={B}", [], {}),
        (f"completions&nonce={A}?nonce={B}", [], {}),
        (f"completions&nonce={A}&nonce={B}", [], {}),
        (f"completions?nonce={A}&nonce%2Bbinary={B}", [], {}),
        (f"completions?nonce={A}&x-nonce={B}", [], {}),
        (f"completions?nonce={A}", [("nonce", B)], {}),
        (f"completions?nonce={A}", [("x-nonce", B)], {}),
        (f"completions?x-nonce={A}", [("x-nonce", B)], {}),
        (f"completions?nonce={A}", [], {"nonce": B}),
        ("completions", [("nonce", A), ("nonce", B)], {}),
        ("completions", [("nonce", A), ("nonce+binary", B)], {}),
        ("completions", [("nonce", A), ("x-nonce", B)], {}),
        (f"v1&nonce={A}/completions?nonce={B}", [], {}),
        (f"v1&nonce={A}/completions", [], {}),
    ],
)
async def test_who_says_two_things_of_the_nonce_gets_no_answer(
    http: httpx.AsyncClient, dummy: Dummy, path: str, headers: Headers, fields: Any
) -> None:
    reply = await http.post(
        f"{ROOT}/{path}", headers=headers, json={**PLAIN, "tee": True, **fields}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert "nonce" in reply.json()["error"]["param"]
    assert dummy.calls == []


@pytest.mark.parametrize(
    ("path", "headers", "fields"),
    [
        ("completions?tee=true", [], {}),
        ("completions?tee", [], {}),
        ("completions&tee", [], {}),
        ("completions&tee=true?tee=1&TEE=True", [], {"tee": True}),
        ("completions?tee%2Bboolean=true", [], {}),
        ("completions?tee%2Binteger=1", [], {}),
        ("completions?1.tee=true", [], {}),
        ("completions?x-tee=true", [], {}),
        ("completions?x=(tee=false)", [("tee", "true")], {}),
        ("completions&x=(~message@1.0&tee=false&y=1/y)?tee=true", [], {}),
        ("completions&tee=true?nottee=false", [("x-tee", "true")], {"tee": "true"}),
        ("completions", [("1.tee", "true")], {}),
        ("completions", [("tee+boolean", "true")], {}),
        ("completions", [], {"tee": True}),
        ("v1&tee=true/completions?tee=true", [], {}),
    ],
)
async def test_who_says_one_thing_gets_evidence(
    http: httpx.AsyncClient, path: str, headers: Headers, fields: Any
) -> None:
    path = f"{path}&nonce={A}" if "?" in path else f"{path}?nonce={A}"
    reply = await http.post(f"{ROOT}/{path}", headers=headers, json={**PLAIN, **fields})
    assert reply.status_code == 200, reply.text
    said = json.loads(reply.json()["attestation"]["raw"])
    assert (said["nonce"], said["nonce_by"]) == (A, "client")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("completions?tee=", []),
        ("completions&tee=", []),
        ("completions", [("tee", "")]),
        ("completions", [("x-tee", "")]),
        ("completions?nonce", []),
        ("completions?nonce=", []),
        ("completions", [("nonce", "")]),
        ("completions", [("x-nonce", "")]),
        ("v1&tee=true/completions", []),
        ("completions?0.tee=true", []),
        ("completions", [("0.tee", "true")]),
        ("completions", [("7.tee", "true")]),
        ("completions&tee=(~message@1.0&x=true/x)", []),
    ],
)
async def test_what_is_empty_or_elsewhere_is_refused(
    http: httpx.AsyncClient, dummy: Dummy, path: str, headers: Headers
) -> None:
    reply = await http.post(f"{ROOT}/{path}", headers=headers, json=PLAIN)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert dummy.calls == []


async def test_a_route_changes_nothing(http: httpx.AsyncClient, dummy: Dummy) -> None:
    for query in ("tee=true&tee=false", "2.tee=true&tee=false", f"nonce={A}&nonce={B}"):
        reply = await http.post(f"/v1/completions?{query}", json=PLAIN)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert dummy.calls == []
    assert "attestation" in (await http.post("/v1/completions?2.tee=true", json=PLAIN)).json()


INNER = "~inference@1.0/completions&method=POST"
TEXT = "&body=%7B%22prompt%22:%22x%22%7D"
ASKS = "&body=%7B%22prompt%22:%22x%22,%22tee%22:true%7D"


@pytest.mark.parametrize(
    "path",
    [
        f"/({INNER}&tee=true{TEXT})/body",
        f"/({INNER}{ASKS})/body",
        f"/({INNER}&tee=true&body=(~message@1.0{TEXT}/body))/body",
        f"/~message@1.0&x=({INNER}&tee=true{TEXT})/x",
        f"/~message@1.0/({INNER}&tee=true{TEXT})",
        f"/~({INNER}&tee=true{TEXT})/x",
        "/~inference@1.0/completions&tee=true?" + TEXT[1:],
        "/~inference@1.0/completions?1." + ASKS[1:],
    ],
)
async def test_evidence_is_about_what_was_posted_where_the_path_ends(
    http: httpx.AsyncClient, dummy: Dummy, path: str
) -> None:
    reply = await http.post(path)
    assert reply.status_code == 400, reply.text
    assert "'tee'" in reply.text
    assert dummy.calls == []


@pytest.mark.parametrize(
    "private",
    [
        {"sub-path": True},
        {"target": "/~inference@1.0/completions&body=(a/b)"},
        {"target": "/~inference@1.0/completions?1.body=x"},
        {"target": "/", "request-headers": {"host", "1.body+resolve"}},
    ],
)
def test_bytes_that_a_sub_path_gave_are_not_what_was_posted(private: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="question has to be the body"):
        take({"tee": True}, {"body": b"{}", "priv": private})
    assert take({}, {"body": b"{}", "priv": private}) == ("", None)


@pytest.mark.parametrize("name", ["Tee", "TEE", "tEe", "Nonce", "NONCE"])
async def test_a_field_in_another_case_is_refused(
    http: httpx.AsyncClient, dummy: Dummy, name: str
) -> None:
    value = A if name.lower() == "nonce" else True
    reply = await http.post(f"{ROOT}/completions", json={**PLAIN, name: value})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("unknown_parameter", name.lower())
    assert f"'{name}'" in error["message"]
    assert dummy.calls == []


def test_a_call_from_inside_the_node_has_no_target() -> None:
    assert take({}, {"body": b"{}", "tee": "true", "x-nonce": A}) == ("full", A)
    with pytest.raises(BadRequest):
        take({}, {"body": b"{}", "nonce": B, "x-nonce": A})


def test_target_and_headers_of_a_sub_path_are_anothers() -> None:
    private = {"target": f"/a&nonce={A}&tee=7", "request-headers": {"tee"}, "sub-path": True}
    assert take({}, {"nonce": B, "priv": private}) == ("", B)


PIECES = st.sampled_from(
    [
        "&tee=",
        "&1.tee=",
        "&tee+binary=",
        "&tee",
        "?tee=",
        "?1.tee%2Bbinary=",
        "tee",
        "TEE",
        "t%65e",
        "x",
        "=",
        "=",
        "true",
        "&",
        "&",
        "/",
        "?",
        "+",
        "%2B",
        "%20",
        "binary",
        "1.",
        "0.",
        ".",
        "(",
        ")",
        "%28",
        "%3D",
        "%26",
        "a",
        "~message@1.0",
    ]
)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=16))
def test_pairs_are_read_as_the_resolver_reads_them(pieces: list[str]) -> None:
    """Where the resolver gives the last part a `tee`, it is one that is read here."""
    target = f"/~message@1.0/a{''.join(pieces)}"
    try:
        last = parse(target)[-1]
    except BadRequest:
        return
    if "tee" not in last.message:
        return
    values = [value for key, value in written(target) if key == "tee"]
    value = last.message["tee"]
    if isinstance(value, Resolve):
        value = "()"
    # Of other text in parentheses nothing is left.
    assert value in values if "(" not in str(value)[1:] else values
