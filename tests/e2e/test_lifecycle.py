"""Starting, stopping, dying: what is left, what is said, which status."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from .process import NodeProcess, serve

CHAT = "/~inference@1.0/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Count to fifty."}], "max_tokens": 64}


def until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Return once `condition` holds."""
    ends = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < ends, "it did not come to be"
        threading.Event().wait(0.02)


def children(node: NodeProcess) -> list[psutil.Process]:
    return psutil.Process(node.process.pid).children(recursive=True)


def model_of(node: NodeProcess) -> psutil.Process:
    """The process that has the model: the one at the end of the chain."""
    (last,) = [process for process in children(node) if not process.children()]
    return last


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.fixture
def own(home: Path) -> Iterator[NodeProcess]:
    """A node of the test's own, with the model."""
    node = serve("--home", home, "--profile", "inference").ready()
    yield node
    node.stop()


def test_without_a_profile_no_backend_starts(home: Path) -> None:
    node = serve("--home", home).listening()
    assert children(node) == []
    reply = httpx.post(node.url + CHAT, json=LONG)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "no_backend"
    assert "--profile inference" in reply.json()["error"]["message"]
    assert httpx.get(node.url + "/health").status_code == 503
    assert httpx.get(node.url + "/~meta@1.0/live").status_code == 200
    assert node.stop() == 0


