import json
from pathlib import Path

import httpx
import pytest

from hyperbeam import BadRequest, ConfigError, Message, NotFound
from hyperbeam.config import load
from hyperbeam.errors import HyperbeamError
from hyperbeam.node import Node
from hyperbeam.targets import names_device

from .conftest import StartNode

STOPPING = """
from hyperbeam import ConfigError, Device


class A(Device):
    name = "a@1.0"
    stopped = False

    async def start(self):
        pass

    async def stop(self):
        self.stopped = True


class B(A):
    name = "b@1.0"

    async def stop(self):
        self.stopped = True
        raise RuntimeError("no stop")


class C(A):
    name = "c@1.0"
"""

LAST = """
from hyperbeam import Device


class Last(Device):
    name = "last@1.0"

    async def stop(self):
        self.node.receipts.add({"id": "ab" * 16, "v": ""}, self.node.keys.current)
"""


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.server.port}") as client:
        return await client.get(path, headers=headers)


async def test_two_nodes_live_in_one_process(start_node: StartNode) -> None:
    one, two = await start_node(), await start_node(profile="")
    assert one.server.port != two.server.port
    assert one.store is not two.store
    for node in (one, two):
        reply = await get(node, "/~meta@1.0/info/port")
        assert int(reply.text) == node.server.port


async def test_two_nodes_cannot_share_a_home(start_node: StartNode) -> None:
    first = await start_node()
    with pytest.raises(ConfigError, match="another node"):
        await start_node(home=str(first.home))
    assert (await get(first, "/~meta@1.0/live")).status_code == 200


async def test_a_home_is_free_again_after_a_node(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(home=str(tmp_path / "one"))
    await node.stop()
    await start_node(home=str(tmp_path / "one"))


async def test_a_failed_start_leaves_nothing_behind(start_node: StartNode, tmp_path: Path) -> None:
    home = str(tmp_path / "one")
    with pytest.raises(ConfigError, match="required"):
        await start_node(home=home, required=["nosuch@1.0"])
    await start_node(home=home)


async def test_a_section_that_nobody_reads_is_refused(start_node: StartNode) -> None:
    with pytest.raises(ConfigError, match=r"\[echoes\]"):
        await start_node(echoes__loud=True)
    with pytest.raises(ConfigError, match="slotz"):
        await start_node(inference__slotz=1)


async def test_stored_messages_are_found_by_id(node: Node) -> None:
    written = node.cache.write({"a": 1, "b": {"c": "d"}})
    assert await node.resolve(None, f"/{written}/a") == 1
    assert await node.resolve(None, f"/{written}/b/c") == "d"
    assert (await get(node, f"/{written}/a")).text == "1"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/~a@1.0/b", True),
        ("/%7Ea@1.0/b", True),
        ("//~a@1.0", True),
        ("/k~a@1.0", True),
        ("/(a)/b", True),
        ("/%28a)/b", True),
        ("/" + "A" * 43 + "&x=1/b", True),
        ("/" + "A" * 42, False),
        ("/v1/~a@1.0", False),
        ("/v1?x=~a", False),
        ("/", False),
        ("", False),
    ],
)
def test_which_paths_have_no_route(path: str, names: bool) -> None:
    assert names_device(path) is names


async def test_a_route_cannot_take_over_a_device(start_node: StartNode, tmp_path: Path) -> None:
    routes = tmp_path / "routes.toml"
    routes.write_text('[[routes]]\ntemplate = ".*"\nnode = "http://127.0.0.1:1"')
    node = await start_node(routes=str(routes))
    assert (await get(node, "/~meta@1.0/live")).status_code == 200
    assert (await get(node, "/anything")).status_code == 502


async def test_the_root_leads_to_the_nodes_page(node: Node) -> None:
    reply = await get(node, "/")
    assert (reply.status_code, reply.headers["location"]) == (302, "/~meta@1.0/info")
    page = await get(node, reply.headers["location"], accept="text/html")
    assert "hyperbeam-node" in page.text


async def test_errors_have_the_nodes_shape_or_the_devices(node: Node) -> None:
    def rendered(error: HyperbeamError, path: str) -> Message:
        return node.render_error(error, {"path": path})

    error = NotFound("x")
    assert rendered(error, "/~message@1.0/x") == {
        "status": 404,
        "error": "not_found",
        "body": "'x' was not found",
    }
    for path in ("/~inference@1.0/x", "/x~inference@1.0&a=b", "/v1/x?y", "/health"):
        assert json.loads(rendered(error, path)["body"])["error"]["message"]
    assert rendered(BadRequest("no", param="p"), "/~nosuch@1.0")["param"] == "p"
    assert rendered(BadRequest("no", headers={"allow": "GET"}), "/x")["allow"] == "GET"


async def test_json_replies_do_not_echo_the_request(node: Node) -> None:
    reply = await get(node, "/~message@1.0&a=1&b+integer=2?c=3", accept="application/json")
    assert reply.json() == {"device": "message@1.0", "a": "1", "b": 2, "c": "3"}


async def test_secrets_of_the_head_are_no_keys(node: Node) -> None:
    headers = {"authorization": "Bearer s3cret", "cookie": "s3cret", "x-api-key": "s3cret"}
    for path in ("/~message@1.0", "/~echo@1.0/base", "/~echo@1.0/request", "/~json@1.0/serialize"):
        for accept in ("application/json", "text/html", "*/*"):
            reply = await get(node, path, accept=accept, **headers)
            assert reply.status_code == 200
            assert "s3cret" not in reply.text + str(reply.headers)


