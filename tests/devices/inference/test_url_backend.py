"""A server that runs already: asked whether it is ready, and what it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from devices.inference.backends import url as url_module
from devices.inference.backends.choice import make_backend
from devices.inference.backends.sglang import RunningSGLang
from devices.inference.backends.url import UrlBackend
from devices.inference.config import InferenceConfig
from hyperbeam import ConfigError

WAIT = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(url_module, "INTERVAL", 0.01)


class Site:
    """An HTTP server that answers GET as `answers` says: a status, an object, or both."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/health": 200,
            "/v1/models": {"data": [{"id": "a", "max_model_len": 99}, {"id": "b/c"}]},
        }
        self.asked: list[tuple[str, str]] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                key = next((line for line in lines if line.startswith("authorization: ")), "")
                path = first.split()[1]
                self.asked.append((path, key.partition(": ")[2]))
                answer = self.answers.get(path, 404)
                status, value = (answer, None) if isinstance(answer, int) else (200, answer)
                body = json.dumps(value).encode()
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Tried:
    def __init__(self, **options: Any) -> None:
        backend = make_backend(InferenceConfig(**{"backend": "url", **options}))
        assert isinstance(backend, UrlBackend)
        self.backend = backend
        self.changed = asyncio.Event()
        self.declared = 0

    async def before_ready(self) -> None:
        assert self.backend.state != "ready"
        self.declared += 1

    async def until(self, state: str, words: str = "") -> None:
        async with asyncio.timeout(WAIT):
            while self.backend.state != state or words not in self.backend.detail:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Tried]:
    tried = Tried(**options)
    await tried.backend.start(tried.before_ready, tried.changed.set)
    try:
        yield tried
    finally:
        await tried.backend.stop(0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


async def test_ready_with_the_first_of_its_models(site):
    async with started(url=site.url + "/v1/") as tried:
        assert tried.backend.state == "loading"
        await asyncio.wait_for(tried.backend.settled(), WAIT)
        backend = tried.backend
        assert (backend.state, backend.model, backend.context) == ("ready", "a", 99)
        assert (backend.url, backend.headers, backend.settings) == (site.url, [], {})
        assert (backend.where, backend.assembled, backend.single_choice) == ("url", False, False)
        assert (backend.identity().by, backend.identity().sha256) == ("declared", None)
        assert tried.declared == 1
    assert tried.backend.state == "off"


async def test_another_model_and_another_health_path(site):
    site.answers["/health"] = 404
    async with started(url=site.url, served_name="b/c", health="/v1/models") as tried:
        await tried.until("ready")
        assert tried.backend.model == "b/c"
        assert {path for path, _ in site.asked} == {"/v1/models"}


async def test_down_and_back_with_another_model(site):
    async with started(url=site.url) as tried:
        await tried.until("ready")
        site.answers["/health"] = 503
        await tried.until("down", "/health answers 503")
        site.answers["/health"] = 204
        site.answers["/v1/models"] = {"data": [{"id": "new"}]}
        await tried.until("ready")
        assert (tried.backend.model, tried.declared) == ("new", 2)
        await site.__aexit__()
        await tried.until("down", "no connection")
        async with site:
            await tried.until("ready")


async def test_a_server_that_never_was_there_is_down_after_its_time():
    async with started(url="http://127.0.0.1:9", start_timeout=0.05) as tried:
        await tried.until("loading", "no connection")
        await asyncio.wait_for(tried.backend.settled(), WAIT)
        assert tried.backend.state == "down"


async def test_the_key_comes_from_a_file_and_may_change(site, tmp_path):
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    async with started(url=site.url, auth=f"file:{file}") as tried:
        await tried.until("ready")
        assert tried.backend.headers == [(b"authorization", b"Bearer s3cret")]
        assert site.asked[-1][1] == "Bearer s3cret"
        file.write_text("an0ther, longer")
        async with asyncio.timeout(WAIT):
            while tried.backend.headers != [(b"authorization", b"Bearer an0ther,longer")]:
                tried.changed.clear()
                file.write_text("an0ther,longer")
                await tried.changed.wait()
        site.answers["/v1/models"] = 401
        site.answers["/health"] = 500
        await tried.until("down")
        site.answers["/health"] = 200
        await tried.until("down", "it refuses the key: /v1/models answers 401")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"data": []}, "no model"),
        ([1], "no JSON object"),
        ({"data": [{"id": "x"}, {"name": "y"}, 3]}, "no model 'z'; there is: x"),
    ],
)
async def test_what_is_no_list_of_models(site, models, words):
    site.answers["/v1/models"] = models
    options = {"served_name": "z"} if "'z'" in words else {}
    async with started(url=site.url, **options) as tried:
        await tried.until("loading", words)


async def test_a_server_that_is_no_sglang(site):
    site.answers |= {"/ready": 200, "/server_info": {"version": 1}}
    async with started(backend="sglang", url=site.url) as tried:
        assert isinstance(tried.backend, RunningSGLang)
        await tried.until("loading", "it is no SGLang server")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "url is ''"),
        ({"url": "127.0.0.1:30000"}, "give the address of a server"),
        ({"url": "http://127.0.0.1:99999"}, "give the address of a server"),
        ({"url": "ftp://host"}, "give the address of a server"),
        ({"url": "http://me:s3cret@host"}, "give the key by `auth`"),
        ({"url": "http://host", "auth": "s3cret"}, "env:NAME or file:PATH"),
        ({"url": "http://host", "auth": "env:NOT_SET_ANYWHERE"}, "variable is not set"),
        ({"url": "http://host", "auth": "file:/nowhere"}, "file cannot be read"),
        ({"url": "http://host", "args": ("--x",)}, "args is not read"),
    ],
)
async def test_settings_that_cannot_work(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        await make_backend(InferenceConfig(**{"backend": "url", **options})).start()
    assert "s3cret" not in str(caught.value)
