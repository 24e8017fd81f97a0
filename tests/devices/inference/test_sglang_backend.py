"""SGLang as a child, against a stand-in for it; scripts/test-sglang tries the real one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from devices.inference.backends import sglang
from devices.inference.backends.asking import Server, Trouble
from devices.inference.backends.choice import make_backend
from devices.inference.backends.sglang import RunningSGLang, SGLangBackend
from devices.inference.backends.sglang_model import find
from devices.inference.config import InferenceConfig
from hyperbeam import ConfigError
from hyperbeam.verify import jcs

FAKE = Path(__file__).with_name("fake_sglang")
WAIT = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sglang, "INTERVAL", 0.02)


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("not opened")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.json").write_text("{}")
    return folder


def config(model: Any, *args: str, **options: Any) -> InferenceConfig:
    env = {"PYTHONPATH": str(FAKE), **options.pop("env", {})}
    return InferenceConfig(backend="sglang", model=str(model), args=args, env=env, **options)


class Tried:
    """A started backend with what it said."""

    def __init__(self, config: InferenceConfig) -> None:
        backend = make_backend(config)
        assert isinstance(backend, SGLangBackend)
        self.backend = backend
        self.declared: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str]] = []
        self.changed = asyncio.Event()

    async def before_ready(self) -> None:
        assert self.backend.state == "loading"
        self.declared.append(self.backend.settings)

    def on_change(self) -> None:
        self.seen.append((self.backend.state, self.backend.detail))
        self.changed.set()

    async def until(self, state: str, words: str = "") -> None:
        async with asyncio.timeout(WAIT):
            while self.backend.state != state or words not in self.backend.detail:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def started(config: InferenceConfig) -> AsyncIterator[Tried]:
    tried = Tried(config)
    await tried.backend.start(tried.before_ready, tried.on_change)
    try:
        yield tried
    finally:
        await tried.backend.stop(WAIT)


def about(caplog) -> dict[str, Any]:
    line = next(text for text in reversed(caplog.messages) if text.startswith("about "))
    found: dict[str, Any] = json.loads(line.removeprefix("about "))
    return found


def is_there(path: Path) -> bool:
    return path.exists()


async def test_it_runs_with_the_node_s_settings_and_leaves_nothing(model, caplog):
    caplog.set_level(logging.INFO, "hyperbeam.backend.sglang")
    options = {"gpus": (1, 3), "env": {"EXTRA": "1"}, "served_name": "mine"}
    async with started(config(model, "--tp-size", "2", **options)) as tried:
        backend = tried.backend
        assert (backend.state, backend.model) == ("loading", "mine")
        assert backend._key.isalnum()
        await tried.until("ready")
        said = about(caplog)
        assert (said["gpus"], said["extra"]) == ("1,3", "1")
        assert "api-key" not in said["command"]
        assert backend._key not in caplog.text and "api_key='***'" in caplog.text
        settings = tried.declared[0]
        assert settings == backend.settings
        assert settings["engine"] == "sglang 0.5.23"
        assert (settings["accelerator"], settings["tp_size"]) == ("NVIDIA H200", 2)
        assert (settings["enable_deterministic_inference"], settings["random_seed"]) == (True, 0)
        assert jcs.encode(settings)
        assert (backend.context, backend.single_choice, backend.assembled) == (4096, True, False)
        assert await Server(backend.url).status("/ready") == 200
        with pytest.raises(Trouble, match="401"):
            await Server(backend.url).json("/server_info")
        folder = Path(said["tmp"]).parent
        assert is_there(folder) and not is_there(folder / "launch.json")
        assert folder.stat().st_mode & 0o777 == 0o700
        traces = [folder, Path("/dev/shm", said["shm"])]
        traces += [Path(f"/proc/{pid}") for pid in said["pids"]]
        assert all(map(is_there, traces))
    assert backend.state == "off"
    assert not any(map(is_there, traces))


async def test_the_model_is_the_digest_over_its_folder(model):
    async with started(config(model)) as tried:
        await tried.until("ready")
        async with asyncio.timeout(WAIT):
            while tried.backend.identity().by != "hashed":
                tried.changed.clear()
                await tried.changed.wait()
        assert await tried.backend.unknown_model() == ""
        files = tried.backend.describe()["files"]
        assert [file["name"] for file in files] == ["config.json", "model.safetensors"]
        (model / "config.json").write_text('{"other": 1}')
        assert "config.json was changed" in await tried.backend.unknown_model()
        assert tried.backend.identity().by == "declared"


async def test_more_files_than_the_folder_s_are_no_known_model(model):
    async with started(config(model, "--lora-paths", "x")) as tried:
        await tried.until("ready")
        assert "lora_paths" in await tried.backend.unknown_model()
        assert tried.backend.identity().by == "declared"


async def test_dead_it_starts_again_elsewhere_with_the_same_settings(model, caplog):
    caplog.set_level(logging.INFO, "hyperbeam.backend.sglang")
    async with started(config(model)) as tried:
        await tried.until("ready")
        before = tried.backend.url
        said = about(caplog)
        os.kill(said["pids"][0], signal.SIGKILL)
        await tried.until("loading", "starts again: its process was ended by SIGKILL")
        await tried.until("ready")
        assert not is_there(Path(f"/proc/{said['pids'][1]}"))
        assert tried.backend.url != before
        assert tried.declared[0] == tried.declared[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tp-sizes", "2"], "unrecognized arguments: --tp-sizes 2"),
        (["--behave", "memory"], "too little memory"),
        (["--behave", "port"], "took its port"),
        (["--behave", "broken"], "Unsupported architectures"),
    ],
)
async def test_what_it_dies_of_is_said(model, args, words):
    async with started(config(model, *args)) as tried:
        state = "failed" if args[0] == "--tp-sizes" else "loading"
        await tried.until(state, words)


async def test_an_interpreter_without_sglang(model):
    async with started(config(model, env={"PYTHONPATH": ""})) as tried:
        await tried.until("failed", "pip install 'hyperbeam-node[sglang]'")


@pytest.mark.parametrize("behave", ["unready", "stranger"])
async def test_neither_slow_nor_strange_is_ready(model, behave):
    async with started(config(model, "--behave", behave, start_timeout=0.7)) as tried:
        await tried.until("loading", "was not ready within 0.7 s")
        assert not tried.declared
        strange = "it has the model 'of somebody else'"
        assert (strange in tried.backend.detail) == (behave == "stranger")


async def test_without_determinism_nothing_of_it_is_said(model):
    async with started(config(model, deterministic=False)) as tried:
        await tried.until("ready")
        assert tried.backend.settings["enable_deterministic_inference"] is False
        assert tried.backend.single_choice is False


async def test_one_that_runs_already_is_asked_for_its_settings(model, monkeypatch):
    async with started(config(model)) as tried:
        await tried.until("ready")
        monkeypatch.setenv("SGLANG_KEY", tried.backend._key)
        at_url = {"backend": "sglang", "url": tried.backend.url, "auth": "env:SGLANG_KEY"}
        running = make_backend(InferenceConfig(**at_url))
        assert isinstance(running, RunningSGLang)
        await running.start()
        await asyncio.wait_for(running.settled(), WAIT)
        assert (running.state, running.where, running.model) == ("ready", "url", "tiny-model")
        assert running.settings == tried.backend.settings
        assert running.single_choice and running.identity().by == "declared"
        assert await running.unknown_model()
        await running.stop(0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"args": ("--port", "1")}, "take --port out"),
        ({"args": ("--api-key=x",)}, "take --api-key out"),
        ({"args": ("--enable-deterministic-inference",)}, r"use \[inference\] deterministic"),
        ({"url": "http://127.0.0.1:1", "gpus": (0,)}, "gpus is not read"),
        ({"auth": "env:X"}, "auth is not read"),
        ({"model": "/nowhere/at/all"}, "no folder '/nowhere/at/all'"),
        ({"model": "smollm2-135m-instruct"}, "hub id as owner/name"),
        ({"python": "/nowhere/python"}, "is no program"),
    ],
)
async def test_settings_that_cannot_work(model, options, words):
    asked = {"backend": "sglang", "model": str(model), **options}
    with pytest.raises(ConfigError, match=words):
        await make_backend(InferenceConfig(**asked)).start()


def test_a_hub_id_is_its_snapshot_once_all_of_it_is_there(tmp_path):
    kept = tmp_path / "models--owner--name"
    snapshot = kept / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("c0ffee")
    blob = tmp_path / "blob"
    blob.write_bytes(b"weights")
    (snapshot / "config.json").write_text("{}")
    parts = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(parts))
    (snapshot / "model-1.safetensors").symlink_to(blob)
    environment = {"HF_HUB_CACHE": str(tmp_path)}
    source = find("owner/name", [], environment)
    assert (source.argument, source.name, source.files) == ("owner/name", "owner/name", {})
    assert "restart the node" in source.unknown

    (snapshot / "model-2.safetensors").symlink_to(blob)
    template = tmp_path / "chat.jinja"
    template.write_text("x")
    source = find("owner/name", ["--chat-template", str(template)], environment)
    assert (source.argument, source.name, source.unknown) == (str(snapshot), "owner/name", "")
    assert source.files["chat-template"] == template
    assert source.files["model-2.safetensors"].read_bytes() == b"weights"
    assert find("owner/name", ["--revision=other"], environment).unknown
    assert os.path.samefile(source.files["config.json"], snapshot / "config.json")  # noqa: PTH121