def test_loading_is_503_with_retry_after(home: Path) -> None:
    node = serve("--home", home, "--profile", "inference").listening()
    reply = httpx.post(node.url + CHAT, json=LONG)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "loading"
    assert int(reply.headers["retry-after"]) >= 1
    node.wait_for("inference@1.0 .*ready")
    assert httpx.post(node.url + CHAT, json=LONG, timeout=60).status_code == 200
    assert node.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_answers_finish(own: NodeProcess, number: signal.Signals) -> None:
    below = children(own)
    assert below
    with httpx.stream("POST", own.url + CHAT, json={**LONG, "stream": True}, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        own.signal(number)
        own.wait_for("finishing 1")
        with pytest.raises(httpx.ConnectError):
            httpx.get(own.url + "/health")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert own.wait() == 0
    until(lambda: gone(below))


def test_draining_is_bounded(home: Path) -> None:
    node = serve("--home", home, "--profile", "inference", "--set", "http.drain=0.2").ready()
    below = children(node)
    body = {**LONG, "stream": True, "max_tokens": 1500, "ignore_eos": True}
    with httpx.stream("POST", node.url + CHAT, json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        node.signal(signal.SIGTERM)
        seen = []
        with pytest.raises(httpx.RemoteProtocolError):
            seen.extend(lines)
        assert "data: [DONE]" not in seen
    assert node.wait() == 0
    until(lambda: gone(below))


def test_kill_9_leaves_nothing_running(own: NodeProcess) -> None:
    below = children(own)
    assert below
    own.process.kill()
    own.process.wait()
    until(lambda: gone(below))


def test_a_killed_backend_comes_back(own: NodeProcess) -> None:
    model = model_of(own)
    model.kill()
    until(lambda: httpx.get(own.url + "/health").status_code == 503)
    reply = httpx.post(own.url + CHAT, json=LONG)
    assert reply.status_code == 503
    assert "retry-after" in reply.headers
    until(lambda: httpx.get(own.url + "/health").status_code == 200)
    assert httpx.post(own.url + CHAT, json=LONG, timeout=60).status_code == 200


def test_a_backend_killed_in_mid_stream_is_an_error_event(own: NodeProcess) -> None:
    body = {**LONG, "stream": True, "max_tokens": 1500, "ignore_eos": True}
    model = model_of(own)
    seen = []
    with httpx.stream("POST", own.url + CHAT, json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        seen.append(next(lines))
        model.kill()
        try:
            seen.extend(lines)
        except httpx.RemoteProtocolError:
            seen.append("cut")
    events = [line for line in seen if line.startswith("data: ")]
    assert '"error"' in events[-1]
    assert "data: [DONE]" not in seen


def test_one_home_is_one_nodes(home: Path) -> None:
    first = serve("--home", home).listening()
    second = serve("--home", home)
    assert second.wait() == 2
    assert len(second.lines) == 1
    assert "another node" in second.lines[0]
    assert first.stop() == 0


def test_a_taken_port_is_one_line_and_status_2(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = serve("--home", home, "--port", str(port), "--profile", "inference")
        assert node.wait() == 2
    assert len(node.lines) == 1
    assert str(port) in node.lines[0]
    assert not (home / "identity.key").exists()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--profile", "inference", "--model", "/no/such.gguf"], ["/no/such.gguf"]),
        (["--profile", "inference", "--model", "no-such-model"], ["no-such-model"]),
        (["--config", "/no/such.toml"], ["/no/such.toml"]),
        (["--set", "http.prot=1"], ["prot"]),
        (["--set", "http"], ["SECTION.KEY=VALUE"]),
        (["--profile", "nonsense"], ["nonsense", "inference"]),
        (["--routes", "/no/routes.toml"], ["/no/routes.toml"]),
        (["--device-path", "/no/folder"], ["/no/folder"]),
        (["--set", "inference.slots=none"], ["slots"]),
        (["--set", "nosuch.key=1"], ["nosuch"]),
        (["--host", "203.0.113.1"], ["203.0.113.1"]),
    ],
)
def test_what_the_operator_has_to_mend_is_one_line(
    home: Path, arguments: list[str], names: list[str]
) -> None:
    node = serve("--home", home, *arguments)
    assert node.wait() == 2
    assert len(node.lines) == 1, node.lines
    for name in names:
        assert name in node.lines[0]


def test_a_model_file_that_is_none_is_refused(home: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"not a model" * 100)
    node = serve("--home", home, "--profile", "inference", "--model", model)
    assert node.wait() == 2
    assert str(model) in node.lines[-1]


def test_a_home_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    node = serve("--home", file / "home")
    assert node.wait() == 2
    assert len(node.lines) == 1
    assert os.fspath(file) in node.lines[0]


def test_topics_are_logged_and_never_what_was_said(home: Path) -> None:
    node = serve("--home", home, "--profile", "inference", env={"HB_PRINT": "all"}).ready()
    asked = {"messages": [{"role": "user", "content": "Say zanzibar please, xylophonist."}]}
    headers = {"authorization": "Bearer s3cr3t-k3y", "cookie": "a=s3cr3t-k3y"}
    answers = []
    for stream in (False, True):
        body = {**asked, "stream": stream, "max_tokens": 12}
        answers.append(
            httpx.post(node.url + CHAT + "?key=s3cr3t-k3y", json=body, headers=headers, timeout=60)
        )
    said = answers[0].json()["choices"][0]["message"]["content"]
    assert node.stop() == 0
    log = "\n".join(node.lines)
    for topic in ("http", "resolver", "inference"):
        assert f"DEBUG   {topic}:" in log
    for secret in ("zanzibar", "xylophonist", "s3cr3t-k3y", said):
        assert secret not in log


def test_one_topic_alone(home: Path) -> None:
    node = serve("--home", home, env={"HB_PRINT": "http"}).listening()
    httpx.get(node.url + "/~meta@1.0/live")
    node.wait_for(r"DEBUG +http: 127\.0\.0\.1 GET /~meta@1\.0/live: 200")
    assert node.stop() == 0
    assert not any("DEBUG   resolver" in line for line in node.lines)


def test_what_one_client_said_never_reaches_another(own: NodeProcess) -> None:
    marks = [f"zanzibar{n}" for n in range(4)]
    bad: list[dict[str, object]] = [
        {**LONG, "reasoning_format": marks[0]},
        {**LONG, "grammar": f'root ::= "{marks[1]}" zz('},
        {**LONG, "top_k": marks[2]},
        {"messages": [{"role": "user", "content": marks[3] * 3000}]},
    ]
    for body in bad:
        assert httpx.post(own.url + CHAT, json=body, timeout=60).status_code == 400
    model_of(own).kill()
    said = []

    def comes_back() -> bool:
        reply = httpx.post(own.url + CHAT, json=LONG, timeout=60)
        said.append(reply.text + httpx.get(own.url + "/health").text)
        assert reply.status_code in (200, 502, 503)
        if reply.status_code == 503:
            assert int(reply.headers["retry-after"]) >= 1
        return reply.status_code == 200

    until(comes_back)
    assert own.stop() == 0
    for mark in marks:
        assert mark not in "".join(said)
        assert mark not in "\n".join(own.lines)
    assert ".sock" not in "".join(said)
