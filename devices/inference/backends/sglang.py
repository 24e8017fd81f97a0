"""SGLang: started by this node in its deterministic mode, or running already at an address."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol

from hyperbeam import ConfigError, Message
from hyperbeam.serve.child import GIVE_UP, Child
from hyperbeam.serve.child import State as ChildState

from . import BeforeReady, ModelIdentity, OnChange, State, Where, sglang_info
from .asking import Server, Trouble
from .llama_server import cpu_name
from .model_digest import ModelDigest
from .sglang_info import READY, Info
from .sglang_model import find, value_of
from .sglang_server import LAUNCH
from .sglang_words import Listener
from .url import Seen, UrlBackend

SERVER = Path(__file__).with_name("sglang_server.py")
HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that systems give to outgoing connections, as loading takes minutes."""
INTERVAL = 1.0
MAX_SEED = 2**63 - 1
DETERMINISTIC = "--enable-deterministic-inference"
_OURS = {
    "--model-path": "model", "--model": "model", "--served-model-name": "served_name",
    "--host": "", "--port": "", "--api-key": "", "--admin-api-key": "", "--config": "args",
    DETERMINISTIC: "deterministic",
}  # fmt: skip
# The same settings after each start; requests have seeds of their own.
_DEFAULTS = (("--random-seed", "0"), ("--log-level-http", "warning"))
_METRICS = "--enable-metrics"
_STATES: Mapping[ChildState, State] = {
    "stopped": "off",
    "starting": "loading",
    "restarting": "loading",
    "running": "ready",
    "failed": "failed",
}


class SGLangConfig(Protocol):
    """What this backend reads of `[inference]`."""

    @property
    def model(self) -> str: ...
    @property
    def served_name(self) -> str: ...
    @property
    def args(self) -> Sequence[str]: ...
    @property
    def gpus(self) -> Sequence[int | str]: ...
    @property
    def python(self) -> str: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def start_timeout(self) -> float: ...


class SGLangBackend:
    """SGLang in a child process, on a free port of loopback that takes this node's key alone.

    Each start has a port of its own, so `url` may change with `state`.
    """

    kind = "sglang"
    where: Where = "child"
    assembled = False
    max_seed = MAX_SEED
    endpoints: frozenset[str] | None = None
    tools = True

    def __init__(self, config: SGLangConfig) -> None:
        _check(config.args)
        self._config = config
        # in its deterministic mode all choices of one request are the same
        self.single_choice = config.deterministic
        self._environment = _environment(config)
        self._key = secrets.token_hex(32)  # never like a flag, as "-Ab3" would be
        self._name = config.served_name
        self._arguments: list[str] = []
        self._child: Child | None = None
        self._server = Server("")
        self._digest = ModelDigest("", {}, self._told)
        self._listener = Listener()
        self._polling: asyncio.Task[None] | None = None
        self._info: Info | None = None
        self._settled = asyncio.Event()
        self._before_ready: BeforeReady | None = None
        self._on_change: OnChange | None = None

    @property
    def state(self) -> State:
        return "off" if self._child is None else _STATES[self._child.state]

    @property
    def detail(self) -> str:
        child, state = self._child, self.state
        if child is None or state == "off":
            return "the backend is not started"
        if state == "ready":
            return f"the model {self.model} is ready"
        said = self._listener.complaint
        end = child.last_exit
        if state == "failed" and end is not None:
            if end.code == GIVE_UP:
                said = said or "".join(child.last_lines[-1:])
                return f"SGLang cannot run{_after(said)}"
            return f"SGLang cannot run: its process {end.reason}{_after(said)}"
        if child.state == "restarting" and end is not None:
            return f"SGLang starts again: its process {end.reason}{_after(said)}"
        return f"the model {self.model} is loading{_after(self._listener.progress)}"

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._server.headers

    @property
    def model(self) -> str:
        return self._name

    @property
    def context(self) -> int:
        return self._info.context if self._info is not None else 0

    @property
    def settings(self) -> dict[str, Any]:
        """What the server says of itself, and this machine's CPU if it computes."""
        if self._info is None:
            return {}
        settings = self._info.settings
        return {**settings, "cpu": cpu_name()} if settings["device"] == "cpu" else settings

    def identity(self) -> ModelIdentity:
        """By the digest over its folder, once read."""
        return self._digest.identity()

    async def unknown_model(self) -> str:
        return await self._digest.unknown()

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Begin to load; returns at once. Raises ConfigError for no such model or interpreter."""
        if self._child is not None:
            return
        config = self._config
        python = _interpreter(config.python)
        source = await asyncio.to_thread(find, config.model, config.args, self._environment)
        self._name = config.served_name or source.name
        self._arguments = _arguments(config, source.argument, self._name)
        self._before_ready = before_ready
        self._on_change = on_change
        self._digest = ModelDigest(self._name, source.files, self._told)
        if source.unknown:
            self._digest.refuse(source.unknown)
        self._settled.clear()
        self._child = Child(
            [python, str(SERVER)],
            name=self.kind,
            env=_added(self._environment),
            on_line=self._listener.hear,
            on_state=self._changed,
            start_timeout=config.start_timeout,
            secrets=[self._key],
            leader=True,
            shared_memory=True,
        )
        await self._child.start()

    async def settled(self) -> None:
        """Wait while it is loading."""
        await self._settled.wait()

    async def stop(self, grace: float) -> None:
        """End the server, its children and what they leave behind."""
        self._end_polling()
        if self._child is not None:
            await self._child.stop(grace)
        await self._server.close()
        self._digest.close()
        self._child = None
        self._server = Server("")
        self._info = None

    def describe(self) -> Message:
        """Kind and model; once it has been ready, its settings and the model's files."""
        about: Message = {"kind": self.kind, "model": self.model}
        manifest = self._digest.manifest
        if manifest is not None:
            about["model-sha256"] = manifest.sha256
            about["files"] = [file.as_dict() for file in manifest.files]
        if self._info is not None:
            about["settings"] = self.settings
        return about

    def _changed(self, state: ChildState) -> None:
        self._end_polling()
        if state == "starting":
            self._launch()
        if _STATES[state] == "loading":
            self._settled.clear()
        else:
            self._settled.set()
        self._told()

    def _launch(self) -> None:
        """Leave the arguments of this start where the child reads them."""
        child = self._child
        if child is None or child.folder is None:
            return
        self._listener.reset()
        self._info = None
        port = free_port()
        arguments = [*self._arguments, "--port", str(port), "--api-key", self._key]
        path = child.folder / LAUNCH
        path.touch(mode=0o600)
        path.write_text(json.dumps(arguments), encoding="utf-8")
        key = [(b"authorization", b"Bearer " + self._key.encode())]
        server = Server(f"http://{HOST}:{port}", key)
        self._server = server
        self._digest.opening()
        self._polling = asyncio.create_task(self._until_ready(server, port), name="sglang ready")

    def _end_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _until_ready(self, server: Server, port: int) -> None:
        try:
            while not await self._is_ready(server, port):  # noqa: ASYNC110
                await asyncio.sleep(INTERVAL)
        finally:
            await server.close()
        if self._before_ready is not None:
            await self._before_ready()
        if self._child is not None:
            # it cancels this task, which has done its work
            self._polling = None
            self._child.ready()

    async def _is_ready(self, server: Server, port: int) -> bool:
        try:
            if await server.status(READY) != 200:
                return False
            info = await sglang_info.read(server)
        except Trouble:
            return False
        strange = self._strange(info, port)
        if strange:
            self._listener.complaint = strange
            return False
        if info.more_files:
            self._digest.refuse(
                f"SGLang opens more files than the model's folder has: {', '.join(info.more_files)}"
            )
        self._info = info
        return True

    def _strange(self, info: Info, port: int) -> str:
        """Why what answers is not what was started."""
        config = self._config
        path = value_of(self._arguments, "--model-path")
        if (info.port, info.model, info.model_path) != (port, self._name, path):
            return f"another server answers on port {port}: it has the model {info.model[:100]!r}"
        if info.deterministic != config.deterministic:
            return f"it runs with {DETERMINISTIC} {'on' if info.deterministic else 'off'}"
        return ""

    def _told(self) -> None:
        if self._on_change is not None:
            self._on_change()


