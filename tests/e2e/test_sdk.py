"""The openai SDK, both majors, each in an interpreter with its own folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .process import ROOT, NodeProcess

SCRIPT = Path(__file__).with_name("sdk_script.py")


@pytest.mark.parametrize("base", ["/~inference@1.0", "/~inference@1.0/v1", "/v1"])
@pytest.mark.parametrize("major", [2, 3])
def test_sdk(node: NodeProcess, major: int, base: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), node.url + base, str(major)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv" / f"openai-{major}")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all done"
