"""Every command of the README, as it is written there, but for the port."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import GREETER
from .process import ROOT, NodeProcess, serve

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
PYTHON = [text for language, text in BLOCKS if language == "python"]
TOML = [text for language, text in BLOCKS if language == "toml"]
CURLS = [text for text in SHELL if text.startswith("curl")]
RUN_BY = {
    "scripts/run\n": "the fixture `node`",
    "scripts/test\n": "whoever runs this",
}


def shell(text: str, node: NodeProcess) -> str:
    done = subprocess.run(
        ["bash", "-euc", text.replace("8734", str(node.port)).replace("curl", "curl -sS -m 120")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_every_shell_block_is_run_by_a_test() -> None:
    run = set(RUN_BY) | set(CURLS) | {SHELL[-1]}
    assert set(SHELL) == run
    assert SHELL[-1].startswith("scripts/run --device-path my-devices\n")
    for script in RUN_BY:
        assert os.access(ROOT / script.strip(), os.X_OK)


def test_health(node: NodeProcess) -> None:
    assert '"status":"ok"' in shell(CURLS[0], node).replace(" ", "")


def test_chat(node: NodeProcess) -> None:
    answer = shell(CURLS[1], node)
    assert "Paris" in answer
    assert "smollm2-135m-instruct" in answer


@pytest.mark.parametrize("major", [2, 3])
def test_sdk(node: NodeProcess, major: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PYTHON[0].replace("8734", str(node.port))],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv" / f"openai-{major}")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Paris" in done.stdout


def test_device(node: NodeProcess) -> None:
    assert PYTHON[1].strip() == GREETER.strip()
    assert shell(SHELL[-1].partition("\n")[2], node) == "Hello, Ada"


def test_route(home: Path, tmp_path: Path) -> None:
    routes = tmp_path / "routes.toml"
    routes.write_text((ROOT / "routes.toml").read_text() + TOML[0])
    node = serve("--home", home, "--routes", routes).listening()
    try:
        table = shell("curl localhost:8734/~router@1.0/routes -H 'accept: application/json'", node)
    finally:
        assert node.stop() == 0
    assert "http://127.0.0.1:9000" in table


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).is_file(), target
