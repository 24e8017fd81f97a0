from typing import Any

import httpx

from hyperbeam import __version__
from hyperbeam.node import Node
from hyperbeam.verify import jcs
from hyperbeam.verify.keyset import KeySet


async def ask(node: Node, path: str) -> Any:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        reply = await client.get(path, headers={"accept": "application/json"})
        assert reply.status_code == 200
        return reply.json()


async def test_info_and_build(node: Node) -> None:
    info = await ask(node, "/~meta@1.0/info")
    assert info["port"] == node.server.port
    assert info["version"] == __version__
    assert info["address"] == node.identity.address
    assert str(node.home) not in str(info)
    build = await ask(node, "/~meta@1.0/build")
    assert build["version"] == __version__
    assert (await ask(node, "/~meta@1.0/live")) == {"live": True}


async def test_every_device_is_shown_with_its_keys(node: Node) -> None:
    shown = (await ask(node, "/~meta@1.0/devices"))["devices"]
    assert set(shown) == set(node.devices)
    assert shown["meta@1.0"]["keys"]["info"] == "The node's public settings."
    for name, device in shown.items():
        if name not in ("any@1.0", "echo@1.0", "strict@1.0"):
            assert device["description"], name
            for key, text in device["keys"].items():
                assert text, f"{name}/{key}"


async def test_a_caller_of_a_device_that_failed_is_told_no_paths(node: Node) -> None:
    node.failures["a@1.0"] = "FileExistsError: [Errno 17] File exists: '/home/someone/x'"
    reply = await fetch(node, "/~a@1.0/key")
    assert reply.status_code == 404
    assert "device a@1.0 did not load" in reply.text
    assert "/home" not in reply.text


async def test_router_says_where_a_path_goes(node: Node) -> None:
    first, second = await ask(node, "/~router@1.0/routes")
    assert (first["template"], second["template"]) == ("/v1/.*", "/health")
    match = await ask(node, "/~router@1.0/match?route-path=/v1/models")
    assert match["device"] == "inference@1.0"


async def fetch(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        return await client.get(path, headers=headers)


async def test_the_key_set_is_canonical_json_whatever_is_asked(node: Node) -> None:
    live = node.keys.current
    for accept in ("application/json", "text/html", "*/*"):
        for path in ("/~meta@1.0/keyset", f"/~meta@1.0/keyset/{live.name}"):
            reply = await fetch(node, path, accept=accept)
            assert reply.status_code == 200
            assert reply.headers["content-type"] == "application/json"
            assert reply.content == jcs.encode(live.message)
            assert KeySet.parse(reply.content).name == live.name


async def test_an_older_key_set(node: Node) -> None:
    old = node.keys.current
    node.keys.declare("test", 1)
    assert (await fetch(node, "/~meta@1.0/keyset")).json()["previous"] == old.name
    assert (await fetch(node, f"/~meta@1.0/keyset/{old.name}")).json() == old.message


async def test_key_sets_that_are_not_known(node: Node) -> None:
    name = node.keys.current.name
    for path in ("x", "0" * 64, f"{name}/x", "..%2fidentity", name.upper()):
        reply = await fetch(node, f"/~meta@1.0/keyset/{path}", accept="application/json")
        assert (reply.status_code, reply.json()["error"]) == (404, "not_found"), path


async def test_the_identity_is_told_nowhere(node: Node) -> None:
    pem = (node.home / "identity.key").read_text().split("\n")[1]
    for path in ("info", "devices", "build", "keyset"):
        reply = await fetch(node, f"/~meta@1.0/{path}", accept="application/json")
        assert pem not in reply.text
        assert "identity.key" not in reply.text
