import asyncio
import base64
import copy
import json
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.sev_gpu import asked
from devices.sev_gpu.checking import MAX_WAITING
from devices.sev_gpu.policies import tightened
from hyperbeam import BadRequest, HyperbeamError
from hyperbeam.node import Node
from hyperbeam.verify import Policy
from hyperbeam.verify.answer import splice, stream_event
from tests.hyperbeam.conftest import StartNode
from tests.hyperbeam.verify.documents import ANSWER, MODEL, Signer, of

from .conftest import (
    FIXTURES,
    GENEROUS,
    SAMPLE,
    SAMPLE_CLOCK,
    SAMPLE_NONCE,
    attestation,
    client,
    device,
    dump,
    statement,
)

NONCE = "ab" * 32
Change = Callable[[dict[str, Any]], None]


def sample() -> list[dict[str, str]]:
    """The genuine evidence of an H100."""
    report = bytes.fromhex((SAMPLE / "attestationReport.txt").read_text())
    return [
        {
            "arch": "HOPPER",
            "nonce": SAMPLE_NONCE,
            "evidence": base64.b64encode(report).decode(),
            "certificate": base64.b64encode((SAMPLE / "gpuAkCertChain.txt").read_bytes()).decode(),
        }
    ]


def token(evidences: Any) -> str:
    return base64.b64encode(json.dumps(evidences).encode()).decode()


