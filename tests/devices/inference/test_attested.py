"""Attested answers of a running node, with simulated GPUs, as a verifier sees them."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from devices.inference import Inference
from devices.sev_gpu import SevGpu
from devices.sev_gpu.simulated import SimulatedCollector
from hyperbeam.node import Node
from hyperbeam.verify import Verdict, verify
from hyperbeam.verify.checks import Malformed
from tests.hyperbeam.conftest import StartNode

from .dummy import Call, Dummy, piece, say
from .room import no_evidence

NONCE = "c0ffee" + "12" * 29
CHAT = {"messages": [{"role": "user", "content": "Where?"}], "nonce": NONCE, "tee": True}
POLICY = {"ocsp": "skip", "rims": "allow-missing"}
"""All that simulated evidence can meet but for its root."""

Start = Callable[..., Awaitable[Node]]


@pytest.fixture
async def dummy() -> AsyncIterator[Dummy]:
    async with Dummy(say("In ", "Röm")) as dummy:
        yield dummy


@pytest.fixture
def start(start_node: StartNode, dummy: Dummy) -> Start:
    """Starts a node that simulates GPUs, and runs the dummy as its own backend."""

    async def start(**flags: Any) -> Node:
        settings = {"sev_gpu__backend": "simulated", "sev_gpu__policy": POLICY, **flags}
        node = await start_node(**settings)
        device = node.device("inference@1.0")
        assert isinstance(device, Inference)
        device.backend = dummy
        await device.start()
        return node

    return start


@pytest.fixture
async def node(start: Start) -> Node:
    return await start()


def client(node: Node) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}", timeout=30)


def collector(node: Node) -> SimulatedCollector:
    device = node.device("sev_gpu@1.0")
    assert isinstance(device, SevGpu)
    found = device._choice.collectors["simulated"]
    assert isinstance(found, SimulatedCollector)
    return found


def check(node: Node, document: bytes, **given: Any) -> Verdict:
    """As a verifier does that has the nonce, the key set and the made-up root's fingerprint."""
    return verify(
        document,
        **{
            "nonce": NONCE,
            "policy": POLICY,
            "keyset": node.keys.current.message,
            "trust": f"simulated:{collector(node).simulated_root}",
            **given,
        },
    )


async def post(
    node: Node, path: str, fields: Any, **arguments: Any
) -> tuple[bytes, httpx.Response]:
    """The request's bytes, and the reply."""
    sent = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    async with client(node) as http:
        return sent, await http.post(path, content=sent, **arguments)


@pytest.mark.parametrize("tee", [True, "digest", "batch"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_attested_answer_verifies(node: Node, tee: Any, stream: bool) -> None:
    fields = {**CHAT, "tee": tee, "stream": stream}
    sent, reply = await post(node, "/~inference@1.0/chat/completions", fields)
    assert reply.status_code == 200
    assert reply.headers["cache-control"] == "no-store"
    assert "content-encoding" not in reply.headers
    async with client(node) as http:
        receipt = await http.get(f"/~inference@1.0/receipt/{reply.headers['x-receipt-id']}")
    verdict = check(node, reply.content, request=sent, receipt=receipt.content)
    assert (verdict.reason, verdict.simulated_pass, verdict.verified) == ("simulated", True, False)
    assert verdict.freshness == "fresh"
    for name in ("receipt-agrees", "receipt-reply", "answer", "request", "fresh"):
        assert [one.result for one in verdict.checks if one.name == name] == ["pass"], name


@pytest.mark.parametrize("with_receipt", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_changed_byte_anywhere_fails(node: Node, stream: bool, with_receipt: bool) -> None:
    """What the node makes of the evidence is signed by the receipt alone."""
    sent, reply = await post(node, "/v1/chat/completions", {**CHAT, "stream": stream})
    saved = reply.content
    given: dict[str, Any] = {"request": sent}
    if with_receipt:
        given["receipt"] = await node.receipts.get(reply.headers["x-receipt-id"])
    assert check(node, saved, **given).simulated_pass
    evidences, claims = saved.index(b'"evidences"'), saved.index(b'"claims"')
    verified = saved.index(b'"verified"', claims)
    places = [*range(0, evidences, 29), *range(evidences, claims, 997)]
    places += range(claims + 10, verified, 97) if with_receipt else ()
    places += range(verified, len(saved), 3)
    held = []
    for place in places:
        changed = bytearray(saved)
        changed[place] ^= 1
        try:
            verdict = check(node, bytes(changed), **given)
        except Malformed:
            continue
        if verdict.simulated_pass or verdict.verified:
            held.append((place, saved[max(0, place - 20) : place + 20]))
    assert held == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace(b"In ", b"Out", 1), "answer-digest"),
        (lambda text: text.replace(b"R\\u00f6m", b"Rom", 1), "answer-length"),
        (lambda text: text.replace(b"\n\ndata: [DONE]", b"", 1), "stream-no-done"),
        (lambda text: b": keep-alive\n\n" + text, "answer-length"),
        (
            lambda text: text.replace(b"data: [DONE]", b'data: {"choices": []}\n\ndata: [DONE]'),
            "stream-chunk-after-attestation",
        ),
    ],
)
async def test_a_changed_stream_says_what_is_wrong(node: Node, change: Any, reason: str) -> None:
    _, reply = await post(node, "/v1/chat/completions", {**CHAT, "stream": True})
    verdict = check(node, change(reply.content))
    assert not verdict.simulated_pass
    assert reason in {one.reason for one in verdict.checks}


