"""The names a node answers under: no page reaches it by rebinding its own name."""

from typing import Any

import pytest

from hyperbeam import HyperbeamError, Message
from hyperbeam.http.hosts import CACHE, Hosts, host_name

from .support import Client

NAMES = ("Node.Example.", "192.0.2.7:8734", "[2001:db8:0::1]")


async def secret(request: Message) -> str:
    return "secret"


async def ask(client: Client, host: str, line: str = "GET /v1/x HTTP/1.1") -> Any:
    await client.send(f"{line}\r\nhost: {host}\r\n\r\n".encode())
    return await client.response()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8734",
        "localhost.",
        "a.b.localhost:1",
        "127.0.0.1:8734",
        "127.9.8.7",
        "[::1]:8734",
        "[0:0:0:0:0:0:0:1]",
        "node.example:80",
        "NODE.example.:80",
        "192.0.2.7",
        "[2001:db8::1]:8734",
    ],
)
async def test_own_names_are_answered(serve: Any, connect: Any, host: str) -> None:
    client = await connect(await serve(secret, hosts=NAMES))
    for _ in range(2):
        reply = await ask(client, host)
        assert (reply.status, b"secret" in reply.body) == (200, True)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8734",
        "localhost.evil.example",
        "notlocalhost",
        "a.node.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "0.0.0.0",
        "192.0.2.8",
        "[::2]",
        "::1",
        "[localhost]",
        "localhost:80:80",
        "localhost:x",
        "",
    ],
)
async def test_other_names_are_misdirected(serve: Any, connect: Any, host: str) -> None:
    client = await connect(await serve(secret, hosts=NAMES))
    for line in ("GET /v1/x HTTP/1.1", "GET http://localhost/v1/x HTTP/1.1"):
        reply = await ask(client, host, line)
        assert reply.status == 421
        assert reply.json["error"]["code"] == "misdirected_request"
        assert "http.hosts" in reply.json["error"]["message"]
    assert (await ask(client, host, "OPTIONS /v1/x HTTP/1.1")).status == 421
    assert (await ask(client, "localhost")).status == 200


async def test_http_1_0_needs_no_host(serve: Any, connect: Any) -> None:
    client = await connect(await serve(secret, hosts=()))
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.response()).status == 200


async def test_without_hosts_any_name_is_answered(serve: Any, connect: Any) -> None:
    client = await connect(await serve(secret))
    assert (await ask(client, "evil.example")).status == 200
    client = await connect(await serve(secret, hosts=()))
    assert (await ask(client, "evil.example")).status == 421


def test_what_is_remembered_is_bounded() -> None:
    hosts = Hosts([])
    for port in range(10 * CACHE):
        hosts.check(f"localhost:{port}")
        assert len(hosts._accepted) <= CACHE
    with pytest.raises(HyperbeamError):
        hosts.check("evil.example")


def test_the_name_of_a_header() -> None:
    assert host_name(" [::0001]:80 ") == "::1"
    assert host_name("A.Example.:80") == "a.example"
    assert host_name(".") == host_name(":80") == host_name("[]") == ""
