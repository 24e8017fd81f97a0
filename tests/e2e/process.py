"""A node as its operator has it: started by `scripts/run`, stopped by a signal."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
HYPERBEAM = ROOT / ".venv" / "bin" / "hyperbeam"
TIMEOUT = 60.0


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of a node."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HB_")}
    if "HB_MODELS" in os.environ:
        kept["HB_MODELS"] = os.environ["HB_MODELS"]
    return {**kept, **extra}


class NodeProcess:
    """A running node. Lines of its two outputs are read as they come."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            list(map(str, arguments)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(**(env or {})),
            cwd=cwd,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._queue.put(self.lines[-1])
        self._queue.put(None)

    def wait_for(self, pattern: str, timeout: float = TIMEOUT) -> re.Match[str]:
        """The first line from now on that matches. Fails with the whole output if none comes."""
        while True:
            try:
                line = self._queue.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in:\n" + "\n".join(self.lines)) from None
            if line is None:
                raise AssertionError(f"ended before {pattern!r}:\n" + "\n".join(self.lines))
            if found := re.search(pattern, line):
                return found

    def listening(self) -> Self:
        """Wait until the node listens."""
        self.port = int(self.wait_for(r"listens on http://\S+:(\d+)$")[1])
        return self

    def ready(self) -> Self:
        """Wait until the embedded model answers."""
        self.listening()
        self.wait_for(r"inference@1\.0 .*ready")
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """The exit status, once the node and its output have ended."""
        status = self.process.wait(timeout)
        self._reader.join(timeout)
        return status

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


STARTED: list[NodeProcess] = []
"""Nodes of the test that runs; a test that fails leaves its own behind, `end_all` does not."""


def end_all() -> None:
    """End what the last test started and did not stop."""
    while STARTED:
        node = STARTED.pop()
        if node.process.poll() is None:
            node.process.kill()
            node.wait()


def serve(*arguments: str | Path, **options: Any) -> NodeProcess:
    """`hyperbeam serve` on a free port."""
    command = [str(HYPERBEAM), "serve", "--port", "0", *map(str, arguments)]
    STARTED.append(NodeProcess(command, **options))
    return STARTED[-1]
