"""Programs and files that stand for NVIDIA's own, for tests."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

NONCE = "ab" * 32


def entry(nonce: str = NONCE) -> dict[str, Any]:
    """Something in the shape of one GPU's evidence."""
    return {
        "version": "1.0",
        "arch": "Hopper",
        "nonce": nonce,
        "evidence": base64.b64encode(b"report").decode(),
        "certificate": base64.b64encode(b"chain").decode(),
    }


def program(path: Path, body: str) -> str:
    """An executable Python script."""
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


def printing(path: Path, answer: Any, *, before: str = "", status: int = 0) -> str:
    """A program that prints lines of a log, then `answer` as JSON, and ends with `status`."""
    text = before + json.dumps(answer, indent=2)
    return program(path, f"print({text!r})\nsys.exit({status})")
