"""sev_gpu@1.0: evidence that NVIDIA GPUs sign, and what it is worth."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyperbeam import (
    BadRequest,
    Device,
    HyperbeamError,
    Message,
    MethodNotAllowed,
    TooLarge,
    Unavailable,
    key,
)
from hyperbeam.verify import jcs, statement
from hyperbeam.verify.challenge import challenge
from hyperbeam.verify.checks import Malformed
from hyperbeam.verify.reading import read_object

from . import asked, collect, explain, verifying
from .checking import Checker
from .config import SevGpuConfig
from .queue import ReportQueue
from .reports import Report, Reporter
from .upkeep import Upkeep

if TYPE_CHECKING:
    from hyperbeam.node import Node

JSON = "application/json"
TEXT = "text/plain"
MODES = ("each", "batch")
MAX_ASKED = 64 * 1024


class SevGpu(Device):
    """Has this machine's GPUs sign hashes of what the node made, and checks such evidence.

    `generate`, `verify`, `info`; the device's own path explains them.
    """

    name = "sev_gpu@1.0"
    sealed = True
    single = True
    Config = SevGpuConfig

    def __init__(self, node: Node, config: SevGpuConfig | None = None) -> None:
        config = config or SevGpuConfig()
        super().__init__(node, config)
        self._choice = collect.Choice(collect.make(config))
        self._checker = _checker(config, self._choice)
        self._reporter = Reporter(node, self._choice, self._checker)
        self._queue: ReportQueue[Report] = ReportQueue(self._make, config.queue)
        self.upkeep = Upkeep(
            node, self._choice, self._checker, lambda nonce: self._queue.each(nonce, self.name)
        )

    async def start(self) -> None:
        """Try the GPUs once, beside everything else: it also says which they are."""
        self.upkeep.start()

    async def ready(self, url: str) -> str:
        """A line where evidence is simulated, or cannot be had though the config asks for it."""
        if self.config.backend == "simulated":
            return f"{self.name} SIMULATES its evidence: it proves nothing"
        if self.config.backend in ("auto", "none"):
            return ""
        try:
            collector = await self._choice.find()
        except Unavailable as error:
            return f"{self.name} cannot attest: {error.detail}"
        return f"{self.name} attests with {collector.name}"

    async def stop(self) -> None:
        """End reports and verifications."""
        await self._queue.aclose()
        await self.upkeep.stop()
        await self._choice.aclose()

    def describe(self) -> Message:
        """Which source of evidence the config asks for."""
        return {"backend": self.config.backend}

    @key(last=True)
    async def index(self, base: Any, request: Message) -> Message:
        """What a pass means and what it does not, in plain words."""
        _allow(request, "GET", "HEAD")
        host = str(request.get("host") or f"127.0.0.1:{self.node.server.port}")
        try:
            collector = await self._choice.find()
            state = f"It gives evidence by {collector.name}."
            if collector.name == "simulated":
                state = "It SIMULATES its evidence, for development: that proves nothing."
        except Unavailable as error:
            state = f"It gives no evidence now: {error.detail}"
        return _reply(explain.text(f"http://{host}", state), TEXT)

    @key(last=True)
    async def generate(self, base: Any, request: Message) -> Message:
        """Evidence over `nonce`, 64 hex characters of your own.

        The GPU signs the SHA-256 of `challenge`, which holds the nonce. By the operator's order it
        signs `bare`, 64 hex characters, as they are.
        """
        attest = _private(request).get("attest")
        if attest is not None:
            return await self._attest(attest)
        _allow(request, "GET", "POST")
        if _says(request, "bare") is not None:
            return await self._bare(request)
        self.node.access.check(request)
        nonce = _nonce_to_sign(base, request)
        keyset = self.node.keys.current.name
        text, hashed = challenge(keyset, nonce)
        report = await self._queue.each(hashed, str(_private(request).get("client", "")))
        _check_cpu(report, keyset)
        answer = {"challenge": text, "nonce": hashed, "keyset": keyset, **report.as_dict()}
        return _reply(_dump(answer), JSON)

    @key(last=True)
    async def verify(self, base: Any, request: Message) -> Message:
        """POST an answer, attestation, evidence or token: true or false, the whole as JSON.

        `nonce` is the one you chose. `policy` in the body may only demand more.
        """
        _allow(request, "GET", "HEAD", "POST")
        try:
            said = request.get("nonce")
            nonce = None if said is None else asked.read_nonce(said)
            body = _body(request)
            outcome = await self._checker.run(lambda: self._judge(body, nonce))
        except (BadRequest, TooLarge) as error:
            error.headers["x-verify-reason"] = _reason(error)
            raise
        headers = {"x-verify-reason": outcome.reason} if outcome.reason else {}
        if _wants_json(request):
            return _reply(_dump(outcome.document), JSON, headers)
        return _reply("true" if outcome.verified else "false", TEXT, headers)

    @key(last=True)
    async def info(self, base: Any, request: Message) -> Message:
        """GPUs, driver, CC mode, and which sources of evidence exist here or why not."""
        not_chosen = f"not chosen: sev_gpu.backend is {self.config.backend}"
        reasons = dict.fromkeys(collect.SOURCES, not_chosen) | await self._choice.reasons()
        found: dict[str, Any] = {"gpus": [], "driver": None, "cc": None, "devtools": None}
        used = None
        with contextlib.suppress(Unavailable):
            used = await self._choice.find()
        shown = used or next(iter(self._choice.collectors.values()), None)
        if shown is not None:
            found = await shown.info()
        answer = {
            "backend": used.name if used is not None else None,
            "configured": self.config.backend,
            **found,
            "backends": {
                name: {"available": not reason, **({"reason": reason} if reason else {})}
                for name, reason in reasons.items()
            },
            "waiting": self._queue.waiting,
            "policy": self._checker.policy.as_dict(),
        }
        return _reply(_dump(answer), JSON)

    async def _attest(self, attest: Any) -> Message:
        """A call from inside this process: `probe`, `raw` with `mode` and `client`, or `nonce`."""
        if not isinstance(attest, Mapping):
            raise TypeError("priv.attest is a message")
        if attest.get("probe"):
            return {"backend": (await self._choice.find()).name}
        client = str(attest.get("client", ""))
        if "nonce" in attest:
            nonce = asked.read_nonce(attest["nonce"])
            report = await self._queue.each(nonce, client)
            return {"nonce": nonce, "batch": None, **report.as_dict()}
        raw, mode = attest["raw"], attest.get("mode", "each")
        said = jcs.parse(raw, "what is to be attested")
        if said.get("v") != statement.V or mode not in MODES:
            raise ValueError(f"attest {statement.V} by {' or '.join(MODES)}, nothing else")
        if mode == "batch":
            nonce, place, report = await self._queue.batch(raw)
        else:
            nonce, place = hashlib.sha256(raw.encode()).hexdigest(), None
            report = await self._queue.each(nonce, client)
        _check_cpu(report, said.get("keyset"))
        return {"nonce": nonce, "batch": place, **report.as_dict()}

    async def _bare(self, request: Message) -> Message:
        """By the operator's order alone: whoever chooses what is signed can vouch for anything."""
        order = await self.node.operator.authorize(request)
        nonce = asked.read_nonce(order.keys.get("bare"))
        report = await self._queue.each(nonce, order.by)
        return _reply(_dump({"nonce": nonce, **report.as_dict()}), JSON)

    def _judge(self, body: bytes, nonce: str | None) -> verifying.Outcome:
        try:
            question = asked.read(body, nonce)
        except Malformed as error:
            return verifying.refused(error)
        return verifying.judge(question, self._checker, self.node.keys.find)

    async def _make(self, nonce: str) -> Report:
        report = await self._reporter.make(nonce)
        self.upkeep.seen(report)
        return report


