"""Every command of the README, as it is written there, but for the port."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import GREETER
from .process import HYPERBEAM, ROOT, NodeProcess, serve

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
PYTHON = [text for language, text in BLOCKS if language == "python"]
TOML = [text for language, text in BLOCKS if language == "toml"]
CURLS = [text for text in SHELL if text.startswith("curl")]
VERIFYING = [text for text in SHELL if "hyperbeam verify" in text]
OPERATING = [text for text in SHELL if re.match(r"\.venv/bin/hyperbeam (?!verify)", text)]
(DEVICE,) = [text for text in SHELL if text.startswith("scripts/run --device-path my-devices\n")]
RUN_BY = {
    "scripts/run\n": "the fixture `node`",
    "scripts/run --set sev_gpu.backend=simulated\n": "the fixture `attested`",
    "scripts/test\n": "whoever runs this",
}


def run(text: str, node: NodeProcess, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    text = text.replace("8734", str(node.port)).replace("curl", "curl -sS -m 120")
    return subprocess.run(
        ["bash", "-euc", text.replace(".venv/bin/hyperbeam", str(HYPERBEAM))],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
    )


def shell(text: str, node: NodeProcess, cwd: Path | None = None) -> str:
    done = run(text, node, cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_shell_block_is_run_by_a_test() -> None:
    run = {*RUN_BY, *CURLS, *VERIFYING, *OPERATING, DEVICE}
    assert set(SHELL) == run
    for script in RUN_BY:
        assert os.access(ROOT / script.split()[0], os.X_OK)


def test_health(node: NodeProcess) -> None:
    assert '"status":"ok"' in shell(CURLS[0], node).replace(" ", "")


def test_chat(node: NodeProcess) -> None:
    answer = shell(CURLS[1], node)
    assert "Paris" in answer
    assert "smollm2-135m-instruct" in answer


def test_verify(attested: NodeProcess, tmp_path: Path) -> None:
    answer, receipt = VERIFYING
    done = run(answer, attested, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "NOT VERIFIED: root-not-trusted" in done.stdout
    done = run(receipt, attested, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED: signed" in done.stdout


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
    assert shell(DEVICE.partition("\n")[2], node) == "Hello, Ada"


def test_operating(node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HB_HTTP_PORT", str(node.port))
    monkeypatch.setenv("HB_HOME", str(tmp_path / "home"))
    said = "".join(shell(text, node) for text in OPERATING)
    assert "routes, sound" in said
    assert "/v1/.*  -> inference@1.0" in said
    assert re.search(r"^hb-[\w-]{43}$", said, re.MULTILINE)
    assert "smollm2-135m-instruct" in said


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
