"""The device on as much of a node as it needs, with real keys and receipts, called by path."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from devices.inference import Inference
from devices.inference.config import InferenceConfig
from devices.inference.events import EventParser
from hyperbeam import HyperbeamError, Message, Stream, Unavailable
from hyperbeam.access import Access
from hyperbeam.config import AccessConfig
from hyperbeam.http.upstream import Upstream
from hyperbeam.keys import Keys
from hyperbeam.observe.metrics import Metrics
from hyperbeam.receipts import Receipts
from hyperbeam.routing import Route, RouteNode, RouteTable
from hyperbeam.routing.backends import Backends
from hyperbeam.routing.dispatch import Dispatcher
from hyperbeam.serve.board import Board
from hyperbeam.serve.counters import LocalCounters
from hyperbeam.store import MemoryStore

from .dummy import Dummy


class Evidence:
    """Stands for sev_gpu@1.0: says what it was asked, fails when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails: HyperbeamError | None = None
        self.probe_fails: HyperbeamError | None = None
        self.hold: asyncio.Event | None = None
        self.left = asyncio.Event()

    async def resolve(self, base: Any, request: Message) -> Any:
        assert request["path"] == "/~sev_gpu@1.0/generate"
        asked = request["priv"]["attest"]
        if asked.get("probe"):
            if self.probe_fails is not None:
                raise self.probe_fails
            return {"backend": "stand-in"}
        self.asked.append(asked)
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.left.set()
                raise
        if self.fails is not None:
            raise self.fails
        return {
            "nonce": hashlib.sha256(asked["raw"].encode()).hexdigest(),
            "batch": None,
            "backend": "stand-in",
            "evidences": [{"arch": "NONE"}],
            "token": "W10=",
            "claims": [],
            "verified": False,
            "cpu": None,
            "reason": "more than an attestation has",
        }


def no_evidence(why: str = "GPU 0 hangs") -> Unavailable:
    return Unavailable(why, error="attestation_unavailable")


class Room:
    """See above. `evidence` stands for the GPU."""

    def __init__(self, home: Path, backend: Dummy | None) -> None:
        self.upstream = Upstream()
        self.evidence = Evidence()
        self.keys = Keys(home)
        self.receipts = Receipts(home / "receipts.sqlite")
        self.server = SimpleNamespace(draining=False)
        self.backends = Backends()
        self.dispatch = Dispatcher(self.upstream, LocalCounters(), self.backends, probing=False)
        self.node = node = SimpleNamespace(
            upstream=self.upstream,
            backends=self.backends,
            dispatch=self.dispatch,
            routes=RouteTable([]),
            role="single",
            board=Board(),
            keys=self.keys,
            receipts=self.receipts,
            server=self.server,
            metrics=Metrics(),
            access=Access(AccessConfig(), MemoryStore(), LocalCounters()),
            resolve=self.evidence.resolve,
        )
        self.device = Inference(cast(Any, node), InferenceConfig(slots=2), backend)

    async def __aenter__(self) -> Self:
        self.keys.open()
        self.receipts.open()
        await self.device.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()
        await self.receipts.close()

    def use(self, *nodes: RouteNode, **fields: Any) -> Route:
        """Have one route to `nodes` for everything under /v1."""
        template = "/v1/.*"
        patterns = {"path": re.compile(template)}
        route = Route(template, list(nodes), device="inference@1.0", patterns=patterns, **fields)
        self.node.routes = RouteTable([route])
        self.dispatch.use(self.node.routes)
        return route

    async def get(self, path: str, **keys: Any) -> Any:
        return await self.call("GET", path, **keys)

    async def post(self, path: str, fields: Any, **keys: Any) -> Any:
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        return await self.call("POST", path, body=body, **keys)

    async def call(self, method: str, path: str, **keys: Any) -> Any:
        base: Message = {"device": "inference@1.0", "body": b"of the base"}
        parts = path.split("/")
        for n, part in enumerate(parts):
            request = {"method": method, "path": part, **keys}
            key = self.device.keys.get(part)
            if key is None:
                return self.device.default(part, base, request)
            if key.rest:
                request["rest"] = parts[n + 1 :]
            base = await getattr(self.device, key.method)(base, request)
            if key.rest:
                break
        return base

    async def receipt(self, headers: Any) -> dict[str, Any]:
        """The receipt that a reply's headers name."""
        reply = await self.get(f"receipt/{headers['x-receipt-id']}")
        assert reply["cache-control"] == "no-store"
        found: dict[str, Any] = json.loads(reply["body"])
        return found


async def drain(stream: Stream) -> tuple[bytes, HyperbeamError | None]:
    """What a client gets of a stream, as the reply layer sends it, and how it failed."""
    assert stream.observer is not None
    sent = b""
    try:
        async for data in stream.source:
            sent += data
            stream.observer.sent(data)
    except HyperbeamError as error:
        event = json.dumps({"error": {"message": error.detail, "code": error.error}}).encode()
        sent += b"data: " + event + b"\n\n"
        stream.observer.sent(b"data: " + event + b"\n\n")
        await stream.aclose()
        return sent, error
    stream.end(True)
    await stream.aclose()
    return sent, None


def body(reply: Message) -> Any:
    assert reply["content-type"] == "application/json"
    return json.loads(reply["body"])


async def events(stream: Stream) -> list[Any]:
    parser = EventParser()
    found = [event async for data in stream.source for event in parser.feed(data)]
    return [event if event == b"[DONE]" else json.loads(event) for event in found]


async def refusal(awaitable: Any) -> HyperbeamError:
    with pytest.raises(HyperbeamError) as caught:
        await awaitable
    return caught.value
