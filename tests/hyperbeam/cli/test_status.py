import copy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from hyperbeam.cli import cli
from hyperbeam.cli.top import latency_of, rates_of
from hyperbeam.observe.families import HISTOGRAMS

STATE: dict[str, Any] = {
    "version": "1.2.3", "address": "a", "serving": True, "draining": False,
    "backend": {"status": "ok", "kind": "llama", "model": "tiny", "detail": ""},
    "nodes": [
        {"id": "local", "state": "up", "in_flight": 2, "latency": 0.012, "failures": 0,
         "last_error": "", "since": 0, "models": []},
        {"id": "http://[fe80::1]/x", "state": "down", "in_flight": 0, "latency": 0,
         "failures": 3, "last_error": "refused [bold]", "since": 0, "models": []},
    ],
    "routes": [{"id": "/v1/.*", "device": "inference@1.0", "nodes": ["local"],
                "in_flight": 2, "queued": 1},
               {"id": "/health", "device": "inference@1.0", "nodes": ["local"]}],
    "store": {"kind": "lmdb", "bytes": 8192}, "time": 1100.0,
    "requests": {"total": 10, "in_flight": 2, "by_status": {"200": 9, "503": 1}},
    "rates": {"requests": 1.5, "errors": 0, "prompt_tokens": 100, "completion_tokens": 20,
              "chunks": 20},
    "latency": {name: {"p50": 0.1, "p90": 0.2, "p99": 0.3} for name in HISTOGRAMS},
    "histograms": {name: {"bounds": list(one.bounds), "counts": [0] * (len(one.bounds) + 1)}
                   for name, one in HISTOGRAMS.items()},
    "tokens": {"tiny": {"prompt": 5, "completion": 10}},
    "retries": 0, "attestations": {}, "receipts": {"queued": 0},
    "processes": [{"role": "node", "pid": 1, "started": 1000.0, "cpu_seconds": 1.0,
                   "resident_bytes": 50_000_000, "open_fds": 20, "threads": 4}],
}  # fmt: skip


class Answers(BaseHTTPRequestHandler):
    reply: ClassVar[tuple[int, Any]] = (200, STATE)

    def do_GET(self) -> None:
        status, value = type(self).reply
        body = json.dumps(value).encode()
        self.send_response(status if self.path == "/~metrics@1.0/summary" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[tuple[type[Answers], str]]:
    handler = type("Handler", (Answers,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler, str(server.server_port)
        server.shutdown()
        thread.join()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=True)
    return result.exit_code, result.output


def test_a_node_that_serves(answers: tuple[type[Answers], str]) -> None:
    code, said = run("status", "--port", answers[1])
    assert code == 0
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert lines[f"http://127.0.0.1:{answers[1]}"].endswith("serving")
    assert "1.2.3, up 1 min" in lines["version"]
    assert "llama tiny: ok" in lines["backend"]
    assert "2 in flight, 1.5/s" in lines["requests"]
    assert "p50 100 ms, p99 300 ms" in lines["latency"]
    assert "up" in lines["local"]
    assert lines["http://[fe80::1]/x"].endswith("refused [bold]")
    assert "(2 in flight, 1 waiting)" in lines["/v1/.*"]
    code, said = run("status", "--port", answers[1], "--json")
    assert (code, json.loads(said)) == (0, STATE)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((200, {**STATE, "serving": False}), "not serving"),
        ((200, {**STATE, "serving": False, "draining": True}), "draining"),
        ((403, {"status": 403, "body": "Metrics are not for you"}), "403: Metrics are not for you"),
        ((200, ["?"]), "no node of this kind"),
        ((404, "no JSON object"), "404"),
    ],
)
def test_all_else_is_exit_status_1(
    answers: tuple[type[Answers], str], reply: tuple[int, Any], said: str
) -> None:
    answers[0].reply = reply
    code, output = run("status", "--url", f"127.0.0.1:{answers[1]}/")
    assert code == 1
    assert said in output


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_summary_of_another_version_is_said_to_be_one(
    answers: tuple[type[Answers], str], command: str
) -> None:
    answers[0].reply = (200, {"serving": True, "draining": False, "backend": None})
    result = CliRunner().invoke(cli, [command, "--port", answers[1]])
    assert "another version" in str(result.exception)


def test_nothing_that_a_node_says_acts_on_the_terminal(answers: tuple[type[Answers], str]) -> None:
    answers[0].reply = (200, {**STATE, "version": "1\x1b[2J\n"})
    assert "1?[2J?, up" in run("status", "--port", answers[1])[1]


def test_nobody_there_and_wrong_usage() -> None:
    code, said = run("status", "--port", "1")
    assert code == 1
    assert "no node answers at http://127.0.0.1:1: connection refused" in said
    for arguments in (("--url", "ftp://x"), ("--url", "x", "--port", "1")):
        result = CliRunner().invoke(cli, ["status", *arguments])
        assert result.exception is not None
        assert "--url" in str(result.exception)


def test_top_prints_one_picture_where_it_is_piped(answers: tuple[type[Answers], str]) -> None:
    code, said = run("top", "--port", answers[1])
    assert code == 0
    for part in ("serving", "tiny ok", "http://[fe80::1]/x", "refused [bold]", "1.5/s", "47.7 MiB"):
        assert part in said


def test_top_shows_what_happened_between_two_pictures() -> None:
    before, now = copy.deepcopy(STATE), copy.deepcopy(STATE)
    now["time"] += 2
    now["requests"]["by_status"] = {"200": 13, "503": 2}
    now["requests"]["total"] = 15
    now["tokens"]["new"] = {"prompt": 7}
    now["histograms"]["request_seconds"]["counts"][0] += 4
    rates = rates_of(now, before)
    assert rates == {
        "requests": 2.5, "errors": 0.5, "prompt_tokens": 3.5, "completion_tokens": 0
    }  # fmt: skip
    found = latency_of("request_seconds", now, before)
    assert found["p99"] is not None
    assert found["p99"] <= 0.001
    # A node that was started anew has counted less: that is no negative rate.
    assert rates_of(before, {**now, "time": 0.0})["requests"] == 0
