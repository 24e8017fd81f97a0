"""Answers that can be checked, from the running node to `hyperbeam verify`, with simulated GPUs."""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .process import HYPERBEAM, ROOT, NodeProcess, clean_environment

CHAT = "/~inference@1.0/chat/completions"
ASK = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 12,
}
LENIENT = {"rims": "allow-missing", "ocsp": "skip"}


@pytest.fixture
def api(attested: NodeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=attested.url, timeout=120) as client:
        yield client


class Verifier:
    """`hyperbeam verify` with what somebody who asked has kept."""

    def __init__(self, folder: Path, api: httpx.Client) -> None:
        self.folder = folder
        (folder / "keyset.json").write_bytes(api.get("/~meta@1.0/keyset").content)
        root = api.get("/~sev_gpu@1.0/info", headers={"accept": "application/json"}).json()["root"]
        assert root.startswith("simulated:")
        (folder / "policy.json").write_text(json.dumps(LENIENT))
        self.trusting = ["--trust", root, "--policy", str(folder / "policy.json")]

    def __call__(self, document: bytes, *arguments: str) -> tuple[int, dict[str, Any]]:
        (self.folder / "document").write_bytes(document)
        done = subprocess.run(
            [
                *(HYPERBEAM, "verify", "document", "--json", "--offline", "--state", "state"),
                *("--keyset", "keyset.json", *arguments),
            ],
            cwd=self.folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def verify(tmp_path: Path, api: httpx.Client) -> Verifier:
    return Verifier(tmp_path, api)


def failed(verdict: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["reason"] for c in verdict["checks"] if c["result"] == "fail"}


def test_a_plain_answer(api: httpx.Client, verify: Verifier) -> None:
    nonce = secrets.token_hex(32)
    reply = api.post(CHAT, json={**ASK, "tee": True, "nonce": nonce})
    assert reply.status_code == 200
    assert reply.headers["cache-control"] == "no-store"
    answer = reply.json()
    attestation = answer["attestation"]
    assert hashlib.sha256(attestation["raw"].encode()).hexdigest() == attestation["nonce"]
    assert attestation["verified"] is False
    assert answer["resolved_model"] == answer["model"]

    status, verdict = verify(reply.content, "--nonce", nonce, *verify.trusting)
    assert (status, failed(verdict)) == (3, {}), verdict
    assert (verdict["verified"], verdict["simulated_pass"]) == (False, True)
    assert verify(reply.content, "--nonce", nonce)[0] == 1
    stale = verify(reply.content, "--nonce", secrets.token_hex(32), *verify.trusting)
    assert stale[0] == 1


def test_a_changed_answer_is_named(api: httpx.Client, verify: Verifier) -> None:
    reply = api.post(CHAT, json={**ASK, "tee": True}).content
    for old, new in ((b"Paris", b"Parix"), (b'"index":0', b'"index":1'), (b'"stop"', b'"stoq"')):
        assert old in reply
        status, verdict = verify(reply.replace(old, new, 1), *verify.trusting)
        assert status == 1
        assert "answer" in failed(verdict), verdict["checks"]


def test_a_stream(api: httpx.Client, verify: Verifier) -> None:
    nonce = secrets.token_hex(32)
    body = {**ASK, "tee": "digest", "nonce": nonce, "stream": True}
    stream = api.post("/v1/chat/completions", json=body).content
    events = stream.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    last = json.loads(events[-3].removeprefix(b"data: "))
    assert last["choices"] == []
    assert json.loads(last["attestation"]["raw"])["response"]["body"] is None
    assert verify(stream, "--nonce", nonce, *verify.trusting)[0] == 3

    cut = b"\n\n".join(events[:-2]) + b"\n\n"
    twice = b"\n\n".join([*events[:-2], events[-3], *events[-2:]])
    missing = b"\n\n".join([events[0], *events[2:]])
    late = b"\n\n".join([*events[:-2], events[0], *events[-2:]])
    for changed in (cut, twice, missing, late):
        status, verdict = verify(changed, *verify.trusting)
        assert status == 1
        assert verdict["reason"] not in ("", "simulated")


def test_evidence_of_another_answer(api: httpx.Client, verify: Verifier) -> None:
    one, two = (api.post(CHAT, json={**ASK, "tee": True}).json() for _ in range(2))
    mixed = {**one["attestation"], "evidences": two["attestation"]["evidences"]}
    document = json.dumps(mixed).encode()
    assert verify(document, *verify.trusting)[0] in (1, 2)
    reply = api.post("/~sev_gpu@1.0/verify", content=document)
    assert (reply.status_code, reply.headers["error"]) == (400, "evidence-conflict")
    mixed["token"] = two["attestation"]["token"]
    reply = api.post("/~sev_gpu@1.0/verify", content=json.dumps(mixed))
    assert (reply.status_code, reply.headers["error"]) == (400, "evidence-conflict")


@pytest.mark.parametrize("kind", ["token", "evidences", "nothing", "empty list"])
def test_evidence_that_nobody_vouches_for_is_false(api: httpx.Client, kind: str) -> None:
    attestation = api.post(CHAT, json={**ASK, "tee": True}).json()["attestation"]
    bodies = {
        "token": json.dumps({"token": attestation["token"]}),
        "evidences": json.dumps(attestation["evidences"]),
        "nothing": "",
        "empty list": "[]",
    }
    reply = api.post("/~sev_gpu@1.0/verify", content=bodies[kind])
    assert (reply.status_code, reply.text) == (200, "false")
    if kind in ("token", "evidences"):
        assert reply.headers["x-verify-reason"] == "nonce-not-given"
    assert reply.headers["x-verify-reason"]


def test_simulated_evidence_is_never_true(api: httpx.Client) -> None:
    attestation = api.post(CHAT, json={**ASK, "tee": True}).json()["attestation"]
    for extra in ({}, {"policy": LENIENT}, {"policy": {"trust": "none"}}):
        reply = api.post("/~sev_gpu@1.0/verify", json={**attestation, **extra})
        assert reply.text != "true"
        assert reply.status_code in (200, 400)
    for query in ("?ocsp=skip&rims=allow-missing", "?policy=%7B%22ocsp%22%3A%22skip%22%7D"):
        assert api.post(f"/~sev_gpu@1.0/verify{query}", json=attestation).text == "false"


def test_no_remote_caller_chooses_what_the_hardware_signs(
    api: httpx.Client, verify: Verifier
) -> None:
    answer = api.post(CHAT, json={**ASK, "tee": True})
    raw = json.loads(answer.json()["attestation"]["raw"])
    raw["response"]["body"] = raw["response"]["body"].replace("Paris", "Lyon")
    forged = json.dumps(raw, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    wanted = hashlib.sha256(forged.encode()).hexdigest()
    got = api.post("/~sev_gpu@1.0/generate", json={"nonce": wanted}).json()
    assert got["nonce"] != wanted
    given = api.get(f"/~sev_gpu@1.0/generate?nonce={wanted}&raw=x&mode=each").json()
    assert wanted not in {e["nonce"] for e in given["evidences"]}
    assert api.get(f"/~sev_gpu@1.0/generate?nonce={wanted}&priv=1").status_code == 400
    attestation = answer.json()["attestation"]
    attestation |= {"raw": forged, "nonce": got["nonce"], "evidences": got["evidences"]}
    attestation["token"] = got["token"]
    status, verdict = verify(json.dumps(attestation).encode(), *verify.trusting)
    assert status == 1
    assert "statement-signature" in failed(verdict)
    assert api.get("/~sev_gpu@1.0/generate").status_code == 400


def test_receipt_log_and_replay(api: httpx.Client, verify: Verifier) -> None:
    text = json.dumps({**ASK, "temperature": 0.7})
    reply = api.post(CHAT, content=text)
    receipt = api.get(f"/~inference@1.0/receipt/{reply.headers['x-receipt-id']}")
    assert receipt.status_code == 200
    body = receipt.json()
    assert body["response"]["sha256"] == hashlib.sha256(reply.content).hexdigest()
    assert body["request"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert verify(receipt.content)[0] == 0
    changed = receipt.text.replace('"complete":true', '"complete":false')
    assert changed != receipt.text
    assert "receipt-signature" in failed(verify(changed.encode())[1])

    proof = api.get(f"/~receipt-log@1.0/inclusion?id={body['id']}")
    assert proof.status_code == 200, proof.text
    (verify.folder / "receipt.json").write_bytes(receipt.content)
    status, verdict = verify(proof.content, "--receipt", "receipt.json")
    assert status == 0, verdict
    assert verdict["log"] == "self-signed"

    asked = {"receipt": body, "request": text, "answer": reply.text}
    assert api.post("/~inference@1.0/replay", json=asked).json()["match"] is True
    forged = {**body, "model": {**body["model"], "sha256": "0" * 64}}
    refused = api.post("/~inference@1.0/replay", json={**asked, "receipt": forged})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "signature_invalid")
    foreign = {**forged, "keyset": "0" * 64}
    refused = api.post("/~inference@1.0/replay", json={**asked, "receipt": foreign})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "weights_differ")


def test_batched_answers_share_a_report(api: httpx.Client, verify: Verifier) -> None:
    for tee in ("batch", True):
        body = {"prompt": " ", "max_tokens": 1, "tee": tee}
        reply = api.post("/~inference@1.0/completions", json=body)
        assert verify(reply.content, *verify.trusting)[0] == 3
        batch = reply.json()["attestation"]["batch"]
        assert (batch is None) == (tee is True)
    reply = api.post("/~inference@1.0/completions?tee=true", json={"prompt": " ", "max_tokens": 1})
    assert reply.json()["attestation"]["nonce"]


SDK = """
import hashlib, json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/~inference@1.0", api_key="none")
ask = dict(model="any", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
answer = client.chat.completions.create(**ask, extra_body={"tee": True})
found = [answer.attestation]
for chunk in client.chat.completions.create(**ask, stream=True, extra_body={"tee": True}):
    found.append(getattr(chunk, "attestation", None))
found = [attestation for attestation in found if attestation]
assert len(found) == 2, found
for attestation in found:
    assert hashlib.sha256(attestation["raw"].encode()).hexdigest() == attestation["nonce"]
    assert attestation["token"]
"""


@pytest.mark.parametrize("major", [2, 3])
def test_the_sdk_sees_the_attestation(attested: NodeProcess, major: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SDK, attested.url],
        env=clean_environment(PYTHONPATH=str(ROOT / ".venv" / f"openai-{major}")),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
