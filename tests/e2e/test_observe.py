"""What an operator sees of a node from outside: the log, status, top."""

import json
import subprocess
from pathlib import Path

import httpx

from .process import HYPERBEAM, NodeProcess, clean_environment, serve


def command(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [HYPERBEAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=clean_environment(),
    )
    return done.returncode, done.stdout + done.stderr


def access(node: NodeProcess, id: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(node.wait_for(rf'\{{.*"access".*"{id}".*')[0])
    return found


def test_json_lines_status_and_top(home: Path, tmp_path: Path) -> None:
    settings = ("--set", "log.format=json", "--set", "log.access=true")
    node = serve("--home", home, *settings).listening()
    reply = httpx.get(f"{node.url}/v1/models?key=s3cr3t", headers={"x-request-id": "mine"})
    assert reply.headers["x-request-id"] == "mine"
    line = access(node, "mine")
    assert line["path"] == "/v1/models"
    assert line["status"] == reply.status_code
    assert line["route"]
    port = str(node.port)
    status, said = command("status", "--port", port, folder=tmp_path)
    assert status == 1, said
    assert "not serving" in said
    assert "local" in said
    status, said = command("top", "--port", port, folder=tmp_path)
    assert status == 0, said
    assert "not serving" in said
    assert httpx.get(f"{node.url}/metrics").text.count("hyperbeam_requests_total{") >= 2
    assert node.stop() == 0
    assert "s3cr3t" not in "\n".join(node.lines)
    events = [line for line in node.lines if line.startswith("{")]
    assert all(json.loads(event)["topic"] for event in events)
    assert command("status", "--port", port, folder=tmp_path)[0] == 1


def test_an_unknown_topic_is_refused(home: Path) -> None:
    node = serve("--home", home, "--print", "http,htpp")
    assert node.wait() == 2
    (line,) = node.lines
    assert "'htpp'" in line
    assert "resolver" in line
