"""Orders to a running node: taken once, whole, and from its operator alone."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import ConfigError, HyperbeamError
from hyperbeam.commitments import committers, verify
from hyperbeam.config import load
from hyperbeam.node import Node
from hyperbeam.operator import orders, with_orders
from hyperbeam.operator.operator import Operator
from hyperbeam.operator.signing import signed
from hyperbeam.routing import routes_file

from ..conftest import StartNode
from .conftest import TABLE
from .support import CLAIM, INFO, ME, OTHER, ROUTES, OneHand, refused, request

COMMIT = "/~message@1.0&a=1&b=two/commit"


async def settings(me: OneHand) -> dict[str, Any]:
    shown: dict[str, Any] = (await me.order(INFO, {})).json()["settings"]
    return shown


def kept(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.home / "operator.json").read_bytes())
    return found


async def test_a_node_is_claimed_once_by_its_token(unclaimed: Node) -> None:
    me, other = OneHand(unclaimed, ME), OneHand(unclaimed, OTHER)
    token = unclaimed.operator.token
    assert token is not None
    assert refused(await me.order(INFO, {"log.level": "debug"})) == (403, "not_claimed")
    for wrong in ({"token": "0" * 32}, {"token": 5}, {}, {"token": token + " "}):
        assert refused(await me.order(CLAIM, wrong)) == (403, "wrong_token")
    unsigned = await me.post(
        CLAIM, {"accept": "application/json"}, json.dumps({"token": token}).encode()
    )
    assert unsigned.status_code == 403
    assert (await me.order(CLAIM, {"token": token})).json()["operator"] == ME.address
    assert unclaimed.operator.token is None
    assert refused(await other.order(CLAIM, {"token": token})) == (403, "claimed")
    assert refused(await other.order(INFO, {})) == (403, "not_the_operator")
    assert (await settings(me))["log.level"] == "info"
    assert unclaimed.operator.address == ME.address
    assert token not in (unclaimed.home / "operator.json").read_text()


async def test_the_configurations_operator_needs_no_token(node: Node, me: OneHand) -> None:
    assert node.operator.token is None
    assert refused(await me.order(CLAIM, {"token": ""})) == (403, "claimed")
    assert "settings" in (await me.order(INFO, {})).json()


async def test_what_is_changed_counts_at_once_and_is_kept(node: Node, me: OneHand) -> None:
    keyset = node.keys.current.name
    changed = await me.order(
        INFO, {"http": {"cors": ["https://a.example"]}, "cache.writers": "all"}
    )
    assert changed.json()["changed"] == ["http.cors", "cache.writers"]
    assert node.config.http.cors == ("https://a.example",)
    assert node.devices["cache@1.0"].config.writers == "all"
    assert node.keys.current.name != keyset
    assert kept(node)["settings"] == {"http.cors": ["https://a.example"], "cache.writers": "all"}
    (entry,) = node.operator.history
    assert (entry["by"], entry["what"]) == (ME.address, "change")
    assert await node.resolve(None, "/~meta@1.0/info/operator") == ME.address
    assert await node.resolve(None, "/~meta@1.0/info/node_history") == [entry]


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        ({"log.level": "loud"}, 400),
        ({"http.body_limit": 0}, 400),
        ({"http.cors": {"a": 1}}, 400),
        ({"nonsense": 1}, 400),
        ({"device_path": ["/tmp"]}, 403),
        ({"inference.model": "x"}, 403),
        ({"faff": {"allow": ["x"]}}, 403),
        ({"hooks": {}}, 403),
        ({"print": ["nonsense"]}, 400),
        ({"http.port": 1}, 403),
        ({"operator": OTHER.address}, 403),
        ({"home": "/"}, 403),
        ({"hooks.request": "x@1.0"}, 403),
        ({"initialized": "maybe"}, 400),
    ],
)
async def test_all_or_nothing(node: Node, me: OneHand, keys: dict[str, Any], status: int) -> None:
    before = node.config
    reply = await me.order(INFO, {"log.access": True, **keys})
    assert reply.status_code == status
    assert node.config == before
    assert node.operator.history == []
    assert kept(node)["settings"] == {}


LARGE = [0, 1e-300, 1, 4095, 4096, 1e308, 2**62, 10**30, "1", "", "nan", "inf", None]
SETTINGS = [
    ("access.open", [False]),
    ("access.required", ["always", "never"]),
    ("http.body_limit", LARGE),
    ("http.body_timeout", LARGE),
    ("http.cors", [[], [""], ["\x00"], "null"]),
    ("http.header_timeout", LARGE),
    ("http.hosts", [[], ["other.example"], [""], ["node.example"]]),
    ("http.keep_alive_comment", LARGE),
    ("http.send_timeout", LARGE),
    ("log.access", [True]),
    ("log.format", ["json"]),
    ("log.level", ["error"]),
    ("cache.writers", ["all"]),
    ("print", [["nonsense"], ["all"], [""], "all,,"]),
]


@pytest.mark.parametrize(("name", "values"), SETTINGS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_no_order_is_the_last(
    start_node: StartNode, table: Path, host: str, name: str, values: list[Any]
) -> None:
    """Whatever an order changes, the next one is taken, also after a restart."""
    given = {
        "home": str(table.parent / "kept"),
        "http.host": host,
        "http.hosts": ["node.example"],
        "access.open": True,
        "operator": ME.address,
        "routes": str(table),
    }
    node = await start_node(**{key.replace(".", "__"): value for key, value in given.items()})
    flags = {**given, "http.port": 0}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:

        async def order(keys: dict[str, Any]) -> httpx.Response:
            headers, body = signed(INFO, keys, node.identity.address, ME)
            return await client.post(
                INFO, headers={**headers, "host": "node.example"}, content=body
            )

        for value in values:
            reply = await order({name: value})
            assert reply.status_code in (200, 400), reply.text
            assert (await order({})).status_code == 200, value
            later = with_orders(load(environment={}, flags=flags))
            Node(later).check_config(later)
        assert set(dict(SETTINGS)) == set((await order({})).json()["settings"])


@pytest.mark.parametrize("name", ["body_limit", "body_timeout", "header_timeout", "send_timeout"])
async def test_a_limit_that_no_order_is_within_is_refused_with_the_reason(
    node: Node, me: OneHand, name: str
) -> None:
    reply = await me.order(INFO, {f"http.{name}": 0.5 if "timeout" in name else 1})
    assert reply.status_code == 400
    assert f"http.{name} is at least" in reply.json()["body"]
    assert node.operator.history == []


async def test_a_node_that_could_not_start_again_is_not_made(
    start_node: StartNode, table: Path
) -> None:
    node = await start_node(
        operator=ME.address, routes=str(table), http__host="0.0.0.0", access__open=True
    )
    reply = await OneHand(node, ME).order(INFO, {"access.open": False})
    assert reply.status_code == 400
    assert "anybody may use this node" in reply.json()["body"]
    both = {"access.open": False, "access.required": "always"}
    assert (await OneHand(node, ME).order(INFO, both)).status_code == 200


async def test_an_order_that_changes_nothing_leaves_no_trace(node: Node, me: OneHand) -> None:
    await me.order(INFO, {"log.access": True, "http.cors": ["https://a.example"]})
    before = kept(node)
    for keys in ({"log.access": True}, {"log": {"access": True}, "http.cors": "https://a.example"}):
        reply = await me.order(INFO, keys)
        assert (reply.status_code, reply.json()["changed"]) == (200, [])
    assert kept(node)["history"] == before["history"]
    assert kept(node)["settings"] == before["settings"]
    # What the files have too is kept from now on, whatever they have later.
    assert (await me.order(INFO, {"log.level": "info"})).json()["changed"] == ["log.level"]


async def test_refusals_name_both_keys(node: Node, me: OneHand) -> None:
    for path, keys in ((INFO, {}), (CLAIM, {"token": ""})):
        told = (await OneHand(node, OTHER).order(path, keys)).json()["body"]
        assert OTHER.address in told
        assert ME.address in told
    told = (await me.order(CLAIM, {"token": ""})).json()["body"]
    assert told == f"you are this node's operator already, {ME.address}"


async def test_an_order_is_taken_once(node: Node, me: OneHand, start_node: StartNode) -> None:
    headers, body = me.signed(INFO, {"log.access": True})
    assert (await me.post(INFO, headers, body)).status_code == 200
    for _ in range(2):
        assert refused(await me.post(INFO, headers, body)) == (403, "replayed_order")
    both = await asyncio.gather(*(me.order(INFO, {}) for _ in range(8)))
    assert {reply.status_code for reply in both} == {200}
    once = me.signed(INFO, {"log.access": False})
    replies = await asyncio.gather(*(me.post(INFO, *once) for _ in range(8)))
    assert sorted(reply.status_code for reply in replies) == [200, *[403] * 7]


async def test_an_order_survives_nothing_that_is_changed(node: Node, me: OneHand) -> None:
    headers, body = me.signed(INFO, {"log.access": True})
    assert (await me.post(INFO, headers, body.replace(b"true", b"fals"))).status_code == 401
    assert (await me.post(ROUTES, headers, body)).status_code == 401
    assert (await me.post("/~meta@1.0/claim", headers, body)).status_code == 401
    assert (await me.post(f"{INFO}/log.level", headers, body)).status_code == 401
    elsewhere = signed(INFO, {"log.access": True}, OTHER.address, ME)
    assert refused(await me.post(INFO, *elsewhere)) == (403, "another_node")
    assert node.operator.history == []


@pytest.mark.parametrize(
    "path",
    [
        "/~apply@1.0&path=info/pair",
        "/(~meta@1.0/info)/address",
        "/~message@1.0&a=(~meta@1.0/info)/a",
        "/~meta@1.0/info~meta@1.0",
    ],
)
async def test_no_other_path_carries_an_order(node: Node, path: str) -> None:
    other = OneHand(node, OTHER)
    await other.order(path.partition("?")[0], {"log.access": True})
    assert node.config.log.access is False


async def test_permanent_is_the_last_change(node: Node, me: OneHand) -> None:
    assert (
        await me.order(INFO, {"initialized": "permanent", "log.access": True})
    ).status_code == 200
    assert node.config.log.access is True
    for path, keys in (
        (INFO, {"log.access": False}),
        (ROUTES, {"template": "/y", "node": "http://h"}),
    ):
        assert refused(await me.order(path, keys)) == (403, "permanent")
    assert "settings" in (await me.order(INFO, {})).json()
    assert await node.resolve(None, f"{INFO}/initialized") == "permanent"


async def test_a_change_that_cannot_be_applied_leaves_all_as_it_was(node: Node) -> None:
    async def failing(config: Any) -> None:
        raise ConfigError("no worker takes it")

    me = OneHand(node, ME)
    node.operator.apply = failing
    reply = await me.order(INFO, {"log.access": True})
    assert (reply.status_code, reply.json()["body"]) == (400, "no worker takes it")
    assert kept(node)["settings"] == {}
    assert kept(node)["history"] == node.operator.history == []
    assert len(kept(node)["nonces"]) == 1


async def test_an_order_that_has_begun_is_finished(node: Node) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(config: Any) -> None:
        begun.set()
        await go.wait()
        await node.use_config(config)

    node.operator.apply = slow
    order = await node.operator.authorize(request(node.identity.address, {"log.access": True}))
    asked = asyncio.create_task(node.operator.change(order))
    await begun.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    go.set()
    shown = await node.operator.authorize(request(node.identity.address))
    assert shown.keys == {}
    assert node.config.log.access is True
    assert kept(node)["settings"] == {"log.access": True}


async def test_a_disk_that_takes_nothing_changes_nothing(
    node: Node, me: OneHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise HyperbeamError("the disk is full", status=507, error="disk_full")

    monkeypatch.setattr("hyperbeam.operator.state.save", full)
    assert refused(await me.order(INFO, {"log.access": True})) == (507, "disk_full")
    assert node.config.log.access is False
    assert node.operator.history == []


async def test_what_was_changed_is_there_after_a_restart(
    node: Node, me: OneHand, table: Path
) -> None:
    headers, body = me.signed(INFO, {"log.access": True})
    assert (await me.post(INFO, headers, body)).status_code == 200
    later = Operator(node, node.operator.apply)
    later.open()
    with pytest.raises(HyperbeamError) as caught:
        await later._here("take", _order(headers, body))
    assert caught.value.error == "replayed_order"
    assert later.history == node.operator.history


async def test_a_clock_that_is_set_back_brings_no_order_back(
    node: Node, me: OneHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = orders.now()
    headers, body = me.signed(INFO, {"log.access": True})
    assert (await me.post(INFO, headers, body)).status_code == 200
    for module in ("orders", "signing"):
        monkeypatch.setattr(f"hyperbeam.operator.{module}.now", lambda: start + 3 * orders.WINDOW)
    assert (await me.order(INFO, {})).status_code == 200
    monkeypatch.setattr("hyperbeam.operator.orders.now", lambda: start)
    assert refused(await me.post(INFO, headers, body)) == (403, "stale_order")


def _order(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    said = json.loads(body)
    return {"by": ME.address, "time": orders.now(), "nonce": said["nonce"], "keys": {}}


async def test_routes_are_added_by_the_operator(node: Node, me: OneHand, table: Path) -> None:
    route = {"template": "/y/.*", "nodes": ["http://127.0.0.1:10"]}
    assert refused(await OneHand(node, OTHER).order(ROUTES, route)) == (403, "not_the_operator")
    assert (await me.post(ROUTES, {})).status_code == 403
    assert (await me.order(ROUTES, route)).json()[-1] == {
        "template": "/y/.*",
        "nodes": [{"prefix": "http://127.0.0.1:10"}],
    }
    before = await asyncio.to_thread(table.read_text)
    assert '"/y/.*"' in before
    for bad in ({"template": "/("}, {**route, "strategy": "No"}, {}):
        assert (await me.order(ROUTES, bad)).status_code == 400
    assert await asyncio.to_thread(table.read_text) == before
    assert len(node.routes.routes) == 2


@pytest.mark.parametrize("checkout", [True, False])
async def test_no_route_is_added_to_a_table_that_nobody_named(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: bool
) -> None:
    """In the working folder is an own table, or there is none and the checkout's counts."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "routes.toml"
    if not checkout:
        own.write_text(TABLE)
    node = await start_node(operator=ME.address)
    used = routes_file(node.config)
    before = used.read_bytes()
    try:
        reply = await OneHand(node, ME).order(ROUTES, {"template": "/y", "node": "http://h"})
        after = used.read_bytes()
    finally:
        used.write_bytes(before)
    assert reply.status_code == (409 if checkout else 200), reply.text
    assert (after == before) is checkout
    assert len(node.operator.history) == (0 if checkout else 1)


