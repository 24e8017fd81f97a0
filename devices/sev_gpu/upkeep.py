"""What is done beside answers: a first report, and looking up what reports are checked by."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hyperbeam import HyperbeamError
from hyperbeam.verify.challenge import challenge

from .checking import Checker
from .collect import REAL, Choice
from .reports import Report

if TYPE_CHECKING:
    from hyperbeam.node import Node

LOOK_UP_AGAIN = 600.0
"""Seconds between two look-ups while reports do not verify."""

log = logging.getLogger("hyperbeam.sev_gpu")


class Upkeep:
    """Keeps the key set's word on the GPUs, manifests and revocation answers up to date.

    An answer never waits for NVIDIA's services: they are asked here, and remembered.
    `report` gives a report over a nonce (hex).
    """

    def __init__(
        self,
        node: Node,
        choice: Choice,
        checker: Checker,
        report: Callable[[str], Awaitable[Report]],
    ) -> None:
        self._node = node
        self._choice = choice
        self._checker = checker
        self._report = report
        self._running: asyncio.Task[None] | None = None
        self._again_at = 0.0

    def start(self) -> None:
        """Try the GPUs once, where there are any."""
        if any(name in REAL for name in self._choice.collectors):
            self._running = asyncio.create_task(self._first(), name="sev_gpu first report")

    def seen(self, report: Report) -> None:
        """Called with each report: one that does not verify may lack what can be looked up."""
        idle = self._running is None or self._running.done()
        if report.verified or report.backend not in REAL or not idle:
            return
        if time.monotonic() >= self._again_at:
            self._running = asyncio.create_task(self._look_up(report), name="sev_gpu look-up")

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _first(self) -> None:
        try:
            collector = await self._choice.find()
            _, nonce = challenge(self._node.keys.current.name, secrets.token_hex(32))
            report = await self._report(nonce)
            modes = await collector.info()
        except HyperbeamError as error:
            log.info("no GPU evidence: %s", error.detail)
            return
        if modes.get("cc") is not None and modes.get("devtools") is not None:
            ueids = [str(claims["ueid"]) for claims in report.claims]
            gpu = {"cc": modes["cc"], "devtools": modes["devtools"], "ueids": ueids}
            await asyncio.to_thread(self._node.keys.set_gpu, gpu)
        await self._look_up(report)

    async def _look_up(self, report: Report) -> None:
        self._again_at = time.monotonic() + LOOK_UP_AGAIN
        try:
            verdict = await self._checker.look_up(report.evidences, report.nonce)
        except HyperbeamError as error:
            log.info("evidence could not be looked up: %s", error.detail)
            return
        said = verdict.reason or "verified"
        log.info("%d GPUs by %s: %s", len(report.evidences), report.backend, said)
