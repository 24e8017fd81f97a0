"""What this process uses of the machine."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


def usage(role: str, started: float) -> dict[str, Any]:
    """`cpu_seconds`, `resident_bytes`, `open_fds`, `threads` of the process `role`, which began
    at `started` (seconds since 1970)."""
    return {
        "role": role,
        "pid": os.getpid(),
        "started": started,
        "cpu_seconds": time.process_time(),
        "resident_bytes": _resident(),
        "open_fds": _open_fds(),
        "threads": threading.active_count(),
    }


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        # Without /proc only the highest value so far is to be had, on macOS in bytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _open_fds() -> int:
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208
    except OSError:
        return 0
