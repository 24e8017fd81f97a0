import asyncio
import base64
import hashlib
import json
from typing import Any

import httpx
import pytest

from devices.sev_gpu.collect import NO_RETRY, SOURCES, Choice, unavailable
from devices.sev_gpu.config import SevGpuConfig
from devices.sev_gpu.simulated import SimulatedCollector
from hyperbeam import BadRequest, ConfigError, HyperbeamError, Unavailable
from hyperbeam.node import Node
from hyperbeam.verify import batch, jcs
from hyperbeam.verify.challenge import challenge
from tests.hyperbeam.conftest import StartNode

from .conftest import (
    GENEROUS,
    SAMPLE,
    SAMPLE_CLOCK,
    SAMPLE_NONCE,
    ask,
    attestation,
    client,
    device,
    dump,
    statement,
)

NONCE = "ab" * 32


async def test_a_remote_caller_gets_a_challenge_signed(node: Node) -> None:
    async with client(node) as http:
        reply = await http.get("/generate", params={"nonce": NONCE.upper()})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    answer = reply.json()
    raw, hashed = challenge(node.keys.current.name, NONCE)
    assert (answer["challenge"], answer["nonce"]) == (raw, hashed)
    assert answer["keyset"] == node.keys.current.name
    assert answer["backend"] == "simulated" and answer["verified"] is False
    assert answer["cpu"] is None
    assert json.loads(base64.b64decode(answer["token"])) == answer["evidences"]
    report = base64.b64decode(answer["evidences"][0]["evidence"])
    assert report[4:36].hex() == hashed
    assert answer["claims"][0]["eat_nonce"] == hashed


async def test_a_nonce_that_is_none(node: Node) -> None:
    async with client(node) as http:
        for nonce in ("", "ab" * 31, "ab" * 33, "xy" * 32, "0x" + "ab" * 31):
            for reply in (
                await http.get("/generate", params={"nonce": nonce}),
                await http.post("/generate", json={"nonce": nonce}),
                await http.post("/generate", json={"nonce": [nonce]}),
            ):
                assert reply.status_code == 400
                assert "64 hexadecimal characters" in reply.text


async def test_there_is_no_default_nonce(node: Node) -> None:
    async with client(node) as http:
        for reply in (
            await http.get("/generate"),
            await http.post("/generate", json={}),
            await http.post("/generate", content=b"[1]"),
            await http.post("/generate", content=b"{"),
            await http.get("/generate", params={"nonce": NONCE, "1.nonce": "cd" * 32}),
            await http.post("/generate", json={"nonce": NONCE}, params={"nonce": "cd" * 32}),
        ):
            assert reply.status_code == 400, reply.text
        assert (await http.delete("/generate", params={"nonce": NONCE})).status_code == 405
        large = await http.post("/generate", content=b" " * 70_000 + b"{}")
        assert large.status_code == 413


async def test_a_hash_of_a_forged_statement_is_not_what_is_signed(node: Node) -> None:
    raw = statement(node)
    wanted = hashlib.sha256(raw.encode()).hexdigest()
    async with client(node) as http:
        answer = (await http.get("/generate", params={"nonce": wanted})).json()
    assert answer["nonce"] != wanted
    assert wanted not in {entry["nonce"] for entry in answer["evidences"]}


FORGED = json.dumps({"attest": {"raw": "{}", "mode": "each", "client": "x"}})


def forgeries() -> list[tuple[str, dict[str, Any]]]:
    """(path, request) of every way in which a caller could try to be a device of the node."""
    body = json.dumps({"priv": {"attest": {"nonce": NONCE}}, "attest": {"nonce": NONCE}})
    map_ = "attest=(nonce=1)"
    return [
        ("/generate", {"params": {"priv": FORGED}}),
        ("/generate", {"params": {"priv+map": map_}}),
        ("/generate", {"params": {"1.priv": FORGED}}),
        ("/generate", {"params": {"1.priv+map": map_}}),
        ("/generate", {"params": {"private": FORGED, "attest": FORGED}}),
        ("/generate", {"params": {"PRIV": FORGED}}),
        ("/generate", {"headers": {"priv": FORGED}}),
        ("/generate", {"headers": {"Priv": FORGED, "attest": FORGED}}),
        ("/generate", {"headers": {"priv+map": map_}}),
        ("/generate", {"headers": {"1.priv": FORGED}}),
        ("/generate", {"headers": {"1.priv+map": map_}}),
        ("/generate", {"content": body}),
        ("/generate", {"content": body, "headers": {"content-type": "application/json"}}),
        ("/generate&priv=(/~message@1.0&attest=1)", {}),
        ("/generate&priv.attest=1", {}),
        ("/generate&attest=(/~message@1.0&nonce=1)", {}),
        (f"&priv={NONCE}/generate", {}),
        ("/generate&attest+map=nonce=1", {}),
    ]