class RunningSGLang(UrlBackend):
    """An SGLang that somebody else runs: its settings are read, its files are not."""

    kind = "sglang"
    health = READY

    async def look(self, server: Server) -> Seen:
        info = await sglang_info.read(server)
        wanted = self._config.served_name
        if wanted not in ("", info.model):
            raise Trouble(f"it has no model {wanted!r}; there is: {info.model}")
        return Seen(info.model, info.context, info.settings, info.deterministic)


def free_port() -> int:
    """A port of loopback that nobody listens on. Raises ConfigError where there is none."""
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ConfigError(f"no free port among {PORTS.start} to {PORTS.stop - 1}")


def _check(args: Sequence[str]) -> None:
    for word in args:
        flag = word.partition("=")[0]
        if flag in _OURS:
            option = _OURS[flag]
            instead = f"use [inference] {option}" if option else "the node chooses it itself"
            raise ConfigError(f"[inference] args: take {flag} out: {instead}")


def _arguments(config: SGLangConfig, model: str, name: str) -> list[str]:
    args = list(config.args)
    given = {word.partition("=")[0] for word in args}
    own = ["--model-path", model, "--served-model-name", name, "--host", HOST]
    if config.deterministic:
        own.append(DETERMINISTIC)
    if _METRICS not in given:
        own.append(_METRICS)
    for flag, value in _DEFAULTS:
        if flag not in given:
            own += [flag, value]
    return own + args


def _environment(config: SGLangConfig) -> dict[str, str]:
    environment = {**os.environ, **config.env}
    if config.gpus:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.gpus))
    return environment


def _added(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


def _interpreter(python: str) -> str:
    if not python:
        return sys.executable
    found = shutil.which(Path(python).expanduser())
    if found is None:
        raise ConfigError(
            f"[inference] python: {python[:200]!r} is no program: name the interpreter of an "
            "environment that has SGLang, such as /opt/sglang/bin/python"
        )
    return found


def _after(words: str) -> str:
    return f": {words}" if words else ""
