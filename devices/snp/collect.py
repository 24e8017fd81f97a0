"""What a collector is: a way to make the CPU sign 64 bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hyperbeam import Unavailable


@dataclass(frozen=True, slots=True)
class Collected:
    """`report`: 1184 bytes. `table`: the host's certificate table, empty where it gave none."""

    report: bytes
    table: bytes


class Collector(Protocol):
    """Blocking calls into the kernel: called in a thread, one at a time."""

    name: str

    def available(self) -> str:
        """Why this machine does not offer it; "" where it does."""

    def collect(self, report_data: bytes) -> Collected:
        """A report over 64 bytes. Raises OSError, or Unavailable for what the CPU refuses."""


def unavailable(why: str) -> Unavailable:
    """503: no report is to be had."""
    return Unavailable(f"no CPU evidence: {why}", error="attestation_unavailable", retry_after=5)
