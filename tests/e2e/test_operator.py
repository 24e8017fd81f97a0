"""docs/operator.md on real nodes: of one process and of two workers, and after a restart."""

import json
import re
from pathlib import Path

import httpx
import pytest

from hyperbeam.operator.signing import signed
from hyperbeam.signers import read_key

from .process import ROOT, NodeProcess, serve
from .test_readme import run, shell

PAGE = (ROOT / "docs" / "operator.md").read_text()
KEY, CLAIM, SETTINGS, HISTORY, ROUTE = re.findall(
    r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
INFO = "/~meta@1.0/info"
TABLE = '[[routes]]\ntemplate = "/a/.*"\nnode = "http://127.0.0.1:9"\n'


def start(folder: Path, workers: int) -> NodeProcess:
    table = folder / "routes.toml"
    if not table.exists():
        table.write_text(TABLE)
    return serve("--home", folder / "home", "--routes", table, "--workers", str(workers))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_page(tmp_path: Path, workers: int) -> None:
    node = start(tmp_path, workers).listening()
    token = node.wait_for(r"--token ([0-9a-f]{32})")[1]
    address = shell(KEY, node, tmp_path).strip()
    assert (tmp_path / "operator.pem").stat().st_mode & 0o777 == 0o600
    refused = run(SETTINGS, node, tmp_path)
    assert "has no operator" in refused.stderr
    assert "not the token" in run(CLAIM.replace("TOKEN", "0" * 32), node, tmp_path).stderr
    assert shell(CLAIM.replace("TOKEN", token), node, tmp_path) == f"operator {address}\n"
    assert "operator already" in run(CLAIM.replace("TOKEN", token), node, tmp_path).stderr
    said = shell(SETTINGS, node, tmp_path)
    assert 'log.level = "info"' in said
    assert said.endswith("changed log.level\nchanged http.cors\n")
    assert shell(SETTINGS, node, tmp_path).endswith("\nnothing to change: it is so already\n")
    other = SETTINGS.replace("log.level=debug", "inference.backend=none")
    assert "inference.backend is set in hyperbeam.toml alone" in run(other, node, tmp_path).stderr
    shell(ROUTE, node, tmp_path)

    key = read_key(str(tmp_path / "operator.pem"))
    own = httpx.get(node.url + INFO, headers={"accept": "application/json"}).json()["address"]
    headers, body = signed(INFO, {"cache.writers": "all"}, own, key)
    assert httpx.post(node.url + INFO, headers=headers, content=body).status_code == 200
    for _ in range(8):  # each on a connection of its own, so at any worker
        replayed = httpx.post(node.url + INFO, headers=headers, content=body)
        assert (replayed.status_code, replayed.json()["error"]) == (403, "replayed_order")
        assert as_ordered(node)
    for secret in (token, "PRIVATE"):
        assert secret not in "\n".join(line for line in node.lines if "  claim " not in line)
    assert node.stop() == 0

    node = start(tmp_path, workers).listening()
    try:
        assert as_ordered(node)
        replayed = httpx.post(node.url + INFO, headers=headers, content=body)
        assert (replayed.status_code, replayed.json()["error"]) == (403, "replayed_order")
        entries = [json.loads(line) for line in shell(HISTORY, node, tmp_path).splitlines()]
        assert [entry["what"] for entry in entries] == ["claim", "change", "route", "change"]
        assert {entry["by"] for entry in entries} == {address}
        final = SETTINGS.splitlines()[1].replace("log.level=debug", "initialized=permanent")
        assert "changed initialized" in shell(final, node, tmp_path)
        assert "permanent" in run(final, node, tmp_path).stderr
        assert not any("  claim " in line for line in node.lines)
    finally:
        node.stop()


def as_ordered(node: NodeProcess) -> bool:
    """Whether whichever process answers has the settings and the route."""
    wrote = httpx.post(f"{node.url}/~cache@1.0/write&a=1")
    origin = {"origin": "https://b.example"}
    read = httpx.get(f"{node.url}/~message@1.0&a=1/a", headers=origin)
    routes = httpx.get(f"{node.url}/~router@1.0/routes", headers={"accept": "application/json"})
    return (
        wrote.status_code == 200
        and "access-control-allow-origin" not in read.headers
        and [route["template"] for route in routes.json()] == ["/a/.*", "/x/.*"]
    )
