"""The embedded backend with its real model: `hyperbeam models pull` must have run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio

from devices.inference.backends.llama import LlamaBackend, default_threads
from devices.inference.backends.none import NoBackend
from hyperbeam import ConfigError, models
from hyperbeam.verify import jcs

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT = 60.0
FRANCE = "What is the capital of France?"
FERRY = "The ferry left the harbour at dawn and the gulls followed it far out over the bay. "


@dataclass
class Config:
    model: str = models.DEFAULT_MODEL
    slots: int = 4
    context: int = 1024
    threads: int = 0
    start_timeout: float = WAIT


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def settled(backend: LlamaBackend) -> str:
    await until(lambda: backend.state != "loading")
    return backend.state


@pytest.fixture(scope="module")
def model() -> None:
    try:
        models.path_of(models.DEFAULT_MODEL)
    except ConfigError as error:
        pytest.skip(str(error))
    pytest.importorskip("xllamacpp")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(model, tmp_path_factory) -> AsyncIterator[LlamaBackend]:
    backend = LlamaBackend(Config())
    await backend.start()
    assert backend.state == "loading"
    assert await settled(backend) == "ready", backend.detail
    yield backend
    folder = socket_of(backend).parent
    await backend.stop(10)
    assert backend.state == "off"
    assert not folder.exists()


def socket_of(backend: LlamaBackend) -> Path:
    return Path(unquote(backend.url.removeprefix("http+unix://")))


async def send(
    backend: LlamaBackend, path: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(socket_of(backend)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: llama\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


async def post(backend: LlamaBackend, path: str, body: dict[str, Any]) -> Any:
    async with asyncio.timeout(WAIT):
        reader, writer = await send(backend, path, body)
        reply = await reader.read()
    writer.close()
    return json.loads(reply.partition(b"\r\n\r\n")[2])


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


async def answer(backend: LlamaBackend, body: dict[str, Any]) -> str:
    reply = await post(backend, "/v1/chat/completions", body)
    return json.dumps(reply["choices"], sort_keys=True)


async def test_it_knows_the_capital_of_france(backend):
    reply = await post(backend, "/v1/chat/completions", {"messages": ask(FRANCE)["messages"]})
    assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert reply["model"] == models.DEFAULT_MODEL


async def test_only_this_user_reaches_it(backend):
    folder = socket_of(backend).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(str(socket_of(backend))) < 100
    assert backend.headers == []


async def test_without_a_temperature_it_does_not_guess(backend):
    answers = {await answer(backend, ask("Tell me a tale.", seed=seed)) for seed in (1, 2, 3)}
    assert len(answers) == 1
    guesses = {
        await answer(backend, ask("Tell me a tale.", seed=seed, temperature=1.5))
        for seed in (1, 2, 3)
    }
    assert len(guesses) > 1


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1, "seed": 42}])
async def test_the_same_bytes_alone_and_beside_others(backend, settings):
    asked = [ask(text, logprobs=True, **settings) for text in (FRANCE, FERRY * 5 + "Go on.")]
    alone = [await answer(backend, body) for body in asked]
    others = [
        asyncio.create_task(
            answer(backend, ask(FERRY * n + f"{n}?", max_tokens=30, temperature=1, seed=n))
        )
        for n in range(3)
    ]
    leaver = await send(backend, "/v1/chat/completions", ask(FERRY, stream=True, max_tokens=500))
    await leaver[0].readline()
    leaver[1].close()
    assert [await answer(backend, body) for body in asked] == alone
    assert await asyncio.gather(*(answer(backend, body) for body in asked)) == alone
    await asyncio.gather(*others)


async def test_a_client_that_leaves_a_stream_frees_its_slot(backend):
    streams = [
        await send(backend, "/v1/chat/completions", ask(f"{n}", stream=True, max_tokens=100_000))
        for n in range(4)
    ]
    for reader, _ in streams:
        await reader.readuntil(b"data:")
    for _, writer in streams:
        writer.close()
    assert "Paris" in await answer(backend, ask(FRANCE))


async def test_a_prompt_over_the_context_is_refused(backend):
    reply = await post(backend, "/v1/chat/completions", ask("word " * 40_000))
    assert reply["error"]["type"] == "exceed_context_size_error"
    assert reply["error"]["n_ctx"] == 1024


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (
            [{"role": "user", "content": "x"}],
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            [{"role": "system", "content": ""}, {"role": "user", "content": "x"}],
            "<|im_start|>system\n<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}],
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
async def test_the_template_has_a_system_message_unless_the_request_does(backend, messages, prompt):
    assert await post(backend, "/apply-template", {"messages": messages}) == {"prompt": prompt}


async def test_describe_names_what_answers_depend_on(backend):
    about = backend.describe()
    assert about["kind"] == "llama"
    await until(lambda: backend.identity().by == "hashed")
    about = backend.describe()
    template, weights = about["files"]
    assert (template["name"], weights["name"]) == ("template", "weights")
    assert weights["sha256"] == models.CATALOGUE[models.DEFAULT_MODEL].sha256
    assert about["model-sha256"] == jcs.digest({"v": "hyperbeam.model/1", "files": about["files"]})
    assert about["engine"].startswith("xllamacpp 20")
    assert about["cpu"]
    expected = {
        "batch": 64,
        "context": 1024,
        "flash_attention": "enabled",
        "kv_type": "bf16",
        "kv_unified": False,
        "prompt_cache": True,
        "slots": 4,
        "temperature": 0.0,
        "threads": default_threads(),
        "weight_repacking": False,
    }
    assert about["settings"] == expected
    assert backend.settings == {
        **expected,
        "temperature": "0.0",
        "engine": about["engine"],
        "cpu": about["cpu"],
    }


async def test_killed_it_comes_back_at_the_same_address(backend):
    url, before = backend.url, await answer(backend, ask(FRANCE))
    os.kill(backend._child.pid, signal.SIGKILL)
    await until(lambda: backend.state == "loading")
    await until(lambda: "SIGKILL" in backend.detail)
    assert await settled(backend) == "ready"
    await until(lambda: backend.identity().by == "hashed")
    assert backend.url == url
    assert await answer(backend, ask(FRANCE)) == before


async def test_a_swapped_file_is_noticed_and_counts_from_the_next_start(model, tmp_path):
    path = tmp_path / "copied.gguf"
    shutil.copyfile(models.path_of(models.DEFAULT_MODEL), path)
    declared: list[dict[str, Any]] = []

    async def before_ready() -> None:
        declared.append({"state": backend.state, "settings": dict(backend.settings)})

    backend = LlamaBackend(Config(model=str(path)))
    assert await backend.unknown_model()
    assert backend.identity().by == "declared"
    await backend.start(before_ready)
    assert await settled(backend) == "ready", backend.detail
    assert [one["state"] for one in declared] == ["loading"]
    assert declared[0]["settings"] == backend.settings != {}
    await until(lambda: backend.identity().by == "hashed")
    assert await backend.unknown_model() == ""
    before = backend.identity()
    assert before.size == path.stat().st_size

    swapped, times = tmp_path / "other", path.stat()
    shutil.copyfile(path, swapped)
    with swapped.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(swapped, ns=(times.st_atime_ns, times.st_mtime_ns))
    swapped.replace(path)
    assert "copied.gguf was changed while it is in use" in await backend.unknown_model()
    assert backend.identity().by == "declared"
    assert await backend.unknown_model()

    os.kill(backend._child.pid, signal.SIGKILL)
    await until(lambda: backend.state == "loading")
    assert await settled(backend) == "ready"
    await until(lambda: backend.identity().by == "hashed")
    assert await backend.unknown_model() == ""
    assert backend.identity().sha256 != before.sha256
    assert len(declared) == 2
    await backend.stop(5)


async def failed(config: Config, home: Path) -> str:
    backend = LlamaBackend(config)
    await backend.start()
    assert await settled(backend) == "failed"
    detail = backend.detail
    await backend.stop(1)
    return detail


async def test_a_missing_model_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HB_MODELS", str(tmp_path))
    with pytest.raises(ConfigError, match=f"`hyperbeam models pull {models.DEFAULT_MODEL}`"):
        await LlamaBackend(Config()).start()


async def test_a_name_that_is_no_model(tmp_path):
    with pytest.raises(ConfigError, match=models.DEFAULT_MODEL):
        await LlamaBackend(Config(model="gpt")).start()


async def test_a_damaged_file_is_a_failure_with_its_reason(model, tmp_path):
    damaged = tmp_path / "half.gguf"
    with models.path_of(models.DEFAULT_MODEL).open("rb") as whole:
        damaged.write_bytes(whole.read(1_000_000))
    detail = await failed(Config(model=str(damaged)), tmp_path)
    assert detail.startswith("the model half cannot run: ")
    assert "half.gguf" in detail


async def test_stopped_while_it_loads(model, tmp_path):
    backend = LlamaBackend(Config())
    await backend.start()
    await backend.start()
    await backend.stop(5)
    assert (backend.state, backend.url) == ("off", "")
    await backend.stop(5)


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"slots": 65}, {"context": 1}])
async def test_settings_out_of_range(tmp_path, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LlamaBackend(Config(**wrong))


async def test_no_backend_says_how_to_have_one():
    backend = NoBackend()
    await backend.start()
    await backend.stop(0)
    assert (backend.state, backend.url, backend.headers) == ("off", "", [])
    assert "--profile inference" in backend.detail
    assert backend.describe() == {"kind": "none"}
    assert (backend.where, backend.settings, backend.identity().name) == ("url", {}, "")
    assert await backend.unknown_model() == backend.detail