@pytest.fixture
async def of_2024(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose operator takes the sample for what it is, in tests."""
    monkeypatch.setenv("HYPERBEAM_TESTS", "1")
    policy = {"rim_clock": SAMPLE_CLOCK, "ocsp": "skip"}
    rims = str(FIXTURES / "rims")
    settings_ = {"sev_gpu__policy": policy, "sev_gpu__rims": rims}
    return await start_node(sev_gpu__backend="none", **settings_)


async def post(node: Node, value: Any, **params: str) -> httpx.Response:
    content = value if isinstance(value, bytes) else dump(value)
    async with client(node) as http:
        return await http.post("/verify", content=content, params=params)


async def whole(node: Node, value: Any, **params: str) -> dict[str, Any]:
    async with client(node, accept="application/json") as http:
        content = value if isinstance(value, bytes) else dump(value)
        reply = await http.post("/verify", content=content, params=params)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    found: dict[str, Any] = reply.json()
    return found


async def test_genuine_evidence_is_true_in_every_shape(of_2024: Node) -> None:
    evidences = sample()
    bodies: list[tuple[Any, dict[str, str]]] = [
        (evidences, {"nonce": SAMPLE_NONCE}),
        ({"evidences": evidences, "nonce": SAMPLE_NONCE.upper()}, {}),
        ({"token": token(evidences), "nonce": SAMPLE_NONCE}, {}),
        ({"token": token(evidences), "evidences": evidences}, {"nonce": SAMPLE_NONCE}),
        (token(evidences), {"nonce": SAMPLE_NONCE}),
        (token(evidences).encode() + b"\n", {"nonce": SAMPLE_NONCE}),
        ({"evidences": evidences, "policy": {"gpu_count": 1}}, {"nonce": SAMPLE_NONCE}),
    ]
    for body, params in bodies:
        reply = await post(of_2024, body, **params)
        assert (reply.status_code, reply.text) == (200, "true"), reply.headers
        assert reply.headers["content-type"] == "text/plain"
        assert reply.headers["cache-control"] == "no-store"
        assert "x-verify-reason" not in reply.headers


async def test_a_get_may_have_a_body_and_the_nonce_a_header(of_2024: Node) -> None:
    async with client(of_2024, nonce=SAMPLE_NONCE) as http:
        reply = await http.request("GET", "/verify", content=dump(sample()))
    assert reply.text == "true"


async def test_the_whole_verdict(of_2024: Node) -> None:
    verdict = await whole(of_2024, sample(), nonce=SAMPLE_NONCE)
    assert verdict["verified"] is True and verdict["trust"] == "nvidia"
    assert verdict["compared"] == 33 and verdict["freshness"] == "fresh"
    assert verdict["rims"] == "expired" and verdict["revocation"] == "unchecked"
    assert verdict["policy"]["rim_clock"] == SAMPLE_CLOCK and len(verdict["policy_sha256"]) == 64
    assert verdict["gpus"][0]["measres"] == "success"
    assert {check["name"] for check in verdict["checks"]} > {"gpu", "gpu-chain", "gpu-nonce"}


async def test_evidence_whose_nonce_nobody_vouches_for(of_2024: Node) -> None:
    evidences = sample()
    for body in (evidences, token(evidences), {"token": token(evidences)}):
        reply = await post(of_2024, body)
        assert (reply.status_code, reply.text) == (200, "false")
        assert reply.headers["x-verify-reason"] == "nonce-not-given"
    for body in (evidences, token(evidences), {"token": token(evidences), "evidences": evidences}):
        reply = await post(of_2024, body, nonce=NONCE)
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "nonce-mismatch")
    other = [{**evidences[0], "nonce": NONCE}]
    for mine in (NONCE, SAMPLE_NONCE):
        reply = await post(of_2024, other, nonce=mine)
        assert reply.text == "false" and reply.headers["x-verify-reason"]


async def test_nothing_is_no_evidence(of_2024: Node) -> None:
    for body in (b"", b"  \n", b"[]", dump({"evidences": []}), dump({"evidences": [1]})):
        reply = await post(of_2024, body, nonce=NONCE)
        assert (reply.status_code, reply.text) == (200, "false"), body
        assert reply.headers["x-verify-reason"].startswith("evidence-"), body
    reply = await post(of_2024, {"token": "!"}, nonce=NONCE)
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "token-malformed")


async def test_published_nonces_are_for_tests(
    of_2024: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYPERBEAM_TESTS")
    reply = await post(of_2024, sample(), nonce=SAMPLE_NONCE)
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "nonce-published")


async def test_a_policy_comes_from_the_body_and_demands_more(
    of_2024: Node, asked_outside: list[str]
) -> None:
    evidences, nonce = sample(), {"nonce": SAMPLE_NONCE}
    for policy, reason in (
        ({"min_driver": "550.00"}, "driver-too-old"),
        ({"gpu_count": 2}, "gpu-count"),
        ({"ueids": ["1"]}, "ueid-not-allowed"),
        ({"ocsp": "cached"}, "ocsp"),
        ({"require_cpu": True}, "not-checked"),
        ({"models": ["ab" * 32]}, "not-checked"),
        ({"nodes": ["A" * 43]}, "not-checked"),
    ):
        reply = await post(of_2024, {"evidences": evidences, "policy": policy}, **nonce)
        assert reply.text == "false", policy
        assert reason in reply.headers["x-verify-reason"], policy
        if "ocsp" in policy:
            assert {urlsplit(url).hostname for url in asked_outside} == {"ocsp.ndis.nvidia.com"}
            asked_outside.clear()
    for looser in (
        {"rims": "allow-missing"},
        {"ocsp": "optional"},
        {"rim_clock": 1},
        {"trust": "simulated:" + "ab" * 32},
        {"unknown": 1},
        [],
        "none",
    ):
        reply = await post(of_2024, {"evidences": evidences, "policy": looser}, **nonce)
        assert reply.status_code == 400 and "true" not in reply.text, looser


async def test_a_policy_in_the_query_or_a_header_counts_for_nothing(of_2024: Node) -> None:
    text = json.dumps({"gpu_count": 2})
    async with client(of_2024, policy=text, **{"x-policy": text}) as http:
        params = {"nonce": SAMPLE_NONCE, "policy": text, "policy+map": "gpu_count=2"}
        reply = await http.post("/verify", content=dump(sample()), params=params)
    assert reply.text == "true"


async def test_two_different_nonces_are_refused(of_2024: Node) -> None:
    body = {"evidences": sample(), "nonce": SAMPLE_NONCE}
    assert (await post(of_2024, body, nonce=NONCE)).status_code == 400
    assert (await post(of_2024, sample(), nonce="ab")).status_code == 400
    assert (await post(of_2024, {**body, "nonce": 7})).status_code == 400


async def test_an_attestation_gets_the_full_check(node: Node) -> None:
    for mode in ("each", "batch"):
        posted = await attestation(node, mode)
        verdict = await whole(node, posted)
        # Everything holds but for the root, which is nobody's.
        assert verdict["verified"] is False and verdict["reason"] == "simulated"
        assert verdict["trust"] == "simulated" and verdict["kind"] == "attestation"
        assert verdict["measurements"] == "success" and verdict["revocation"] == "good"
        results = {check["name"]: check["result"] for check in verdict["checks"]}
        assert results["statement-signature"] == results["nonce"] == "pass"
        assert "fail" not in {r for name, r in results.items() if name != "gpu-trust"}
        reply = await post(node, posted)
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "simulated")


async def test_nvidia_is_not_asked_about_what_another_root_signed(
    node: Node, start_node: StartNode
) -> None:
    posted = {**await attestation(node), "keyset": node.keys.current.message}
    trust = {"trust": f"simulated:{device(node)._checker.simulated}"}
    verifier = await start_node(sev_gpu__backend="none", sev_gpu__policy=trust)
    verdict = await whole(verifier, posted)
    assert (verdict["trust"], verdict["reason"]) == ("simulated", "driver-rim-missing")
    said = [c["detail"] for c in verdict["checks"] if c.get("reason") == "driver-rim-missing"]
    assert "was not asked" in said[0] and "NVIDIA's root" in said[0]


async def test_what_clients_in_the_wild_post(node: Node) -> None:
    posted = await attestation(node)
    for body in (
        {"token": posted["token"]},
        posted["evidences"],
        posted["token"],
        {"evidences": posted["evidences"]},
    ):
        reply = await post(node, body)
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "nonce-not-given")


async def test_freshness_is_for_the_nonce_that_the_caller_chose(node: Node) -> None:
    mine = await attestation(node, nonce=NONCE)
    assert (await whole(node, mine))["freshness"] == "unknown"
    assert (await whole(node, mine, nonce=NONCE))["freshness"] == "fresh"
    other = await whole(node, mine, nonce="cd" * 32)
    assert (other["freshness"], other["reason"]) == ("unknown", "nonce-mismatch")
    nodes_own = await attestation(node, nonce=NONCE, nonce_by="node")
    theirs = await whole(node, nodes_own, nonce=NONCE)
    assert (theirs["freshness"], theirs["reason"]) == ("unknown", "nonce-by-node")


async def test_parts_that_contradict_each_other_are_refused(node: Node) -> None:
    good = await attestation(node)
    batched = await attestation(node, "batch")
    other = await attestation(node, salt="56" * 32)
    spare = copy.deepcopy(other["evidences"])
    spare[0]["nonce"] = good["nonce"]

    def change(**changes: Any) -> dict[str, Any]:
        return {**good, **changes}

    conflicts = [
        change(raw=other["raw"]),
        change(raw=good["raw"].replace("héllo", "hallo")),
        change(raw=good["raw"] + " "),
        change(nonce=other["nonce"]),
        change(token=other["token"]),
        change(evidences=other["evidences"]),
        change(evidences=other["evidences"], token=other["token"]),
        change(evidences=spare, token=token(spare)),
        change(batch=batched["batch"]),
        {**batched, "batch": None},
        {**batched, "batch": {**batched["batch"], "size": 2}},
        {**batched, "raw": other["raw"]},
        {**good, "challenge": "{}"},
        {"evidences": good["evidences"], "nonce": good["nonce"], "batch": batched["batch"]},
    ]
    for body in conflicts:
        async with client(node, accept="application/json") as http:
            reply = await http.post("/verify", content=dump(body))
        assert reply.status_code == 400, body
        assert reply.json()["error"] == "evidence-conflict", reply.text


async def test_a_statement_that_the_receipt_key_did_not_sign(node: Node) -> None:
    good = await attestation(node)
    value = good["signature"]["value"]
    forged = {"key_id": good["signature"]["key_id"], "value": "00" * 64}
    flipped = {**forged, "value": value[:-1] + ("0" if value[-1] != "0" else "1")}
    as_receipt = node.keys.current.sign_receipt(good["raw"].encode())
    for signature, reason in (
        (forged, "signature-invalid"),
        (flipped, "signature-invalid"),
        ({"key_id": as_receipt[0], "value": as_receipt[1]}, "signature-invalid"),
        ({"key_id": node.keys.current.log_key_id, "value": value}, "key-unknown"),
        (None, "attestation-malformed"),
        ({}, "attestation-malformed"),
    ):
        reply = await post(node, {**good, "signature": signature})
        assert (reply.text, reply.headers["x-verify-reason"]) == ("false", reason)


async def test_key_sets_of_other_nodes(node: Node, start_node: StartNode) -> None:
    posted = await attestation(node)
    stranger = await start_node(sev_gpu__backend="none")
    assert (await whole(stranger, posted))["reason"] == "root-not-trusted"
    unknown = [c for c in (await whole(stranger, posted))["checks"] if c["name"] == "keyset"]
    assert unknown[0]["reason"] == "keyset-unreachable"
    given = {**posted, "keyset": node.keys.current.message}
    names = {c["name"]: c["result"] for c in (await whole(stranger, given))["checks"]}
    assert names["keyset"] == names["statement-signature"] == "pass"
    changed = {**node.keys.current.message, "config": "00" * 32}
    assert (await post(stranger, {**posted, "keyset": changed})).status_code == 400
    other = {**posted, "keyset": Signer().keyset()}
    assert "keyset-" in str([c.get("reason") for c in (await whole(stranger, other))["checks"]])


async def test_the_reply_of_generate_needs_the_callers_nonce(node: Node) -> None:
    async with client(node) as http:
        answer = (await http.get("/generate", params={"nonce": NONCE})).json()
    assert (await whole(node, answer, nonce=NONCE))["reason"] == "simulated"
    assert (await whole(node, answer, nonce=NONCE))["freshness"] == "fresh"
    assert (await whole(node, answer))["reason"] == "nonce-not-given"
    assert (await whole(node, answer, nonce=answer["nonce"]))["reason"] == "nonce-not-given"
    assert (await post(node, {**answer, "nonce": NONCE})).status_code == 400
    forged = answer["challenge"].replace("ab", "cd")
    assert (await post(node, {**answer, "challenge": forged})).status_code == 400


async def test_no_setting_makes_simulated_evidence_true(start_node: StartNode) -> None:
    node = await start_node(sev_gpu__backend="simulated", sev_gpu__policy=GENEROUS)
    fingerprint = device(node)._checker.simulated
    trusting = await start_node(
        sev_gpu__backend="none",
        sev_gpu__policy={**GENEROUS, "trust": f"simulated:{fingerprint}"},
    )
    posted = await attestation(node)
    posted["keyset"] = node.keys.current.message
    evidence = {"evidences": posted["evidences"], "nonce": posted["nonce"]}
    for where in (node, trusting):
        for body in (posted, evidence):
            assert (await post(where, body)).text == "false"
            verdict = await whole(where, body)
            assert (verdict["verified"], verdict["trust"]) == (False, "simulated")
        policy = {"trust": f"simulated:{fingerprint}"}
        reply = await post(where, {**evidence, "policy": policy})
        assert reply.text != "true"


async def test_what_is_none_of_the_shapes(node: Node) -> None:
    for body in (
        b"{", b"nan", b"true", b"12", b"null", b'{"a":1,"a":2}', b"\xff", b"{}", b'{"nonce":null}',
        b'{"raw":7,"evidences":[]}', b'{"raw":"x"}', b'{"challenge":"x"}', b'"\\ud800"',
        b"[" * 10_000,
    ):  # fmt: skip
        reply = await post(node, body)
        assert reply.status_code == 400, (body, reply.text)
        assert re.fullmatch("[a-z]+(-[a-z]+)+", reply.headers["x-verify-reason"]), body
    for nonce in ("ab", "xy" * 32):
        reply = await post(node, [], nonce=nonce)
        assert (reply.status_code, reply.headers["x-verify-reason"]) == (400, "nonce-malformed")


async def test_a_whole_answer_gets_the_full_check(node: Node) -> None:
    made = await attestation(node, nonce=NONCE)
    answer = splice(ANSWER, MODEL["name"], made)
    verdict = await whole(node, answer, nonce=NONCE)
    assert (verdict["kind"], verdict["freshness"]) == ("answer", "fresh")
    assert (verdict["trust"], verdict["reason"]) == ("simulated", "simulated")
    results = {check["name"]: check["result"] for check in verdict["checks"]}
    assert results["answer"] == results["reply"] == results["statement-signature"] == "pass"
    reply = await post(node, answer, nonce=NONCE)
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "simulated")
    changed = await whole(node, answer.replace(b"chatcmpl-1", b"chatcmpl-2", 1), nonce=NONCE)
    assert "answer" in {c["name"] for c in changed["checks"] if c["result"] == "fail"}
    again = await post(node, json.dumps(json.loads(answer), indent=1).encode(), nonce=NONCE)
    assert (again.text, again.headers["x-verify-reason"]) == ("false", "answer-reformatted")


async def test_an_attestation_in_an_object_gets_the_full_check(node: Node) -> None:
    made = await attestation(node, nonce=NONCE)
    keyset = node.keys.current.message
    for extra in ({}, {"keyset": keyset}, {"policy": {"gpu_count": 1}, "keyset": keyset}):
        verdict = await whole(node, {"attestation": made, **extra}, nonce=NONCE)
        assert (verdict["kind"], verdict["reason"]) == ("attestation", "simulated")
    conflict = await post(node, {"attestation": {**made, "nonce": "cd" * 32}})
    assert conflict.status_code == 400
    assert conflict.headers["x-verify-reason"] == "evidence-conflict"
    for wrong in (None, [], "x", {}, {"evidences": made["evidences"]}):
        reply = await post(node, {"attestation": wrong})
        assert reply.status_code == 400 and "`attestation`" in reply.text
    answer = json.loads(splice(ANSWER, MODEL["name"], made))
    mixed = await post(node, {**answer, "keyset": keyset})
    assert mixed.status_code == 400 and "as it came" in mixed.text


async def test_a_saved_stream_gets_the_full_check(node: Node) -> None:
    chunk = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"choices":[]}\n\n'
    response = {"status": 200, "type": "text/event-stream", **of(chunk), "stream": True}
    response |= {"complete": True, "body": chunk.decode()}
    made = await attestation(node, response=response, nonce=NONCE)
    last = stream_event(json.loads(chunk[6:]), MODEL["name"], made)
    stream = chunk + last + b"data: [DONE]\n\n"
    verdict = await whole(node, stream, nonce=NONCE)
    assert (verdict["kind"], verdict["reason"]) == ("stream", "simulated")
    reply = await post(node, chunk + last, nonce=NONCE)
    assert (reply.text, reply.headers["x-verify-reason"]) == ("false", "stream-no-done")


async def test_sizes_are_bounded(node: Node) -> None:
    assert (await post(node, b"x" * (asked.MAX_BODY + 1))).status_code == 413
    many = await post(node, {"evidences": [{}] * 17}, nonce=NONCE)
    assert many.headers["x-verify-reason"] == "too-many-gpus"
    inner = base64.b64encode(b"[" * 3_000_000).decode()
    nested = await post(node, {"token": inner}, nonce=NONCE)
    assert nested.headers["x-verify-reason"] == "token-malformed"
    async with client(node) as http:
        assert (await http.put("/verify", content=b"[]")).status_code == 405


async def test_bodies_from_a_path(node: Node) -> None:
    async with client(node) as http:
        for query in ("body=[]", "body+list=1", "body+integer=7", "body+map=a=1", "body"):
            reply = await http.get(f"/verify?{query}")
            assert reply.status_code < 500, reply.text
        inside = await http.get("/verify&body=(/~meta@1.0/build)")
    assert inside.status_code < 500, inside.text


async def test_verifications_that_wait_are_bounded(node: Node) -> None:
    checker = device(node)._checker
    may_end = threading.Event()
    calls = [asyncio.create_task(checker.run(may_end.wait)) for _ in range(2 + MAX_WAITING)]
    await asyncio.sleep(0)
    async with client(node) as http:
        assert (await http.post("/verify", content=b"[]")).status_code == 503
        # The node's own checks, and with them its answers, do not wait for other people's.
        assert (await http.get("/generate", params={"nonce": NONCE})).status_code == 200
        calls[0].cancel()
        calls[-1].cancel()
        may_end.set()
        await asyncio.wait(calls)
        replies = await asyncio.gather(*(http.post("/verify", content=b"[]") for _ in range(20)))
    assert {reply.text for reply in replies} == {"false"}


def test_a_callers_policy_only_demands_more() -> None:
    own = Policy.parse({"ocsp": "cached", "models": ["ab" * 32, "cd" * 32]})
    assert tightened(own, {"ocsp": "require"}).gpu.ocsp == "require"
    assert tightened(own, {"models": ["ab" * 32]}).models == ("ab" * 32,)
    assert tightened(own, {}).models == own.models
    assert tightened(own, {"require_fresh": True}).require_fresh
    assert tightened(own, {"measurements": ["ab" * 48]}).cpu.measurements == ("ab" * 48,)
    assert tightened(Policy(require_cpu=True), {"require_cpu": False}).require_cpu
    for looser in (
        {"ocsp": "skip"},
        {"models": ["ef" * 32]},
        {"snp": {"debug": "allow"}},
        {"snp": 7},
        {"nodes": "all"},
    ):
        with pytest.raises(BadRequest):
            tightened(own, looser)
    listed = Policy.parse({"measurements": ["ab" * 48]})
    with pytest.raises(BadRequest):
        tightened(listed, {"measurements": ["cd" * 48]})
    with pytest.raises(BadRequest):
        tightened(listed, {"snp": {"measurements": ["cd" * 48]}})
    assert tightened(listed, {"require_cpu": True}).cpu.measurements == ("ab" * 48,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["raw", "challenge", "nonce", "batch", "evidences", "token", "policy", "keyset",
             "signature", "arch", "evidence", "certificate", "v", "cpu", "claims"]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=12,
)  # fmt: skip
PIECES = st.sampled_from([NONCE, "ab", "", 7, None, [], {}, "{}", token([]), token([{}])])
OBJECTS = st.dictionaries(
    st.sampled_from(["raw", "challenge", "nonce", "batch", "evidences", "token", "policy"]),
    PIECES | JSON,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200) | JSON.map(dump) | OBJECTS.map(dump), st.none() | st.just(NONCE))
def test_any_body_is_read_or_refused(body: bytes, nonce: str | None) -> None:
    try:
        asked.read(body, nonce)
    except HyperbeamError as error:
        assert error.status < 500


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
async def test_any_change_of_an_attestation_is_an_answer(node: Node, data: st.DataObject) -> None:
    posted: dict[str, Any] = copy.deepcopy(await kept(node))
    name = data.draw(st.sampled_from(sorted(posted)))
    posted[name] = data.draw(JSON | PIECES)
    body = dump(posted)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    found = await device(node)._checker.run(lambda: outcome(node, body))
    assert found in (200, 400, 413)


ATTESTATIONS: dict[str, dict[str, Any]] = {}


async def kept(node: Node) -> dict[str, Any]:
    name = node.keys.current.name
    if name not in ATTESTATIONS:
        ATTESTATIONS[name] = await attestation(node)
    return ATTESTATIONS[name]


def outcome(node: Node, body: bytes) -> int:
    try:
        found = device(node)._judge(body, None)
    except HyperbeamError as error:
        return error.status
    assert not found.verified and found.reason
    json.dumps(found.document)
    return 200


def test_statements_are_what_the_node_would_say(node: Node) -> None:
    assert json.loads(statement(node))["keyset"] == node.keys.current.name