async def test_the_request_counts_too(node: Node) -> None:
    sent, reply = await post(node, "/v1/chat/completions", CHAT)
    assert check(node, reply.content, request=sent + b" ").reason == "request-mismatch"
    assert check(node, reply.content, nonce="ab" * 32).reason == "nonce-mismatch"


async def test_clients_in_the_wild(node: Node) -> None:
    """They take no model, read raw, nonce and token, and post the token on."""
    fields = {"prompt": " ", "max_tokens": 1}
    _, reply = await post(node, "/~inference@1.0/completions?tee=true", fields)
    assert reply.status_code == 200
    answer = reply.json()
    assert answer["resolved_model"] == answer["model"]
    attestation = answer["attestation"]
    assert hashlib.sha256(attestation["raw"].encode()).hexdigest() == attestation["nonce"]
    assert json.loads(base64.b64decode(attestation["token"])) == attestation["evidences"]
    async with client(node) as http:
        token = await http.post("/~sev_gpu@1.0/verify", content=attestation["token"])
        whole = await http.post("/~sev_gpu@1.0/verify", json=attestation)
    assert (token.text, whole.text) == ("false", "false")
    assert whole.headers["x-verify-reason"] == "simulated"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gpu_that_dies_in_the_middle(
    node: Node, dummy: Dummy, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(nonce: bytes) -> Any:
        raise no_evidence("GPU 0 fell off the bus")

    async def script(call: Call) -> None:
        monkeypatch.setattr(collector(node), "collect", dies)
        await say("In ", "Rom")(call)

    dummy.script = script
    if not stream:
        _, reply = await post(node, "/v1/chat/completions", CHAT)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "attestation_unavailable"
        assert "choices" not in reply.json()
        assert reply.headers["x-receipt-id"]
        return
    received = b""
    async with client(node) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            async with http.stream(
                "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
            ) as reply:
                async for data in reply.aiter_bytes():
                    received += data
        receipt = await http.get(f"/~inference@1.0/receipt/{reply.headers['x-receipt-id']}")
    assert b"fell off the bus" in received
    assert b"[DONE]" not in received
    assert b"attestation_unavailable" in received
    assert check(node, received).verified is False
    response = receipt.json()["response"]
    assert (response["end"], response["sha256"]) == ("error", hashlib.sha256(received).hexdigest())


async def test_without_a_gpu_there_is_no_answer(start: Start, dummy: Dummy) -> None:
    node = await start(sev_gpu__backend="none")
    for fields in (CHAT, {**CHAT, "stream": True}):
        _, reply = await post(node, "/v1/chat/completions", fields)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "attestation_unavailable"
    assert dummy.calls == []


async def test_a_hundred_in_a_batch_share_reports(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start(sev_gpu__simulated_delay_ms=500)
    made: list[bytes] = []
    simulated = collector(node)
    collect = simulated.collect

    async def counted(nonce: bytes) -> Any:
        made.append(nonce)
        return await collect(nonce)

    monkeypatch.setattr(simulated, "collect", counted)
    sent = json.dumps({**CHAT, "tee": "batch"}).encode()
    async with client(node) as http:
        replies = await asyncio.gather(
            *(http.post("/v1/chat/completions", content=sent) for _ in range(100))
        )
    assert len(made) < 6
    batches = [reply.json()["attestation"]["batch"] for reply in replies]
    assert max(batch["size"] for batch in batches) > 20
    for reply in replies[::12]:
        assert check(node, reply.content, request=sent).simulated_pass


async def test_a_client_that_leaves_frees_its_place(start: Start) -> None:
    node = await start(sev_gpu__simulated_delay_ms=100)
    device = node.device("sev_gpu@1.0")
    assert isinstance(device, SevGpu)
    async with client(node) as http:
        asked = [
            asyncio.create_task(http.post("/v1/chat/completions", json=CHAT)) for _ in range(30)
        ]
        async with asyncio.timeout(10):
            while device._queue.waiting < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for task in asked:
            task.cancel()
        async with asyncio.timeout(10):
            while device._queue.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_keep_alive_comments_do_not_enter_an_attested_stream(
    start: Start, dummy: Dummy
) -> None:
    node = await start(http__keep_alive_comment=0.01)
    more = asyncio.Event()

    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        await more.wait()
        await call.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        await call.done()

    dummy.script = script

    async def ask(tee: bool) -> bytes:
        return (await post(node, "/v1/chat/completions", {**CHAT, "tee": tee, "stream": True}))[
            1
        ].content

    plain, attested = asyncio.create_task(ask(False)), asyncio.create_task(ask(True))
    async with asyncio.timeout(10):
        while len(dummy.calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    more.set()
    assert b": keep-alive" in await plain
    assert b": keep-alive" not in await attested
    assert check(node, await attested).simulated_pass


async def test_a_replay_of_an_attested_answer(node: Node) -> None:
    _, reply = await post(node, "/v1/chat/completions", CHAT)
    posted = {"attestation": reply.json()["attestation"], "answer": reply.text}
    _, replay = await post(node, "/~inference@1.0/replay", posted)
    assert replay.status_code == 200
    assert (replay.json()["match"], replay.json()["signature"]) == (True, "good")
    assert "attestation" not in replay.json()


async def test_a_stopping_node_says_that_it_cut(node: Node, dummy: Dummy) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        await call.event(piece("a"))
        await asyncio.Event().wait()

    dummy.script = script
    async with client(node) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            async with http.stream(
                "POST", "/v1/chat/completions", json={**CHAT, "tee": False, "stream": True}
            ) as reply:
                async for _ in reply.aiter_bytes():
                    await node.server.drain(0)
    receipt = await node.receipts.get(reply.headers["x-receipt-id"])
    assert receipt is not None
    assert receipt["response"]["end"] == "cut"


async def test_models_and_inference_opts_say_which_model_it_is(node: Node, dummy: Dummy) -> None:
    async with client(node) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        opts = (await http.get("/~inference@1.0/inference_opts")).json()
        devices = await http.get("/~meta@1.0/devices", headers={"accept": "application/json"})
    identity = dummy.identity().as_dict()
    assert {name: model[name] for name in ("sha256", "size", "by")} == {
        name: identity[name] for name in ("sha256", "size", "by")
    }
    assert opts["model"] == identity
    assert devices.json()["devices"]["inference@1.0"]["inference_opts"] == opts


async def test_tee_in_a_part_of_the_path(node: Node, dummy: Dummy) -> None:
    fields = {"prompt": "x"}
    _, reply = await post(node, "/~inference@1.0/completions&tee=true", fields)
    assert "attestation" in reply.json()
    dummy.calls.clear()
    for path in (
        "/~inference@1.0&tee=true/completions",
        "/~inference@1.0/v1&tee=true/completions",
    ):
        _, reply = await post(node, path, fields)
        assert reply.status_code == 400, path
    _, reply = await post(node, "/~inference@1.0/completions/attestation?tee=true", fields)
    assert reply.status_code == 404
    async with client(node) as http:
        inner = "~inference@1.0/completions&method=POST&tee=true&body=%7B%22prompt%22:%22x%22%7D"
        reply = await http.get(f"/({inner})/body")
    assert reply.status_code == 400
    assert dummy.calls == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/~inference@1.0/v1/chat/completions?a=1%2F",
        "/~inference@1.0/chat/completions",
    ],
)
async def test_the_statement_has_the_path_as_it_was_sent(node: Node, path: str) -> None:
    async with client(node) as http:
        answer = (await http.post(path, json=CHAT)).json()
    assert json.loads(answer["attestation"]["raw"])["request"]["path"] == path


@pytest.mark.parametrize("nonce", [NONCE, None])
async def test_a_seed_of_the_nodes_is_made_again_by_the_verifier(
    node: Node, nonce: str | None
) -> None:
    body = json.dumps({**CHAT, "nonce": nonce}).encode()
    async with client(node) as http:
        reply = await http.post("/v1/chat/completions", content=body)
        receipt = await http.get(f"/~inference@1.0/receipt/{reply.headers['x-receipt-id']}")
    for document in (reply.content, receipt.content):
        verdict = check(node, document, request=body, nonce=nonce)
        assert [c.result for c in verdict.checks if c.name == "seed"] == ["pass"]
    said = receipt.json()
    other = verify({**said, "seed": said["seed"] + 1}, request=body)
    assert "seed-mismatch" in [c.reason for c in other.checks]
