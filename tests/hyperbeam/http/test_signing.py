"""Replies that the node signs."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam.codecs import httpsig, siginfo
from hyperbeam.codecs.siginfo import BadSignature
from hyperbeam.commitments import (
    as_commitments,
    committers,
    mac_holds,
    verify,
)
from hyperbeam.signers import PublicKey

from ..conftest import StartNode

TRANSPORT = ("connection", "content-length", "date")


def message_of(reply: httpx.Response) -> dict[str, Any]:
    """A signed reply as a committed message, as an upstream node reads it."""
    headers = {name: value for name, value in reply.headers.items() if name not in TRANSPORT}
    signed = siginfo.parse(headers["signature"], headers["signature-input"])
    apart = httpsig.decode_apart(headers, reply.content)
    return {**apart.message, "commitments": as_commitments(signed, apart)}


def base_holds(
    reply: httpx.Response, changed: dict[str, str] | None = None, base: Any = None
) -> list[bool]:
    """Whether each signature holds over the head, as it is or with some fields changed."""
    headers = {**reply.headers, **(changed or {})}
    held = []
    for signed in siginfo.parse(headers["signature"], headers["signature-input"]):
        data = (base or siginfo.base_of_upstream)(signed, headers.get).encode("latin-1")
        key = PublicKey.of("", signed.text("keyid"))
        held.append(
            mac_holds(signed.signature, data) if key is None else key.holds(signed.signature, data)
        )
    return held


async def test_replies_are_signed_when_the_config_says_so(start_node: StartNode) -> None:
    node = await start_node(sign_replies=True)
    url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=url) as client:
        for path, headers in (
            ("/~message@1.0&a=1&b+integer=2/b", {}),
            ("/~json@1.0/deserialize", {"x": "1"}),
            ("/~json@1.0/deserialize", {"accept-bundle": "true"}),
            ("/~message@1.0&a=1/a?hashpath=1", {}),
            ("/~message@1.0/missing", {}),
            ("/~message@1.0&a=1&status+integer=201", {"accept": "application/json"}),
        ):
            reply = await client.request("POST", path, content=b'{"a": {"b": 1}}', headers=headers)
            assert base_holds(reply) == [True, True]
            assert base_holds(reply, base=siginfo.base) == [True, True]
            assert base_holds(reply, {"status": "299"}) == [False, False]
            tampered = base_holds(reply, {"content-digest": "sha-256=:AAAA:"})
            assert tampered == [False, False] or "content-digest" not in reply.headers
        whole = await client.get("/~message@1.0&a=1&b+integer=2/b")
    message = message_of(whole)
    verify(message)
    assert committers(message) == [node.identity.address]
    with pytest.raises(BadSignature):
        verify({**message, "body": 3})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/~message@1.0&a=1&b+integer=2"),
        ("POST", "/~json@1.0/deserialize"),
        ("POST", "/~message@1.0&l+list=1,2/keys"),
    ],
)
async def test_a_signed_message_holds_once_it_is_read(
    start_node: StartNode, method: str, path: str
) -> None:
    node = await start_node(sign_replies=True)
    url = f"http://127.0.0.1:{node.server.port}"
    headers = {"accept-bundle": "true", "accept-encoding": "gzip", "x-some": "Header"}
    async with httpx.AsyncClient(base_url=url) as client:
        body = b'{"a": {"b": [1]}, "method": "x"}' if method == "POST" else None
        reply = await client.request(method, path, content=body, headers=headers)
    message = message_of(reply)
    verify(message)
    assert committers(message) == [node.identity.address]


async def test_by_a_wallet(start_node: StartNode, tmp_path: Path) -> None:
    from ..test_signers import wallet_file

    file, address = wallet_file(tmp_path)
    node = await start_node(sign_replies=True, wallet=str(file))
    url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=url) as client:
        reply = await client.get("/~message@1.0&a=1/a")
    assert committers(message_of(reply)) == [address]
    verify(message_of(reply))


async def test_streams_and_nodes_that_do_not_sign(start_node: StartNode) -> None:
    node = await start_node()
    url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=url) as client:
        assert "signature" not in (await client.get("/~message@1.0&a=1/a")).headers
