"""faff@1.0, router@1.0 and relay@1.0 as request hooks."""

from typing import Any

import httpx
import pytest

from hyperbeam import Forbidden, NoRoute
from hyperbeam.node import Node

A, B, C = "a" * 43, "b" * 43, "c" * 43


async def ask(node: Node, path: str, *signers: str, **more: Any) -> Any:
    private = {"client": "10.0.0.9", "signers": signers}
    request = {"method": "GET", "path": path, "body": b"", "priv": private, **more}
    return await node.handle(request)


async def test_only_those_on_the_list_are_served(start_node: Any) -> None:
    node = await start_node(hooks__request="faff@1.0", faff__allow=[A, B])
    assert await ask(node, "/~message@1.0&a=1/a", A) == "1"
    assert await ask(node, "/~message@1.0&a=1/a", A, B) == "1"
    for signers in ((), (C,), (A, C)):
        with pytest.raises(Forbidden, match="serves only"):
            await ask(node, "/~message@1.0&a=1/a", *signers)


async def test_what_a_request_says_of_itself_admits_nobody(start_node: Any) -> None:
    node = await start_node(hooks__request="faff@1.0", faff__allow=[A])
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{node.server.port}/~message@1.0&signers={A}/signers"
        for headers in ({}, {"signers": A}, {"committer": A, "x-priv": A}):
            assert (await client.get(url, headers=headers)).status_code == 403


async def test_a_signed_reply_is_nobodys_request(start_node: Any) -> None:
    """Anybody can have a node that is on the list sign a message as its reply."""
    friend = await start_node(sign_replies=True)
    node = await start_node(hooks__request="faff@1.0", faff__allow=[friend.identity.address])
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{friend.server.port}/~json@1.0/deserialize"
        signed = await client.post(url, json={"a": "1", "path": "/~message@1.0/a"})
        names = ("a", "path", "status", "ao-types", "signature", "signature-input")
        headers = {name: signed.headers[name] for name in names if name in signed.headers}
        assert {"a", "signature"} <= headers.keys()
        url = f"http://127.0.0.1:{node.server.port}/~message@1.0/a"
        assert (await client.get(url, headers=headers)).status_code == 403


async def test_what_it_costs(start_node: Any) -> None:
    node = await start_node(faff__allow=[A])
    base = {"device": "faff@1.0"}
    for signers, price in (((A,), 0), ((C,), "infinity"), ((), "infinity")):
        asked = {"path": "estimate", "priv": {"signers": signers}}
        assert await node.resolve(base, asked) == price
    assert await node.resolve(base, "charge") is True


@pytest.mark.parametrize(
    "path", ["/~faff@1.0/request", "/~relay@1.0/request", "/~router@1.0/preprocess"]
)
async def test_hooks_are_no_keys_for_a_path(node: Node, path: str) -> None:
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"http://127.0.0.1:{node.server.port}{path}")
    assert reply.status_code == 400


@pytest.fixture
async def backend(start_node: Any) -> str:
    """Another node, as the server behind a route."""
    node = await start_node()
    return f"http://127.0.0.1:{node.server.port}"


@pytest.fixture
def routes(tmp_path: Any, backend: str) -> str:
    file = tmp_path / "routes.toml"
    node = f'{{ prefix = "{backend}", match = "^/v1", with = "/~message@1.0" }}'
    file.write_text(f'[[routes]]\ntemplate = "/v1/.*"\nnode = {node}\n')
    return str(file)


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{node.server.port}{path}", headers=headers)


@pytest.mark.parametrize("hook", ["router@1.0/preprocess", "relay@1.0"])
async def test_a_request_with_a_route_goes_along_it(
    start_node: Any, routes: str, hook: str
) -> None:
    node = await start_node(hooks__request=hook, routes=routes)
    reply = await get(node, "/v1/user-agent", **{"user-agent": "tested"})
    assert (reply.status_code, reply.text) == (200, "tested")


async def test_the_router_leaves_the_others(start_node: Any, routes: str) -> None:
    node = await start_node(hooks__request="router@1.0/preprocess", routes=routes)
    assert (await get(node, "/~message@1.0&a=1/a")).text == "1"


async def test_the_router_may_refuse_the_others(start_node: Any, routes: str) -> None:
    node = await start_node(
        hooks__request="router@1.0/preprocess", routes=routes, router__preprocess_default="error"
    )
    with pytest.raises(NoRoute, match="/v1/"):
        await ask(node, "/~message@1.0&a=1/a")


async def test_the_relay_has_no_route_for_the_others(start_node: Any, routes: str) -> None:
    node = await start_node(hooks__request="relay@1.0", routes=routes)
    assert (await get(node, "/~meta@1.0/build")).status_code == 404


async def test_the_routers_hook_beats_a_devices_own_path(
    start_node: Any, tmp_path: Any, backend: str
) -> None:
    file = tmp_path / "all.toml"
    node = f'{{ prefix = "{backend}", match = "here", with = "there" }}'
    file.write_text(f'[[routes]]\ntemplate = ".*"\nnode = {node}\n')
    node = await start_node(hooks__request="router@1.0/preprocess", routes=str(file))
    assert (await get(node, "/~message@1.0&a=here/a")).text == "there"