def _checker(config: SevGpuConfig, choice: collect.Choice) -> Checker:
    if config.backend != "simulated":
        return Checker(config)
    from .simulated import SimulatedCollector

    made_up = choice.collectors["simulated"]
    assert isinstance(made_up, SimulatedCollector)
    return Checker(config, made_up.simulated_root, made_up.fetch)


def _check_cpu(report: Report, keyset: Any) -> None:
    if report.cpu is not None and report.cpu["keyset"] != keyset:
        raise collect.unavailable("the node changed its key set meanwhile; ask again", 1)


def _nonce_to_sign(base: Any, request: Message) -> str:
    """The caller's nonce, from the body or the query; there is no default."""
    given = (_says(request, "nonce"), request.get("nonce"), _of(base).get("nonce"))
    said = [asked.read_nonce(value) for value in given if value is not None]
    if not said:
        raise BadRequest(
            "generate needs a nonce of 64 hexadecimal characters that you chose at random: "
            "?nonce=...",
            param="nonce",
        )
    if len(set(said)) > 1:
        raise BadRequest("the request names two different nonces", param="nonce")
    return said[0]


def _says(request: Message, name: str) -> Any:
    """What the body of a request has under `name`."""
    body = _body(request)
    if not body.strip():
        return None
    if len(body) > MAX_ASKED:
        raise TooLarge("a request for evidence has a nonce and nothing else")
    try:
        return read_object(body, "the body", "invalid-json").get(name)
    except Malformed as error:
        raise BadRequest(error.detail, error="invalid_json") from None


def _body(request: Message) -> bytes:
    body = request.get("body", b"")
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if not isinstance(body, bytes):
        raise BadRequest("the body has to be text: JSON as it came", param="body")
    return body


def _wants_json(request: Message) -> bool:
    codec, accept = request.get("accept-codec"), request.get("accept")
    return codec == "json@1.0" or (isinstance(accept, str) and JSON in accept.lower())


def _allow(request: Message, *methods: str) -> None:
    method = str(request.get("method") or "GET").upper()
    if method not in methods:
        raise MethodNotAllowed(
            f"{method} is not for this; use {' or '.join(methods)}",
            headers={"allow": ", ".join(methods)},
        )


def _reason(error: HyperbeamError) -> str:
    """The word of the verdicts for a refusal."""
    return "request-malformed" if error.error == "bad_request" else error.error.replace("_", "-")


def _private(request: Message) -> Mapping[str, Any]:
    return _of(request.get("priv"))


def _of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _reply(body: str, kind: str, headers: Mapping[str, str] | None = None) -> Message:
    return {
        **(headers or {}),
        "status": 200,
        "cache-control": "no-store",
        "content-type": kind,
        "body": body.encode("utf-8", "replace"),
    }
