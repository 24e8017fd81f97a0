"""Attested answers of the embedded model, with simulated evidence, as their users have them."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import models
from hyperbeam.verify import verify

from .process import HYPERBEAM, ROOT, NodeProcess

SCRIPT = Path(__file__).with_name("sdk_tee_script.py")
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 12,
}
POLICY = {"ocsp": "skip", "rims": "allow-missing"}
PATH = "/~inference@1.0/chat/completions"


@pytest.fixture(scope="module")
def attesting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that simulates a GPU; its key set is the one that verifiers get."""
    folder = tmp_path_factory.mktemp("attesting")
    command = [HYPERBEAM, "serve", "--profile", "inference", "--port", "0", "--home", folder]
    running = NodeProcess(command, env={"HB_SEV_GPU__BACKEND": "simulated"}, cwd=folder)
    try:
        running.ready()
        wait_for_digest(running)
        yield running
    finally:
        status = running.stop()
    assert status == 0, "\n".join(running.lines)


def wait_for_digest(node: NodeProcess) -> None:
    deadline = time.monotonic() + 60
    while httpx.get(f"{node.url}/~inference@1.0/inference_opts").json()["model"]["by"] != "hashed":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check(node: NodeProcess, saved: bytes, **given: Any) -> Any:
    json = {"accept": "application/json"}
    keyset = httpx.get(f"{node.url}/~meta@1.0/keyset").content
    root = httpx.get(f"{node.url}/~sev_gpu@1.0/info", headers=json).json()["root"]
    return verify(saved, policy=POLICY, keyset=keyset, trust=root, **given)


@pytest.mark.parametrize("major", [2, 3])
def test_the_sdk(attesting: NodeProcess, major: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), attesting.url + "/v1", secrets.token_hex(32)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv" / f"openai-{major}")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all done"


@pytest.mark.parametrize("tee", [True, "digest", "batch"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_verifies_and_can_be_made_again(
    attesting: NodeProcess, tee: Any, stream: bool
) -> None:
    nonce = secrets.token_hex(32)
    request = httpx.Request(
        "POST", attesting.url + PATH, json={**CHAT, "tee": tee, "nonce": nonce, "stream": stream}
    )
    with httpx.Client(timeout=60) as client:
        reply = client.send(request)
        own = f"{attesting.url}/~inference@1.0"
        receipt = client.get(f"{own}/receipt/{reply.headers['x-receipt-id']}").json()
        verdict = check(
            attesting, reply.content, nonce=nonce, request=request.content, receipt=receipt
        )
        assert (verdict.reason, verdict.simulated_pass) == ("simulated", True)
        again = client.post(
            f"{own}/replay",
            json={"receipt": receipt, "request": request.content.decode(), "answer": reply.text},
        ).json()
    assert (again["match"], again["signature"]) == (True, "good")
    assert "Paris" in reply.text


def test_the_smallest_request_there_is(attesting: NodeProcess) -> None:
    url = f"{attesting.url}/~inference@1.0/completions?tee=true"
    reply = httpx.post(url, json={"prompt": " ", "max_tokens": 1}, timeout=60)
    assert reply.status_code == 200
    assert reply.json()["resolved_model"] == models.DEFAULT_MODEL
    assert check(attesting, reply.content).simulated_pass


def test_the_model_says_which_it_is(attesting: NodeProcess) -> None:
    (model,) = httpx.get(f"{attesting.url}/v1/models").json()["data"]
    opts = httpx.get(f"{attesting.url}/~inference@1.0/inference_opts").json()
    assert {name: model[name] for name in ("sha256", "size", "by")} == {
        name: opts["model"][name] for name in ("sha256", "size", "by")
    }
    assert opts["model"]["by"] == "hashed"
    assert opts["model"]["size"] > models.CATALOGUE[models.DEFAULT_MODEL].size
    assert opts["backend"]["settings"]["engine"].startswith("xllamacpp")


def test_a_seed_that_the_engine_cannot_take_is_refused(attesting: NodeProcess) -> None:
    body = b'{"prompt": "x", "tee": true, "seed": 9007199254740993}'
    reply = httpx.post(f"{attesting.url}/v1/completions", content=body, timeout=60)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "seed")
