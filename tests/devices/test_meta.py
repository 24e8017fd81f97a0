import asyncio
from typing import Any

import httpx
import pytest

from hyperbeam import __version__
from hyperbeam.codecs import httpsig
from hyperbeam.node import Node
from hyperbeam.registry import Failure
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
    assert list(shown) == sorted(shown)
    assert shown["meta@1.0"]["keys"]["build"] == "Which software this is."
    assert shown["message@1.0"]["default"].startswith("The value of the key")
    for name, device in shown.items():
        assert (device["name"], device["version"]) == (name, name.partition("@")[2])
        assert set(device["keys"]) == set(node.devices[name].keys)
        assert list(device["keys"]) == sorted(device["keys"])
        assert ("default" in device) == hasattr(node.devices[name], "default")
        if name not in ("any@1.0", "echo@1.0", "strict@1.0"):
            assert device["docs"], name
            assert all(device["keys"].values()), name
            assert device.get("default") != "", name


async def test_the_devices_are_the_same_each_time_and_in_each_codec(node: Node) -> None:
    node.failures["b@1.0"] = Failure.of("b@1.0", OSError("/home/someone"))
    for headers in (
        {"accept": "application/json"},
        {"accept": "text/html"},
        {"accept-bundle": "true"},
        {},
    ):
        once, again = [await fetch(node, "/~meta@1.0/devices", **headers) for _ in range(2)]
        assert once.status_code == 200
        assert once.content == again.content
        assert once.headers.get("devices+link") == again.headers.get("devices+link")
        assert "/home/someone" not in once.text
    meant = await ask(node, "/~meta@1.0/devices")
    bundle = await fetch(node, "/~meta@1.0/devices", **{"accept-bundle": "true"})
    head = {name: bundle.headers[name] for name in ("content-type", "ao-types")}
    read = httpsig.decode(head, bundle.content)
    assert {name: read[name] for name in meant} == meant
    linked = await fetch(node, "/~meta@1.0/devices")
    at = f"/{linked.headers['devices+link']}"
    shown = await ask(node, at)
    assert set(shown) == set(meant["devices"])
    assert shown["meta@1.0"] == meant["devices"]["meta@1.0"]


async def test_devices_as_a_page(node: Node) -> None:
    node.failures["b@1.0"] = Failure("b@1.0", "", "<b>why</b>")
    page = (await fetch(node, "/~meta@1.0/devices", accept="text/html")).text
    assert "<th>meta@1.0" in page
    assert "takes the operator&#x27;s orders." in page
    assert "&lt;b&gt;why&lt;/b&gt;" in page


async def test_failures_of_one_name_are_all_told(node: Node) -> None:
    for folder in ("x", "y"):
        node.failures[f"/{folder}/a.py"] = Failure("a.py", "", f"why {folder}")
    assert (await ask(node, "/~meta@1.0/devices"))["failed"] == {"a.py": "why x; why y"}


async def test_a_device_that_cannot_describe_itself_is_shown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(node.devices["echo@1.0"], "describe", fail)
    monkeypatch.setattr(node.devices["strict@1.0"], "describe", lambda: {"name": "x", "more": 1})
    shown = (await ask(node, "/~meta@1.0/devices"))["devices"]
    assert shown["echo@1.0"]["docs"] == "Gives back what it was called with."
    assert (shown["strict@1.0"]["name"], shown["strict@1.0"]["more"]) == ("strict@1.0", 1)


async def test_a_caller_of_a_device_that_failed_is_told_no_paths(node: Node) -> None:
    error = FileExistsError("[Errno 17] File exists: '/home/someone/x'")
    node.failures["a@1.0"] = Failure.of("a@1.0", error)
    reply = await fetch(node, "/~a@1.0/key")
    assert reply.status_code == 404
    assert "device a@1.0 did not load" in reply.text
    assert "/home" not in reply.text


async def test_router_says_where_a_path_goes(node: Node) -> None:
    first, second = await ask(node, "/~router@1.0/routes")
    assert (first["template"], second["template"]) == ("/v1/.*", "/health")
    match = await ask(node, "/~router@1.0/match?route-path=/v1/models")
    assert match["device"] == "inference@1.0"
    asked = f"?route-path={match['target'][0]}"
    assert await ask(node, f"/~router@1.0/route{asked}") == {"uri": match["target"][0], "opts": {}}
    missing = await fetch(node, "/~router@1.0/route?route-path=/zzz")
    assert (missing.status_code, "/v1/.*" in missing.text) == (404, True)


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


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
async def test_methods_that_promise_more_are_501(node: Node, method: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    writer.write(f"{method} /~message@1.0&a=1/a HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 501 ")
    writer.close()
