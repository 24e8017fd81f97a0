import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, Request

import httpx
import pytest

from devices.sev_gpu import SevGpu, fetch
from hyperbeam.node import Node
from hyperbeam.verify import jcs
from tests.hyperbeam.conftest import StartNode
from tests.hyperbeam.verify.documents import ANSWER, BACKEND, MODEL, NONCE, REQUEST, of

GENEROUS = {"ocsp": "skip", "rims": "allow-missing"}
"""All that simulated evidence can meet but for its root."""


@pytest.fixture(autouse=True)
def _outside_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's node runs; a test that is about samples says so."""
    monkeypatch.delenv("HYPERBEAM_TESTS", raising=False)


@pytest.fixture(autouse=True)
def asked_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The URLs beyond loopback that a verification asks; a test that leaves any there fails."""
    asked: list[str] = []
    read = fetch._read

    def on_loopback(opener: OpenerDirector, request: Request, timeout: float) -> bytes:
        if urlsplit(request.full_url).hostname in ("127.0.0.1", "localhost"):
            return read(opener, request, timeout)
        asked.append(request.full_url)
        raise OSError("tests ask nobody outside")

    monkeypatch.setattr(fetch, "_read", on_loopback)
    yield asked
    assert asked == []


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    """A node that simulates one GPU."""
    return await start_node(sev_gpu__backend="simulated")


def device(node: Node) -> SevGpu:
    found = node.device("sev_gpu@1.0")
    assert isinstance(found, SevGpu)
    return found


def client(node: Node, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{node.server.port}/~sev_gpu@1.0", headers=headers, timeout=30
    )


def statement(node: Node, **changes: Any) -> str:
    """What the node says of an answer, as inference@1.0 would."""
    keyset = node.keys.current
    value = {
        "v": "hyperbeam.answer/1",
        "node": keyset.node,
        "keyset": keyset.name,
        "receipt": "12" * 16,
        "nonce": NONCE,
        "nonce_by": "client",
        "salt": "34" * 32,
        "timestamp": keyset.message["not_before"] + 60_000,
        "config": keyset.config,
        "request": {"method": "POST", "path": "/", **of(REQUEST), "body": REQUEST.decode()},
        "forwarded": of(REQUEST),
        "response": {
            "status": 200,
            "type": "application/json",
            **of(ANSWER),
            "stream": False,
            "complete": True,
            "body": ANSWER.decode(),
        },
        "model": MODEL,
        "seed": 7,
        "seed_by": "client",
        "backend": BACKEND,
        **changes,
    }
    return jcs.encode(value).decode()


async def ask(node: Node, **attest: Any) -> dict[str, Any]:
    """The call that only devices in the process can make."""
    found: dict[str, Any] = await node.resolve(
        {}, {"path": "/~sev_gpu@1.0/generate", "priv": {"attest": attest}}
    )
    return found


async def attestation(node: Node, mode: str = "each", **changes: Any) -> dict[str, Any]:
    """A whole attestation, as a reply has it."""
    raw = statement(node, **changes)
    found = await ask(node, raw=raw, mode=mode, client="test")
    return {"raw": raw, "signature": node.keys.current.sign_answer(raw.encode()), **found}


FIXTURES = Path(__file__).parents[2] / "fixtures" / "nvidia"
SAMPLE = FIXTURES / "hopper-545.00"
SAMPLE_NONCE = "4cff7f5380ead8fad8ec2c531c110aca4302a88f603792801a8ca29ee151af2e"
SAMPLE_CLOCK = 1_717_200_000_000
"""2024-06-01, when the sample's manifests were valid."""


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()
