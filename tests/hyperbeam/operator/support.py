"""Orders to a node in this process, over HTTP and by hand."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hyperbeam import Message
from hyperbeam.node import Node
from hyperbeam.operator import orders
from hyperbeam.operator.signing import signed
from hyperbeam.signers import Ed25519Signer

ME = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
INFO, CLAIM, ROUTES = "/~meta@1.0/info", "/~meta@1.0/claim", "/~router@1.0/routes"
_COUNT = itertools.count()


def request(
    node: str,
    keys: dict[str, Any] | None = None,
    *,
    by: str = ME.address,
    signed: tuple[str, ...] = ("path", "body", "content-type"),
    created: int | None = None,
    nonce: str | None = None,
    **said: Any,
) -> Message:
    """A request as it is once its signature was found good. `said`: keys of its body beside
    `keys`; None leaves one out that there would be."""
    usual = {"to": node, "timestamp": orders.now(), "nonce": f"nonce {next(_COUNT)}"}
    body = {n: v for n, v in {**usual, **(keys or {}), **said}.items() if v is not None}
    one = {"by": by, "keys": frozenset(signed), "created": created, "nonce": nonce}
    return {
        "method": "POST",
        "path": INFO,
        "content-type": "application/json",
        "body": json.dumps(body).encode(),
        "priv": {"signers": (by,), "signatures": (one,)},
    }


class OneHand:
    """Whoever has the key `signer`, at a node."""

    def __init__(self, node: Node, signer: Ed25519Signer) -> None:
        self.node = node
        self.signer = signer

    def signed(self, path: str, keys: dict[str, Any]) -> tuple[dict[str, str], bytes]:
        """Headers and body of an order."""
        return signed(path, keys, self.node.identity.address, self.signer)

    async def order(self, path: str, keys: dict[str, Any]) -> httpx.Response:
        return await self.post(path, *self.signed(path, keys))

    async def post(self, path: str, headers: Any, body: bytes = b"") -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.node.server.port}") as http:
            return await http.post(path, headers=headers, content=body)


def refused(reply: httpx.Response) -> tuple[int, str]:
    """The status and the word for the refusal."""
    return reply.status_code, reply.json().get("error", "")