async def test_pages_of_others_do_not_read_what_orders_get(node: Node, me: OneHand) -> None:
    reply = await me.order(INFO, {})
    assert "access-control-allow-origin" not in reply.headers
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{node.server.port}"
        preflight = await client.request("OPTIONS", url + INFO, headers=asked)
        read = await client.get(url + INFO)
    assert "access-control-allow-origin" not in preflight.headers
    assert read.headers["access-control-allow-origin"] == "*"


async def test_the_node_commits_for_its_operator_alone(node: Node, me: OneHand) -> None:
    for reply in (
        await me.post(COMMIT, {"accept": "application/json"}),
        await OneHand(node, OTHER).order(COMMIT, {}),
    ):
        assert reply.status_code == 403
    message = {"a": "1", "b": "two"}
    asked = request(node.identity.address, {"keys": ["a"]})
    committed = await node.resolve(message, {**asked, "path": "commit"})
    assert committers(committed) == [node.identity.address]
    verify(committed)
    with pytest.raises(HyperbeamError):
        await node.resolve(message, {**asked, "path": "commit", "priv": {"signers": (ME.address,)}})
    reply = await me.order(COMMIT, {"keys": ["a", "b"]})
    committed = reply.json()
    assert committed.keys() == {"a", "b", "device", "commitments"}
    assert committers(committed) == [node.identity.address]
    verify(committed)


