"""Keys, CORS and proxies of a running node."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import ConfigError
from hyperbeam.access import KeyStore
from hyperbeam.node import Node
from tests.hyperbeam.conftest import StartNode
from tests.hyperbeam.http.support import until


def key(node: Node, name: str = "ada", **limits: Any) -> str:
    return KeyStore(node.store).add(name, **limits)[0]


async def ask(node: Node, path: str, method: str = "POST", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        return await client.request(method, path, headers=named, content=b'{"messages": []}')


GUARDED = [
    "/~inference@1.0/chat/completions",
    "/~inference@1.0/v1/chat/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/x",
    "/v1/responses",
    "/v1/messages",
    "/v1/tokenize",
    "/~inference@1.0/replay",
    "/~message@1.0&a=1/(~inference@1.0/completions)",
    "/(~inference@1.0/completions)",
    "/~relay@1.0/call?relay-path=/v1/completions",
    "/~relay@1.0/call?relay-path=/plain/x",
    "/~relay@1.0/cast?relay-path=/plain/x",
    "/(~relay@1.0/call&relay-path=%2Fplain%2Fx)",
    "/plain/x",
    "/plain/x?target=1&priv=2&client=3",
]
OPEN = [
    "/health",
    "/~inference@1.0/health",
    "/~meta@1.0/info",
    "/~meta@1.0/keyset",
    "/~meta@1.0/live",
]


async def test_nothing_that_works_for_others_is_open(start_node: StartNode, tmp_path: Path) -> None:
    routes = tmp_path / "routes.toml"
    routes.write_text(
        '[[routes]]\ntemplate = "/v1/.*"\ndevice = "inference@1.0"\n'
        'nodes = [{ backend = "local" }]\n'
        '[[routes]]\ntemplate = "/health"\ndevice = "inference@1.0"\n'
        'nodes = [{ backend = "local" }]\n'
        '[[routes]]\ntemplate = "/plain/.*"\nnode = "http://127.0.0.1:9"\n'
    )
    node = await start_node(routes=str(routes))
    secret = key(node)
    await until(lambda: node.access.required)
    for path in GUARDED:
        method = "GET" if "models" in path else "POST"
        reply = await ask(node, path, method)
        assert reply.status_code == 401, path
        assert "API key" in reply.text, path
        assert reply.headers["www-authenticate"] == "Bearer"
        assert (await ask(node, path, method, x_api_key="hb-wrong")).status_code == 401
        let_in = await ask(node, path, method, authorization=f"Bearer {secret}")
        assert let_in.status_code != 401, path
        assert secret not in let_in.text
    assert (await ask(node, "/v1/models", "HEAD")).status_code == 401
    assert (await ask(node, "/v1/models", "OPTIONS")).status_code == 204
    for path in OPEN:
        assert (await ask(node, path, "GET")).status_code not in (401, 403), path


async def test_the_store_gives_nothing_of_keys_away(start_node: StartNode) -> None:
    node = await start_node()
    key(node)
    (digest,) = node.store.list(b"access/keys") or []
    for path in ("access", "access/keys", f"access/keys/{digest.decode()}", "access/usage"):
        reply = await ask(node, f"/~cache@1.0/read?target={path}", "GET")
        assert reply.status_code in (400, 404), reply.text
        assert "ada" not in reply.text


async def test_a_receipt_is_there_for_its_own_key_only(start_node: StartNode) -> None:
    node = await start_node()
    mine, other = key(node), key(node, "bob")
    await until(lambda: node.access.required)
    id = node.receipts.new_id()
    owner = next(each.id for each in node.access.keys.all() if each.name == "ada")
    node.receipts.add({"id": id, "v": "hyperbeam.receipt/1"}, node.keys.current, owner)
    path = f"/~inference@1.0/receipt/{id}"
    assert (await ask(node, path, "GET", authorization=f"Bearer {mine}")).status_code == 200
    assert (await ask(node, path, "GET", authorization=f"Bearer {other}")).status_code == 404
    assert (await ask(node, path, "GET")).status_code == 401


async def test_only_named_origins_may_read(start_node: StartNode) -> None:
    page = "https://app.example"
    node = await start_node(http__cors=page)
    allow = "access-control-allow-origin"
    for path in ("/~meta@1.0/info", "/nothing"):
        mine = await ask(node, path, "GET", origin=page)
        assert mine.headers[allow] == page and "origin" in mine.headers["vary"]
        for origin in ("https://evil.example", "null", page + ".evil", ""):
            other = await ask(node, path, "GET", origin=origin)
            assert not any(name.startswith("access-control") for name in other.headers)
    assert (await ask(node, "/x", "OPTIONS", origin=page)).headers[allow] == page
    everybody = await start_node()
    assert (await ask(everybody, "/nothing", "GET", origin=page)).headers[allow] == "*"


async def test_a_node_is_not_opened_to_others_by_oversight(start_node: StartNode) -> None:
    with pytest.raises(ConfigError, match="keys add"):
        await start_node(http__host="0.0.0.0")
    await start_node(http__host="0.0.0.0", access__required="always")
    with pytest.raises(ConfigError, match="trusted_proxies"):
        await start_node(http__trusted_proxies="x")
