"""Hooks: handlers from the config around requests, steps and responses."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperbeam import ConfigError, HyperbeamError, NotFound, Stream
from hyperbeam.config import Config, load
from hyperbeam.declared import facts
from hyperbeam.device import seal
from hyperbeam.hooks import Hooks
from hyperbeam.node import Node

PROBES = '''
import asyncio

from hyperbeam import Device, Forbidden, Stream, key

SEEN = []


class Probe(Device):
    """Handlers that say what they were given, and change it."""

    name = "probe@1.0"
    seen = SEEN

    @key(name="start")
    async def begin(self, base, request):
        SEEN.append(("start", dict(request)))
        return request

    @key
    async def see(self, base, request):
        SEEN.append((base.get("tag", "see"), dict(request)))
        return {"body": "what is ignored"}

    @key
    async def pass_(self, base, request):
        return request

    @key
    async def rename(self, base, request):
        first, *rest = request["body"]
        return {"body": [{**first, "a": base["to"]}, *rest]}

    @key
    async def replace(self, base, request):
        return {"body": base["by"]}

    @key
    async def wrap(self, base, request):
        return {**request, "body": {"was": request["body"], "by": base.get("tag")}}

    @key
    async def refuse(self, base, request):
        raise Forbidden("not today")

    @key
    async def status(self, base, request):
        return {"status": 429, "body": "slow down"}

    @key
    async def digits(self, base, request):
        return {"status": "429", "body": "slow down"}

    @key
    async def odd(self, base, request):
        return {"body": {"status": base["odd"], "body": "x"}}

    @key
    async def nothing(self, base, request):
        return {"a": 1}

    @key
    async def plain(self, base, request):
        return 7

    @key
    async def fault(self, base, request):
        raise RuntimeError("it is down\\nfor long")

    @key
    async def cancelled(self, base, request):
        raise asyncio.CancelledError

    @key
    async def exits(self, base, request):
        raise SystemExit(3)

    @key
    async def stream(self, base, request):
        async def chunks():
            yield b"x"

        return Stream(chunks())


class Tight(Device):
    """What it gives is signed."""

    name = "tight@1.0"
    sealed = True

    @key
    async def own(self, base, request):
        return {"a": 1}

    @key
    async def context(self, base, request):
        return sorted(request["priv"])
'''


@pytest.fixture
def probes(tmp_path: Path) -> str:
    folder = tmp_path / "probes"
    folder.mkdir()
    (folder / "probes.py").write_text(PROBES)
    return str(folder)


class Nodes:
    def __init__(self, start: Any, probes: str) -> None:
        self._start, self._probes = start, probes

    async def __call__(self, **hooks: Any) -> Node:
        flags = {f"hooks.{name}": value for name, value in hooks.items()}
        node: Node = await self._start(**flags, device_path=[self._probes])
        node.device("probe@1.0").seen.clear()  # type: ignore[attr-defined]
        return node


@pytest.fixture
def hooked(start_node: Any, probes: str) -> Nodes:
    return Nodes(start_node, probes)


def seen(node: Node) -> list[Any]:
    return list(node.device("probe@1.0").seen)  # type: ignore[attr-defined]


def call(key: str, **more: Any) -> dict[str, Any]:
    return {"device": "probe@1.0", "path": key, **more}


async def ask(node: Node, path: str, **more: Any) -> Any:
    request = {"method": "GET", "path": path, "body": b"", "priv": {"client": "10.0.0.9"}, **more}
    return await node.handle(request)


async def get(node: Node, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{node.server.port}{path}", headers=headers)


async def test_without_hooks_a_message_passes_as_it_is(node: Node) -> None:
    message = {"test": "value"}
    assert await node.hooks.run("request", message) is message


async def test_handlers_are_a_pipeline(hooked: Nodes) -> None:
    node = await hooked(response=[call("wrap", tag="1"), call("wrap", tag="2")])
    assert await ask(node, "/~message@1.0&a=1/a") == {"was": {"was": "1", "by": "1"}, "by": "2"}


async def test_a_handler_that_raises_ends_it(hooked: Nodes) -> None:
    node = await hooked(request=[call("refuse"), call("see")])
    reply = await get(node, "/~message@1.0&a=1/a")
    assert (reply.status_code, "not today" in reply.text, seen(node)) == (403, True, [])


@pytest.mark.parametrize("handler", ["status", "digits"])
async def test_a_status_of_an_error_refuses(hooked: Nodes, handler: str) -> None:
    node = await hooked(response=call(handler))
    reply = await get(node, "/~message@1.0&a=1/a", accept="application/json")
    assert (reply.status_code, reply.json()["body"]) == (429, "slow down")


@pytest.mark.parametrize(("status", "sent"), [(418, 418), ("418", 418), (999, 500), ("odd", 500)])
@pytest.mark.parametrize("hook", ["step", "response"])
async def test_a_status_that_a_handler_makes_is_the_replys(
    hooked: Nodes, caplog: pytest.LogCaptureFixture, hook: str, status: Any, sent: int
) -> None:
    node = await hooked(**{hook: call("odd", odd=status)})
    assert (await get(node, "/~message@1.0&a=1/a")).status_code == sent
    assert ("probe@1.0/odd gives the status" in caplog.text) == (sent == 500)


async def test_an_ignored_handler_sees_and_changes_nothing(hooked: Nodes) -> None:
    node = await hooked(
        request=call("see", **{"hook/result": "ignore"}),
        response=call("see", tag="response", hook={"result": "ignore"}),
    )
    assert await ask(node, "/~message@1.0&a=1/a") == "1"
    assert [name for name, _ in seen(node)] == ["see", "response"]


async def test_hook_result_error_makes_a_refusal_of_what_it_gives(hooked: Nodes) -> None:
    node = await hooked(request=call("see", **{"hook/result": "error"}))
    with pytest.raises(HyperbeamError, match="what is ignored") as caught:
        await ask(node, "/~message@1.0&a=1/a")
    assert caught.value.status == 400


async def test_a_request_hook_sees_the_request_and_its_steps(hooked: Nodes) -> None:
    node = await hooked(request=call("see", **{"hook/result": "ignore"}))
    await ask(node, "/~message@1.0&a=1/a&b+integer=2", host="h")
    ((_, given),) = seen(node)
    assert given["request"] == {
        "method": "GET",
        "path": "/~message@1.0&a=1/a&b+integer=2",
        "body": b"",
        "host": "h",
    }
    base, step = given["body"]
    assert (base["device"], base["a"], step["path"], step["b"]) == ("message@1.0", "1", "a", 2)
    assert given["path"] == "see"


async def test_credentials_and_private_parts_are_not_for_hooks(hooked: Nodes) -> None:
    ignore = {"hook/result": "ignore"}
    node = await hooked(**{name: call("see", **ignore) for name in ("request", "step", "response")})
    reply = await get(
        node,
        "/~message@1.0&a=1/a",
        **{"authorization": "Bearer hush-1", "cookie": "hush-2", "x-api-key": "hush-3"},
    )
    assert reply.status_code == 200
    assert len(seen(node)) == 3
    assert "hush" not in repr(seen(node))
    for _, given in seen(node):
        assert set(given["priv"]) == {"client"}
        assert "priv" not in given["request"]


async def test_who_signed_is_told_to_hooks(hooked: Nodes) -> None:
    node = await hooked(request=call("see", **{"hook/result": "ignore"}))
    private = {"client": "10.0.0.9", "signers": ("A",), "committed": {"a"}, "headers": {"x": "y"}}
    await ask(node, "/~message@1.0&a=1/a", priv=private)
    ((_, given),) = seen(node)
    assert given["priv"] == {"client": "10.0.0.9", "signers": ("A",), "committed": {"a"}}


async def test_a_request_hook_can_change_a_step(hooked: Nodes) -> None:
    node = await hooked(request=call("rename", to="2"))
    assert await ask(node, "/~message@1.0&a=1/a") == "2"


async def test_steps_that_a_hook_leaves_keep_their_sub_paths(hooked: Nodes) -> None:
    node = await hooked(request=call("rename", to="2"))
    assert await ask(node, "/~message@1.0&a=1/set&b=(~message@1.0&q=5/q)/b") == "5"


@pytest.mark.parametrize(
    ("by", "result"),
    [
        ("/~message@1.0&x=3/x", "3"),
        ({"path": "/x", "x": "4"}, "4"),
        ([{"x": "5"}, {"path": "x"}], "5"),
        ([{"path": "~message@1.0&x=6"}, {"path": "set/y", "y": "7"}], "7"),
        ([{"device": "any@1.0"}, {"path": "q"}], "any q"),
    ],
)
async def test_a_request_hook_can_say_what_is_resolved(
    start_node: Any, probes: str, by: object, result: str, tmp_path: Path
) -> None:
    folders = [probes, str(tmp_path / "devices")]
    node = await start_node(hooks__request=call("replace", by=by), device_path=folders)
    assert await ask(node, "/anything") == result


async def test_a_request_hook_cannot_say_who_asks(hooked: Nodes) -> None:
    by = [{"device": "tight@1.0", "priv": {"signers": ["me"]}}, {"path": "context", "private": 1}]
    node = await hooked(request=call("replace", by=by))
    assert await ask(node, "/anything") == ["client"]


@pytest.mark.parametrize("key", ["nothing", "plain", "stream"])
async def test_a_handler_that_gives_no_message_is_said_to_fail(hooked: Nodes, key: str) -> None:
    node = await hooked(request=call(key))
    reply = await get(node, "/~message@1.0&a=1/a", accept="application/json")
    assert (reply.status_code, reply.json()["error"]) == (500, "hook_failed")


@pytest.mark.parametrize("by", [[], [7], {"a": 1, "path": 3}, "(", [{"device": 4}]])
async def test_what_cannot_be_resolved_is_refused(hooked: Nodes, by: object) -> None:
    node = await hooked(request=call("replace", by=by))
    with pytest.raises(HyperbeamError):
        await ask(node, "/~message@1.0&a=1/a")


async def test_the_step_hook_runs_after_each_step_and_not_within_itself(hooked: Nodes) -> None:
    node = await hooked(step=call("see", **{"hook/result": "ignore"}))
    assert await ask(node, "/~message@1.0&a=1/set&b=2/b") == "2"
    first, second = (given for _, given in seen(node))
    assert (first["request"]["path"], first["body"]["b"]) == ("set", "2")
    assert (second["request"]["path"], second["body"]) == ("b", "2")
    assert second["base"]["a"] == "1"


async def test_the_step_hook_changes_what_a_step_gives(hooked: Nodes) -> None:
    node = await hooked(step=call("wrap"))
    assert await ask(node, "/~message@1.0&a=1/a/was") == {"was": "1", "by": None}


@pytest.mark.parametrize("hook", ["step", "response"])
async def test_what_is_sealed_no_hook_changes(hooked: Nodes, hook: str) -> None:
    node = await hooked(**{hook: call("wrap")})
    result = await ask(node, "/~tight@1.0/own")
    assert result["a"] == 1
    assert "was" not in result


async def test_a_sealed_message_keeps_its_private_part() -> None:
    assert seal({"a": 1, "priv": {"x": 2}}) == {"a": 1, "priv": {"x": 2, "sealed": True}}
    assert seal(7) == 7


async def test_streams_are_seen_and_left_as_they_are(hooked: Nodes) -> None:
    node = await hooked(response=call("wrap"))
    result = await ask(node, "/~probe@1.0/stream")
    assert isinstance(result, Stream)
    await result.aclose()


async def test_a_refused_stream_is_closed(hooked: Nodes) -> None:
    node = await hooked(response=call("refuse"))
    reply = await get(node, "/~probe@1.0/stream")
    assert reply.status_code == 403


async def test_the_headers_a_device_gives_stay(hooked: Nodes) -> None:
    node = await hooked(response=call("pass"))
    reply = await get(node, "/")
    assert (reply.status_code, reply.headers["location"]) == (302, "/~meta@1.0/info")


async def test_the_start_hook_runs_once(start_node: Any, probes: str) -> None:
    node = await start_node(hooks__start=call("start"), device_path=[probes])
    ((name, given),) = seen(node)
    assert (name, given["body"]["address"]) == ("start", node.identity.address)


async def test_a_start_hook_that_refuses_ends_the_start(start_node: Any, probes: str) -> None:
    with pytest.raises(ConfigError, match=r"hook start, probe@1\.0/refuse: not today"):
        await start_node(hooks__start=call("refuse"), device_path=[probes])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("fault", "RuntimeError: it is down"),
        ("cancelled", "CancelledError"),
        ("exits", "SystemExit"),
        ("plain", "does not work"),
        ("status", "slow down"),
    ],
)
async def test_a_start_hook_that_fails_is_named(
    start_node: Any, probes: str, key: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        await start_node(hooks__start=["probe@1.0/see", call(key)], device_path=[probes])
    assert caught.value.detail.startswith(f"the hook start, probe@1.0/{key}: ")
    assert said in caught.value.detail
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"reqest": "probe@1.0"}, "no hook 'reqest'"),
        ({"request": 7}, "a handler is a table"),
        ({"request": [{}]}, "needs a device"),
        ({"request": "no device"}, "needs a device"),
        ({"request": call("a", **{"hook/result": "drop"})}, "one of return, ignore, error"),
        ({"request": call("a", **{"hook/commit-request": True})}, "no setting hook/commit-request"),
        ({"request": call("a", hook="x")}, "no setting hook/"),
        ({"request": call("a", priv={})}, "private key"),
        ({"request": call("/")}, "names no key"),
        ({"request": call("(")}, "parenthesis"),
        ({"request": call("a", method=7)}, "are texts"),
        ({"request": {"device": "probe@1.0", "path": 7}}, "are texts"),
    ],
)
def test_what_is_wrong_with_a_handler_is_said(hooks: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Hooks(Node(Config(home="unused")), hooks)


def test_a_hook_has_one_place_in_the_config() -> None:
    one, other = {"request": "faff@1.0"}, {"request": "relay@1.0", "step": "dedup@1.0"}
    with pytest.raises(ConfigError, match="both have a hook 'request'"):
        Node(Config(home="unused", on=one, hooks=other))
    hooks = Node(Config(home="unused", on={"response": "faff@1.0"}, hooks=other)).hooks
    assert [one["on"] for one in hooks.describe()] == ["request", "step", "response"]


@pytest.mark.parametrize(
    ("handler", "said"),
    [("nobody@1.0", "no device nobody@1.0"), ("meta@1.0/nothing", "has no key 'nothing'")],
)
async def test_a_handler_that_there_is_not_ends_the_start(
    start_node: Any, handler: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await start_node(hooks__request=handler)


async def test_the_key_set_tells_of_hooks_without_their_secrets(hooked: Nodes) -> None:
    node = await hooked(request=call("pass", token="hush", tag="said"))
    said = facts(node.config, node.routes, node.devices, node._found, node.hooks.describe())
    (hook,) = said["hooks"]
    assert hook == {
        "on": "request",
        "device": "probe@1.0",
        "tag": "said",
        "path": "pass",
        "method": "GET",
        "hook/result": "return",
    }
    assert "hush" not in repr(said)


def test_on_is_another_name_for_hooks(tmp_path: Path) -> None:
    file = tmp_path / "hyperbeam.toml"
    file.write_text('[on]\nrequest = "router@1.0/preprocess"\n')
    node = Node(load(file, environment={}, flags={"home": str(tmp_path)}))
    assert [handler.path for handler in node.hooks.request] == ["preprocess"]


async def test_a_request_for_nothing_is_still_a_404(hooked: Nodes) -> None:
    node = await hooked(request=call("pass"), response=call("pass"))
    with pytest.raises(NotFound):
        await ask(node, "/~message@1.0/nothing")