async def test_a_bare_nonce_is_signed_for_the_operator_alone(start_node: StartNode) -> None:
    """Whoever chooses what a GPU signs can have it vouch for anything."""
    node = await start_node(operator=ME.address, sev_gpu__backend="simulated")
    path, nonce = "/~sev_gpu@1.0/generate", "5c" * 32
    body = json.dumps({"bare": nonce}).encode()
    kind = {"content-type": "application/json"}
    assert (await OneHand(node, ME).post(path, kind, body)).status_code == 403
    assert (await OneHand(node, OTHER).order(path, {"bare": nonce})).status_code == 403
    reply = await OneHand(node, ME).order(path, {"bare": nonce})
    assert reply.json()["nonce"] == nonce
    assert (await OneHand(node, ME).order(path, {"bare": "xyz"})).status_code == 400


async def test_what_a_node_signs_as_a_reply_is_no_order(start_node: StartNode) -> None:
    """Anybody has a node sign any message, and the operator's key may be that of a node."""
    signer = await start_node(sign_replies=True)
    node = await start_node(operator=signer.identity.address)
    for path, keys in ((COMMIT, {"keys": ["a"]}), (INFO, {"log.level": "debug"})):
        wanted = {"to": node.identity.address, "timestamp": orders.now(), "nonce": path, **keys}
        asked = {
            "path": path,
            "method": "POST",
            "content-type": "application/json",
            "body": json.dumps(wanted),
        }
        signed = await OneHand(signer, OTHER).post(
            "/~json@1.0/deserialize", {}, json.dumps(asked).encode()
        )
        assert 'path"' in signed.headers["signature-input"]
        names = ("content-type", "content-digest", "status", "ao-types")
        headers = {name: signed.headers[name] for name in names if name in signed.headers}
        for name in ("signature", "signature-input"):
            headers[name] = signed.headers[name].split(", sig-")[0]
        reply = await OneHand(node, OTHER).post(path, headers, signed.content)
        assert (reply.status_code, reply.headers["error"]) == (403, "not_the_operator")
