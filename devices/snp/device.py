"""snp@1.0: the CPU's word on which virtual machine holds the node's keys."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hyperbeam import BadRequest, ConfigError, Device, Message, key
from hyperbeam.verify import snp
from hyperbeam.verify.challenge import quote
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.snp.report import parse

from . import asking
from .certificates import Certificates
from .collect import Collected, Collector, unavailable
from .config import SnpConfig
from .configfs import ConfigFS
from .ioctl import GuestDevice
from .page import PAGE
from .threads import Lane

if TYPE_CHECKING:
    from hyperbeam.node import Node

_NONCE = re.compile(r"[0-9a-f]{64}\Z")
_NO_STORE = {"cache-control": "no-store"}

log = logging.getLogger("hyperbeam.snp")


class Snp(Device):
    """Reports of an AMD SEV-SNP confidential VM: made where the node runs in one, checked
    anywhere."""

    name = "snp@1.0"
    sealed = True
    single = True
    Config = SnpConfig

    def __init__(self, node: Node, config: SnpConfig | None = None) -> None:
        super().__init__(node, config)
        self._config = config or SnpConfig()
        try:
            self.policy = snp.Policy.parse(dict(self._config.policy))
        except Malformed as error:
            raise ConfigError(f"[snp.policy]: {error.detail}") from None
        self.collectors: list[Collector] = [
            ConfigFS(Path(self._config.configfs)),
            GuestDevice(Path(self._config.device)),
        ]
        self._certificates = Certificates(
            self._config.certificates, self._config.kds, node.upstream, self._config.timeout
        )
        self._lane = Lane()

    @key
    async def generate(self, base: Any, request: Message) -> Message:
        """A report bound to the node's key set and the caller's nonce: `generate?nonce=HEX`.

        Answers `{keyset, nonce, gpu, report, certificates, backend}`; 503
        `attestation_unavailable` where the node is in no confidential VM. A device in the
        process asks by `priv.quote`: `{nonce, gpu}`, or `{probe: true}` for `{backend}`.
        """
        asked = (request.get("priv") or {}).get("quote")
        if asked is None:
            self.node.access.check(request)
            nonce = _hex(request.get("nonce"), "nonce")
            return _json(await self._quote(nonce, None))
        if asked.get("probe"):
            collector = await self._collector()
            return {"backend": collector.name}
        nonce, gpu = asked.get("nonce"), asked.get("gpu")
        return await self._quote(
            None if nonce is None else _hex(nonce, "nonce"),
            None if gpu is None else _hex(gpu, "gpu"),
        )

    @key
    async def verify(self, base: Any, request: Message) -> Message:
        """Check a report: POST `{report, certificates, report_data | quote, policy?}`.

        Answers `true` or `false` with the reason in `x-verify-reason`; the whole verdict for
        `accept: application/json`.
        """
        try:
            asked = asking.read(_body(request))
            policy = self.policy
            if asked.policy is not None:
                policy = policy.tightened(asked.policy)
        except Malformed as error:
            _refuse(error)
        verdict = await asyncio.to_thread(
            snp.verify,
            asked.report,
            asked.certificates,
            policy,
            report_data=asked.report_data,
        )
        reason = {"x-verify-reason": verdict.reason} if verdict.reason else {}
        if _wants_json(request):
            return {**_json(verdict.as_dict()), **reason}
        plain = {"status": 200, "content-type": "text/plain", **_NO_STORE}
        return {**plain, **reason, "body": "true" if verdict.verified else "false"}

    @key
    async def info(self, base: Any, request: Message) -> Message:
        """Whether this node has CPU evidence, by which backend, and why not by the others."""
        reasons = await self._reasons()
        chosen = next((name for name, why in reasons.items() if not why), "")
        return {
            "available": bool(chosen),
            "backend": chosen,
            "backends": {name: why or "available" for name, why in reasons.items()},
            "certificates": self._config.certificates,
            "kds": self._config.kds,
            "policy": self.policy.as_dict(),
            "policy_sha256": self.policy.digest(),
        }

    @key
    async def index(self, base: Any, request: Message) -> Message:
        """What a report means, and what it does not."""
        return {"status": 200, "content-type": "text/plain; charset=utf-8", "body": PAGE}

    async def _quote(self, nonce: str | None, gpu: str | None) -> Message:
        collector = await self._collector()
        keyset = self.node.keys.current.name
        wanted = quote(keyset, nonce, gpu)
        collected = await self._collect(collector, wanted)
        try:
            report = parse(collected.report)
        except Malformed as error:
            raise unavailable(f"what {collector.name} gave is no report: {error.detail}") from None
        if report.report_data != wanted:
            raise unavailable(f"the report that {collector.name} gave is bound to something else")
        certificates = await self._certificates.of(report, collected.table)
        return {
            "keyset": keyset,
            "nonce": nonce,
            "gpu": gpu,
            "report": base64.b64encode(collected.report).decode(),
            "certificates": [base64.b64encode(der).decode() for der in certificates],
            "backend": collector.name,
        }

    async def _collect(self, collector: Collector, report_data: bytes) -> Collected:
        try:
            return await self._lane.call(
                lambda: collector.collect(report_data), self._config.timeout
            )
        except OSError as error:
            log.warning("%s gave no report: %s", collector.name, error)
            said = error.strerror or type(error).__name__
            raise unavailable(f"{collector.name} does not work: {said}") from None

    async def _collector(self) -> Collector:
        """The backend to use. Raises Unavailable with why there is none."""
        reasons = await self._reasons()
        for collector in self.collectors:
            if not reasons[collector.name]:
                return collector
        raise unavailable("; ".join(f"{name}: {why}" for name, why in reasons.items()))

    async def _reasons(self) -> dict[str, str]:
        chosen = self._config.backend
        asked = [each for each in self.collectors if chosen in ("auto", each.name)]
        off = {each.name: "not chosen in [snp] backend" for each in self.collectors}
        found = await self._lane.call(
            lambda: {each.name: each.available() for each in asked}, self._config.timeout
        )
        return {**off, **found}


def _hex(value: Any, name: str) -> str:
    if isinstance(value, str) and _NONCE.match(value):
        return value
    raise BadRequest(
        f"{name} has to be 64 lower-case hex characters, such as a fresh random number",
        param=name,
    )


def _body(request: Message) -> bytes:
    body = request.get("body")
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if not isinstance(data, bytes) or not data.strip():
        raise Malformed("send a JSON body: report, certificates, quote", "request-malformed")
    return data


def _refuse(error: Malformed) -> NoReturn:
    error.headers["x-verify-reason"] = error.reason
    raise error


def _json(value: Message) -> Message:
    body = json.dumps(value, separators=(",", ":"))
    return {"status": 200, "content-type": "application/json", **_NO_STORE, "body": body}


def _wants_json(request: Message) -> bool:
    accept = request.get("accept")
    parts = accept.lower().split(",") if isinstance(accept, str) else []
    return any(part.partition(";")[0].strip() == "application/json" for part in parts)