async def test_nobody_outside_can_have_a_bare_nonce_signed(node: Node) -> None:
    base = f"http://127.0.0.1:{node.server.port}/~sev_gpu@1.0"
    challenged = challenge(node.keys.current.name, NONCE)[1]
    async with httpx.AsyncClient() as http:
        for path, sent in forgeries():
            method = "POST" if "content" in sent else "GET"
            without = await http.request(method, base + path, **sent)
            assert without.status_code in (400, 404), (path, sent, without.text)
            query = {**sent.get("params", {}), "nonce": NONCE}
            reply = await http.request(method, base + path, **{**sent, "params": query})
            if reply.status_code == 200:
                assert reply.json()["nonce"] == challenged, (path, sent)
            else:
                assert reply.status_code in (400, 404), (path, sent, reply.text)


MESSAGES = (
    '/~json@1.0/deserialize&body={"priv":{"attest":{"nonce":"N"}},"nonce":"N"}/'
    "generate~sev_gpu@1.0",
    "/(~json@1.0/deserialize)/generate~sev_gpu@1.0",
    "/~relay@1.0/call?relay-path=/~sev_gpu@1.0/generate",
    "/~message@1.0&nonce=N/set&priv=1/generate~sev_gpu@1.0",
)


async def test_a_message_made_by_a_path_is_no_device_either(node: Node) -> None:
    body = json.dumps({"priv": {"attest": {"nonce": NONCE}}, "nonce": NONCE})
    challenged = challenge(node.keys.current.name, NONCE)[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as http:
        for path in MESSAGES:
            path = path.replace('"N"', f'"{NONCE}"').replace("=N", f"={NONCE}")
            reply = await http.post(path, content=body)
            assert reply.status_code < 500, reply.text
            if reply.status_code == 200:
                assert reply.json()["nonce"] == challenged, path


async def test_a_device_has_its_statement_signed(node: Node) -> None:
    found = await attestation(node)
    assert found["nonce"] == hashlib.sha256(found["raw"].encode()).hexdigest()
    assert found["batch"] is None
    assert found["evidences"][0]["nonce"] == found["nonce"]
    assert found["backend"] == "simulated" and found["verified"] is False
    assert json.loads(base64.b64decode(found["token"])) == found["evidences"]
    assert await ask(node, probe=True) == {"backend": "simulated"}


async def test_a_device_may_have_a_bare_nonce_signed(node: Node) -> None:
    found = await ask(node, nonce=NONCE, client="operator")
    assert found["nonce"] == NONCE and found["evidences"][0]["nonce"] == NONCE


async def test_only_statements_are_signed(node: Node) -> None:
    for raw in ('{"v":"hyperbeam.receipt/1"}', '{"v":"hyperbeam.batch/1"}', "{}"):
        with pytest.raises(ValueError, match=r"hyperbeam\.answer/1"):
            await ask(node, raw=raw, mode="each", client="x")
    with pytest.raises(BadRequest):
        await ask(node, raw='{ "v":"hyperbeam.answer/1"}', mode="each", client="x")
    with pytest.raises(ValueError, match="each or batch"):
        await ask(node, raw=statement(node), mode="all", client="x")


async def test_a_hundred_batched_statements_share_few_reports(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = device(node)._choice.collectors["simulated"]
    collect = collector.collect
    asked: list[bytes] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(nonce: bytes) -> Any:
        asked.append(nonce)
        begun.set()
        await may_end.wait()
        return await collect(nonce)

    monkeypatch.setattr(collector, "collect", slow)
    salts = [f"{n:064x}" for n in range(100)]
    calls = [asyncio.create_task(attestation(node, "batch", salt=salts[0]))]
    await begun.wait()
    calls += [asyncio.create_task(attestation(node, "batch", salt=salt)) for salt in salts[1:]]
    while device(node)._queue.waiting < 99:  # noqa: ASYNC110
        await asyncio.sleep(0)
    may_end.set()
    found = await asyncio.gather(*calls)
    assert len(asked) == 2
    for one in found:
        assert batch.verify(batch.parse(one["batch"]), one["raw"], one["nonce"])
        assert one["evidences"][0]["nonce"] == one["nonce"]
    assert {one["nonce"] for one in found} == {nonce.hex() for nonce in asked}


async def test_a_client_that_leaves_frees_its_place(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = device(node)._choice.collectors["simulated"]
    collect = collector.collect
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(nonce: bytes) -> Any:
        begun.set()
        await may_end.wait()
        return await collect(nonce)

    monkeypatch.setattr(collector, "collect", slow)
    async with client(node) as http:
        first = asyncio.create_task(http.get("/generate", params={"nonce": NONCE}))
        await begun.wait()
        second = asyncio.create_task(http.get("/generate", params={"nonce": NONCE}))
        queue = device(node)._queue
        while queue.waiting < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        second.cancel()
        await asyncio.wait([second])
        while queue.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        may_end.set()
        assert (await first).status_code == 200


async def test_evidence_that_does_not_hold_is_not_handed_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = device(node)._choice.collectors["simulated"]
    collect = collector.collect

    async def other_nonce(nonce: bytes) -> Any:
        return [{**one, "nonce": nonce.hex()} for one in await collect(bytes(32))]

    async def changed(nonce: bytes) -> Any:
        (one,) = await collect(nonce)
        report = bytearray(base64.b64decode(one["evidence"]))
        report[200] ^= 1
        return [{**one, "evidence": base64.b64encode(report).decode()}]

    async def nothing(nonce: bytes) -> Any:
        return []

    for wrong in (other_nonce, changed, nothing):
        monkeypatch.setattr(collector, "collect", wrong)
        with pytest.raises(Unavailable, match="not given out"):
            await ask(node, raw=statement(node), mode="each", client="x")
        async with client(node) as http:
            reply = await http.get("/generate", params={"nonce": NONCE})
        assert reply.status_code == 503 and "evidences" not in reply.text


async def test_a_gpu_that_fails_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(nonce: bytes) -> Any:
        raise unavailable("GPU 1 did not answer within 20 s")

    monkeypatch.setattr(device(node)._choice.collectors["simulated"], "collect", fails)
    async with client(node, accept="application/json") as http:
        reply = await http.get("/generate", params={"nonce": NONCE})
    assert reply.status_code == 503
    assert reply.json()["error"] == "attestation_unavailable" and "GPU 1" in reply.json()["body"]
    assert 0 < int(reply.headers["retry-after"]) <= 5 and "x-should-retry" not in reply.headers


async def test_where_there_is_no_gpu(start_node: StartNode) -> None:
    node = await start_node()
    with pytest.raises(Unavailable, match=r"nvml: .*nvattest: .*nv-attestation-sdk: ") as caught:
        await ask(node, probe=True)
    assert caught.value.error == "attestation_unavailable"
    async with client(node) as http:
        assert (await http.get("/generate", params={"nonce": NONCE})).status_code == 503
        info = (await http.get("/info")).json()
    assert info["backend"] is None and info["configured"] == "auto"
    assert set(info["backends"]) == set(SOURCES)
    assert all(one["reason"] for one in info["backends"].values())
    assert info["backends"]["simulated"]["reason"] == "not chosen: sev_gpu.backend is auto"
    assert "not chosen" not in info["backends"]["nvml"]["reason"]
    assert node.keys.current.message["gpu"] is None


async def test_a_node_that_gives_no_evidence(start_node: StartNode) -> None:
    node = await start_node(sev_gpu__backend="none")
    with pytest.raises(Unavailable, match="backend is none"):
        await ask(node, probe=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"backend": "none"},
        {"backend": "nvml"},
        {"backend": "nvattest", "nvattest": "/no/such/program"},
        {"backend": "nv-attestation-sdk"},
        {"backend": "nv-attestation-sdk", "sdk_python": "/dev/null"},
    ],
)
async def test_nobody_is_told_to_try_again_where_that_is_of_no_use(
    start_node: StartNode, settings: dict[str, Any]
) -> None:
    node = await start_node(**{f"sev_gpu__{name}": value for name, value in settings.items()})
    async with client(node) as http:
        reply = await http.get("/generate", params={"nonce": NONCE})
    assert reply.status_code == 503
    assert reply.headers["x-should-retry"] == "false" and "retry-after" not in reply.headers


class Source(SimulatedCollector):
    """A source that says `why` it cannot be used, or raises it."""

    def __init__(self, why: str | Unavailable) -> None:
        super().__init__(SevGpuConfig())
        self.why = why

    async def available(self) -> str:
        if isinstance(self.why, str):
            return self.why
        raise self.why


async def test_one_source_whose_trouble_may_pass_is_worth_another_try() -> None:
    absent, hanging = Source("not installed"), Source(unavailable("GPU 1 has not answered"))
    choice = Choice({"a": absent, "b": hanging})
    with pytest.raises(Unavailable, match=r"not installed; .*: GPU 1 has not") as caught:
        await choice.find()
    assert 0 < int(caught.value.headers["retry-after"]) <= 5
    assert await choice.reasons() == {"a": "not installed", "b": "GPU 1 has not answered"}
    hanging.why = ""
    assert await choice.find() is hanging
    hanging.why = unavailable("GPU 1 has not answered")
    with pytest.raises(Unavailable, match="GPU 1 has not answered") as caught:
        await choice.find()
    assert "x-should-retry" not in caught.value.headers
    hanging.why = "CC mode is off"
    with pytest.raises(Unavailable, match="CC mode is off") as caught:
        await choice.find()
    assert caught.value.headers == NO_RETRY


async def test_info_says_that_it_is_simulated(start_node: StartNode) -> None:
    node = await start_node(sev_gpu__backend="simulated", sev_gpu__simulated_gpus=2)
    async with client(node) as http:
        info = (await http.get("/info")).json()
        answer = (await http.get("/generate", params={"nonce": NONCE})).json()
    assert [gpu["name"] for gpu in info["gpus"]] == ["SIMULATED GPU"] * 2
    assert info["root"].startswith("simulated:")
    not_chosen = {"available": False, "reason": "not chosen: sev_gpu.backend is simulated"}
    others = dict.fromkeys(SOURCES, not_chosen)
    assert info["backends"] == {**others, "simulated": {"available": True}}
    assert len(answer["evidences"]) == 2
    assert node.keys.current.message["gpu"] is None


async def test_the_explanation(node: Node) -> None:
    async with client(node) as http:
        reply = await http.get("/")
        assert (await http.get("")).text == reply.text
    assert reply.headers["content-type"] == "text/plain"
    for words in (
        "What a pass means", "does not mean", "SIMULATES", f":{node.server.port}/~sev",
        "--keyset keyset.json",
    ):  # fmt: skip
        assert words in reply.text


async def test_the_sample_answers_to_its_own_nonce_in_tests_only(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "sev_gpu__backend": "replay",
        "sev_gpu__replay": str(SAMPLE),
        "sev_gpu__policy": {**GENEROUS, "rim_clock": SAMPLE_CLOCK},
    }
    with pytest.raises(ConfigError, match="HYPERBEAM_TESTS"):
        await start_node(**settings)
    monkeypatch.setenv("HYPERBEAM_TESTS", "1")
    node = await start_node(**settings)
    found = await ask(node, nonce=SAMPLE_NONCE, client="x")
    assert found["claims"][0]["x-nvidia-gpu-driver-version"] == "545.00"
    with pytest.raises(Unavailable, match="one nonce only"):
        await ask(node, raw=statement(node), mode="each", client="x")
    async with client(node) as http:
        assert (await http.get("/generate", params={"nonce": SAMPLE_NONCE})).status_code == 503


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": {"rimz": "require"}}, "rimz"),
        ({"rims": "/nowhere/at/all"}, "no folder"),
        ({"backend": "guess"}, "backend"),
        ({"timeout": 0}, "timeout"),
    ],
)
async def test_settings_that_do_not_fit(
    start_node: StartNode, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await start_node(**{f"sev_gpu__{name}": value for name, value in settings.items()})


async def test_the_cpus_evidence_stands_beside_the_gpus(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotes: list[Any] = []
    current = node.keys.current.name

    async def quote(base: Any, request: Any) -> Any:
        quotes.append(request["priv"]["quote"])
        if quotes[-1].get("probe"):
            return {"backend": "configfs"}
        return {"keyset": current, **quotes[-1], "report": "", "certificates": [], "backend": "x"}

    monkeypatch.setattr(node.device("snp@1.0"), "generate", quote)
    found = await attestation(node)
    assert found["cpu"]["nonce"] == found["nonce"]
    assert found["cpu"]["gpu"] == quotes[1]["gpu"] and len(quotes[1]["gpu"]) == 64
    current = "00" * 32
    with pytest.raises(Unavailable, match="changed its key set"):
        await attestation(node)

    async def fails(base: Any, request: Any) -> Any:
        if request["priv"]["quote"].get("probe"):
            return {"backend": "configfs"}
        raise unavailable("the firmware does not answer")

    monkeypatch.setattr(node.device("snp@1.0"), "generate", fails)
    with pytest.raises(HyperbeamError, match="firmware"):
        await attestation(node)


def test_a_challenge_is_no_statement() -> None:
    raw, _ = challenge("ab" * 32, NONCE)
    assert jcs.parse(raw)["v"] == "hyperbeam.challenge/1"
    assert dump({}) == b"{}"
