"""The writer is killed before each step of its writing, and started again."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.receipt_log.logs import Logs
from hyperbeam.keys import Keys
from hyperbeam.receipt_file import ReceiptFile
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import merkle
from hyperbeam.verify.checkpoint import ED25519, SignedCheckpoint, VerifierKey

from .logs import FAST, check_growth, check_no_fork, proves

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


def test_killed_at_every_step(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.devices.receipt_log.killed", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    logs: Counter[int] = Counter()
    heads: list[SignedCheckpoint] = []
    for home in folder.iterdir():
        lines = (home / "heads").read_text().splitlines()
        own = [notes.parse(json.loads(line)) for line in lines]
        logs[check(home, own)] += 1
        heads += own
    # Also among the homes that are copies of one.
    check_no_fork(heads)
    # Some steps are harmless, others cost the log its name.
    assert logs[1] > 5
    assert logs[2] > 5
    assert sum(logs.values()) > 40


def check(home: Path, heads: list[SignedCheckpoint]) -> int:
    """Every head is signed and continued, every stored receipt proven. How many logs there are."""
    assert len(heads) >= 2
    keys = Keys(home)
    keys.open()
    known = [
        bytes.fromhex(key["key"])
        for path in (home / "keysets").glob("*.json")
        for key in json.loads(path.read_bytes())["log_keys"]
    ]
    for each in heads:
        origin = each.checkpoint.origin
        assert any(notes.verify(each, VerifierKey(origin, ED25519, key)) for key in known)

    logs = Logs(home / "log", keys.identity.address, lambda: keys.current)
    logs.open(unused=False)
    assert logs.live.origin == heads[-1].checkpoint.origin
    assert logs.live.size >= heads[-1].checkpoint.size
    check_growth([*heads, logs.live.head(keys.current)], logs)
    receipts = ReceiptFile(home / "receipts.sqlite")
    receipts.open()
    assert receipts.unlogged(10) == []
    bodies = receipts._read("SELECT body FROM receipts WHERE seq > ?", 0)
    assert len(bodies) >= 3
    assert all(proves(logs, merkle.leaf_hash(body)) for (body,) in bodies)
    number = len(logs.ended()) + 1
    logs.close()
    receipts.close()
    return number
