from typing import Any

import httpx

from hyperbeam import __version__
from hyperbeam.node import Node


async def ask(node: Node, path: str) -> Any:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        reply = await client.get(path, headers={"accept": "application/json"})
        assert reply.status_code == 200
        return reply.json()


async def test_info_and_build(node: Node) -> None:
    info = await ask(node, "/~meta@1.0/info")
    assert info["port"] == node.server.port
    assert info["version"] == __version__
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


async def test_router_says_where_a_path_goes(node: Node) -> None:
    first, second = await ask(node, "/~router@1.0/routes")
    assert (first["template"], second["template"]) == ("/v1/.*", "/health")
    match = await ask(node, "/~router@1.0/match?route-path=/v1/models")
    assert match["device"] == "inference@1.0"
