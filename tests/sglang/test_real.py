"""A real SGLang, started by the node: `scripts/test-sglang` runs these, nothing else does.

One server for all of them, as it takes minutes to load; they run as they stand here. The flags
have to leave room for four requests at a time, and four that wait.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.process import ROOT, NodeProcess, serve

PYTHON = os.environ.get("HB_TEST_SGLANG", "")
MODEL = os.environ.get("HB_TEST_SGLANG_MODEL", "")
ARGS = json.loads(os.environ.get("HB_TEST_SGLANG_ARGS", "[]"))
LIMITS = ["--max-running-requests", "4", "--max-queued-requests", "4"]
LOADING = 900.0
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
PATHS = ("/~inference@1.0/chat/completions", "/v1/chat/completions")

pytestmark = pytest.mark.skipif(not PYTHON, reason="scripts/test-sglang runs these")


def leftovers() -> set[str]:
    """What SGLang may leave behind: shared memory and temporary files."""
    temporary = {str(path) for path in Path(tempfile.gettempdir()).glob("hb-*")}
    return temporary | {str(path) for path in Path("/dev/shm").iterdir()}


def start(folder: Path) -> NodeProcess:
    config = folder / "hyperbeam.toml"
    lines = [
        f"home = {json.dumps(str(folder / 'home'))}",
        "[inference]",
        'backend = "sglang"',
        f"model = {json.dumps(MODEL)}",
        'served_name = "tested"',
        f"python = {json.dumps(PYTHON)}",
        f"args = {json.dumps([*ARGS, *LIMITS])}",
        'env = { TORCH_COMPILE_DISABLE = "1", HF_HUB_OFFLINE = "1", TRANSFORMERS_OFFLINE = "1" }',
    ]
    config.write_text("\n".join(lines))
    return serve("--config", config, "--routes", ROOT / "routes.toml").listening()


def wait_ready(node: NodeProcess) -> None:
    node.wait_for(r"inference@1\.0 .*ready", LOADING)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def before() -> set[str]:
    return leftovers()


@pytest.fixture(scope="module")
def node(before: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = start(tmp_path_factory.mktemp("sglang"))
    try:
        early = httpx.post(running.url + PATHS[0], json=CHAT)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
        wait_ready(running)
        yield running
    finally:
        running.stop()


def post(node: NodeProcess, path: str, timeout: float = 300, **fields: Any) -> httpx.Response:
    return httpx.post(node.url + path, json={**CHAT, **fields}, timeout=timeout)


def text(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        content: str = reply.json()["choices"][0]["message"]["content"]
        return content
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"] for line in lines[:-1]]
    return "".join(each[0]["delta"].get("content") or "" for each in deltas if each)


def aborted(node: NodeProcess) -> int:
    """Requests that the backend counts as given up."""
    lines = httpx.get(node.url + "/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("sglang:num_aborted_requests_total")]
    return sum(int(float(line.rpartition(" ")[2])) for line in counted)


@pytest.mark.parametrize("path", PATHS)
def test_plain_and_streamed_say_the_same(node: NodeProcess, path: str) -> None:
    plain = post(node, path, temperature=1.0)
    streamed = post(node, path, temperature=1.0, stream=True, seed=int(plain.headers["x-seed"]))
    assert text(plain) == text(streamed)
    assert plain.headers["x-seed-by"] == "node" and streamed.headers["x-seed-by"] == "client"


def test_a_seed_makes_the_same_answer_whatever_else_runs(node: NodeProcess) -> None:
    def ask(seed: int) -> str:
        return text(post(node, PATHS[0], temperature=1.0, seed=seed))

    alone = [ask(seed) for seed in (1, 2, 1)]
    assert alone[0] == alone[2] != alone[1]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(ask, (1, 3, 4, 2)))
    assert [beside[0], beside[3]] == alone[:2]
    assert text(post(node, PATHS[0])) == text(post(node, PATHS[0]))


def test_choices_differ_and_are_repeatable(node: NodeProcess) -> None:
    def ask() -> list[str]:
        reply = post(node, PATHS[0], temperature=1.0, seed=5, n=2)
        assert reply.status_code == 200, reply.text
        return [each["message"]["content"] for each in reply.json()["choices"]]

    first, second = ask(), ask()
    assert first == second and first[0] != first[1]


def test_the_receipt_names_what_determines_the_answer(node: NodeProcess) -> None:
    reply = post(node, PATHS[0])
    receipt = httpx.get(f"{node.url}/~inference@1.0/receipt/{reply.headers['x-receipt-id']}").json()
    assert receipt["backend"]["kind"] == "sglang" and receipt["backend"]["where"] == "child"
    settings = receipt["backend"]["settings"]
    assert settings["enable_deterministic_inference"] is True
    assert {"engine", "attention_backend", "tp_size", "random_seed"} <= settings.keys()
    assert receipt["model"]["name"] == "tested"
    assert len(receipt["model"]["sha256"]) == 64


def test_a_full_queue_is_a_503_and_no_answer_is_lost(node: NodeProcess) -> None:
    def ask(number: int) -> tuple[int, str]:
        reply = post(
            node, PATHS[number % 2], max_tokens=200, ignore_eos=True, stream=number % 3 == 0
        )
        code = reply.json()["error"]["code"] if reply.status_code != 200 else ""
        return reply.status_code, code

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, range(24)))
    assert set(found) == {(200, ""), (503, "overloaded")}, found


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(node: NodeProcess, stream: bool) -> None:
    before = aborted(node)
    fields = {"max_tokens": 1500, "ignore_eos": True, "stream": stream}
    asked = {**CHAT, **fields}
    limit = httpx.Timeout(60, read=60 if stream else 1)
    with (
        suppress(httpx.ReadTimeout),
        httpx.stream("POST", node.url + PATHS[0], json=asked, timeout=limit) as reply,
    ):
        next(reply.iter_bytes())
    until(lambda: aborted(node) == before + 1)


def test_other_endpoints(node: NodeProcess) -> None:
    answers = {
        "responses": {"model": "tested", "input": "Hello", "max_output_tokens": 8},
        "messages": {"model": "tested", "max_tokens": 8, "messages": CHAT["messages"]},
        "tokenize": {"model": "tested", "prompt": "Hello"},
        "completions": {"prompt": "Hello", "max_tokens": 4},
    }
    for name, body in answers.items():
        reply = httpx.post(f"{node.url}/v1/{name}", json=body, timeout=300)
        assert reply.status_code == 200, (name, reply.text)
    vectors = httpx.post(f"{node.url}/v1/embeddings", json={"model": "tested", "input": "Hello"})
    assert vectors.status_code == 400 and vectors.json()["error"]["message"]


def test_options_reach_the_engine(node: NodeProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
    shaped = post(node, PATHS[0], response_format=form)
    assert json.loads(text(shaped)) in (True, False)
    logged = post(node, PATHS[0], logprobs=True, top_logprobs=2).json()
    assert len(logged["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    for wrong in ({"temperature": "hot"}, {"messages": "x"}, {"max_tokens": -1}):
        reply = post(node, PATHS[0], **wrong)
        assert reply.status_code == 400 and reply.json()["error"]["message"], wrong


def test_nothing_is_left_behind(node: NodeProcess, before: set[str]) -> None:
    family = psutil.Process(node.process.pid).children(recursive=True)
    assert len(family) >= 3
    asked = {**CHAT, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", node.url + PATHS[0], json=asked, timeout=60) as reply:
        source = reply.iter_text()
        next(source)
        node.signal(signal.SIGTERM)
        assert "".join(source).endswith("data: [DONE]\n\n")
    assert node.wait() == 0
    assert not [process for process in family if process.is_running()]
    until(lambda: leftovers() <= before)


@pytest.mark.parametrize("when", ["loading", "ready"])
def test_nothing_is_left_behind_by_a_kill(tmp_path: Path, before: set[str], when: str) -> None:
    node = start(tmp_path)
    parent = psutil.Process(node.process.pid)
    if when == "ready":
        wait_ready(node)
    else:
        until(lambda: len(parent.children(recursive=True)) >= 2, 60)
    family = parent.children(recursive=True)
    node.signal(signal.SIGKILL)
    node.wait()
    until(lambda: not [each for each in family if each.is_running()])
    until(lambda: leftovers() <= before)