async def test_a_device_that_does_not_stop_does_not_hinder_the_others(
    start_node: StartNode, tmp_path: Path
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "more.py").write_text(STOPPING)
    node = await start_node(device_path=[str(folder)])
    await node.stop()
    assert all(node.devices[name].stopped for name in ("a@1.0", "b@1.0", "c@1.0"))


async def test_only_what_was_started_is_stopped(start_node: StartNode, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "more.py").write_text(STOPPING.replace("pass", "raise ConfigError('no start')"))
    node = Node(
        load(
            environment={},
            flags={"home": str(tmp_path / "x"), "http.port": 0, "device_path": [str(folder)]},
        )
    )
    with pytest.raises(ConfigError, match="no start"):
        await node.start()
    assert not any(node.devices[name].stopped for name in ("a@1.0", "b@1.0", "c@1.0"))


async def test_a_device_that_does_not_start_is_named(start_node: StartNode, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "more.py").write_text(STOPPING.replace("pass", "raise OSError('no start')"))
    node = await start_node(device_path=[str(folder)])
    assert node.failures["a@1.0"].reason == "OSError: no start"
    reply = await get(node, "/~a@1.0/x", accept="application/json")
    assert reply.status_code == 404
    assert "a@1.0 did not load" in reply.json()["body"]
    assert "no start" not in reply.text
    with pytest.raises(ConfigError, match=r"required.*no start"):
        await start_node(device_path=[str(folder)], required=["a@1.0"])


async def test_a_route_to_a_device_that_is_not_there(start_node: StartNode, tmp_path: Path) -> None:
    routes = tmp_path / "routes.toml"
    routes.write_text(
        '[[routes]]\ntemplate = "/a"\ndevice = "no@1.0"\nnodes = [{ backend = "local" }]'
    )
    with pytest.raises(ConfigError, match=r"the route /a: device no@1\.0"):
        await start_node(routes=str(routes))


async def test_a_node_keeps_its_identity_and_its_receipts(start_node: StartNode) -> None:
    node = await start_node()
    id, address = node.receipts.new_id(), node.identity.address
    node.receipts.add({"id": id, "v": "hyperbeam.receipt/1"}, node.keys.current)
    await node.stop()
    again = await start_node(home=str(node.home))
    assert again.identity.address == address
    found = await again.receipts.get(id)
    assert found is not None
    assert found["key_id"] == node.keys.current.receipt_key_id != again.keys.current.receipt_key_id


async def test_devices_may_write_receipts_until_they_have_stopped(
    start_node: StartNode, tmp_path: Path
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "last.py").write_text(LAST)
    node = await start_node(device_path=[str(folder)])
    await node.stop()
    again = await start_node(home=str(node.home))
    assert await again.receipts.get("ab" * 16) is not None


async def test_a_node_that_may_not_use_its_key(start_node: StartNode) -> None:
    node = await start_node()
    await node.stop()
    (node.home / "identity.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        await start_node(home=str(node.home))
    (node.home / "identity.key").chmod(0o600)
    await start_node(home=str(node.home))


async def test_how_many_receipts_are_kept_is_a_setting(start_node: StartNode) -> None:
    node = await start_node(receipts__keep="5", receipts__days=2)
    assert (node.config.receipts.keep, node.config.receipts.days) == (5, 2)
    with pytest.raises(ConfigError, match="keep"):
        await start_node(receipts__keep=0)


@pytest.mark.parametrize(
    "body", ["[" + "1," * 199_990 + "1]", '{"a":' + "[" + '{"a":1},' * 60_000 + "1]}"]
)
async def test_a_large_value_is_json_or_a_refusal(node: Node, body: str) -> None:
    base_url = f"http://127.0.0.1:{node.server.port}"
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
        path = "/~json@1.0/deserialize"
        shown = await client.post(path, content=body, headers={"accept": "application/json"})
        assert shown.json() == json.loads(body)
        assert (await client.post(path, content=body)).status_code == 413
        assert (await client.post(path + "/id", content=body)).status_code == 413


async def test_a_web_page_cannot_reach_a_node_on_loopback(start_node: StartNode) -> None:
    node = await start_node()
    reply = await get(node, "/~meta@1.0/info", host="evil.example", accept="application/json")
    assert (reply.status_code, reply.json()["error"]) == (421, "misdirected_request")
    assert "http.hosts" in reply.json()["body"]
    for host in ("localhost", "127.0.0.1:1", "[::1]:8734", "node.localhost"):
        assert (await get(node, "/~meta@1.0/live", host=host)).status_code == 200
    named = await start_node(http__hosts="node.example")
    assert (await get(named, "/~meta@1.0/live", host="node.example")).status_code == 200
    everywhere = await start_node(http__host="0.0.0.0", access__open=True)
    assert (await get(everywhere, "/~meta@1.0/live", host="any.example")).status_code == 200


async def test_a_section_is_read_by_either_spelling(start_node: StartNode) -> None:
    node = await start_node(**{"receipt_log.gather": 0.25})
    assert node.device("receipt-log@1.0").config.gather == 0.25
    other = await start_node(**{"receipt-log.gather": 0.5})
    assert other.device("receipt-log@1.0").config.gather == 0.5
