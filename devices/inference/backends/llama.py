"""The embedded backend: llama.cpp on the CPU, in a supervised child, with reproducible settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from hyperbeam import ConfigError, Message, models
from hyperbeam.declared import canonical
from hyperbeam.models.manifest import gguf_files
from hyperbeam.serve.child import Child
from hyperbeam.serve.child import State as ChildState

from . import BeforeReady, ModelIdentity, OnChange, State, Where
from .model_digest import ModelDigest

SERVER = Path(__file__).with_name("llama_server.py")
SOCKET = "llama.sock"
CONTEXT_RANGE = (128, 1 << 20)
MAX_SEED = 4_294_967_294
"""One more means "random" to llama.cpp, larger ones wrap."""
SLOTS_RANGE = (1, 64)
_COMPLAINT = re.compile(r" E (.*\berror\b.*:.*)")
_HEALTH_INTERVAL = 0.05
_STATES: Mapping[ChildState, State] = {
    "stopped": "off",
    "starting": "loading",
    "restarting": "loading",
    "running": "ready",
    "failed": "failed",
}


class LlamaConfig(Protocol):
    """What this backend reads of `[inference]`."""

    @property
    def model(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def context(self) -> int:
        """Tokens a slot."""

    @property
    def threads(self) -> int:
        """0: chosen here."""

    @property
    def start_timeout(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model of the catalogue answers with where a request says nothing."""

    template: Path | None = None
    temperature: float | None = None
    tools: bool = True


# the file's own template has a system message with which this model answers nonsense
DEFAULTS = {
    models.DEFAULT_MODEL: Defaults(
        Path(__file__).with_name("smollm2.jinja"), temperature=0.0, tools=False
    )
}


class LlamaBackend:
    """One model in one child process; `url` is a unix socket that only this user can reach."""

    kind = "llama"
    where: Where = "child"
    assembled = True
    single_choice = True
    max_seed = MAX_SEED
    endpoints: frozenset[str] | None = frozenset()

    def __init__(self, config: LlamaConfig) -> None:
        _require("slots", config.slots, SLOTS_RANGE)
        _require("context", config.context, CONTEXT_RANGE)
        self._config = config
        self._defaults = DEFAULTS.get(config.model, Defaults())
        self._threads = config.threads or default_threads()
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._health: asyncio.Task[None] | None = None
        self._error = ""
        self._settled = asyncio.Event()
        self._before_ready: BeforeReady | None = None
        self._tell: OnChange = _nobody
        self._digest = ModelDigest(self.model, {}, _nobody)
        self._ready: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}

    @property
    def model(self) -> str:
        """The model's name: a path's last part without `.gguf`, else as configured."""
        name = self._config.model
        return name if name in models.CATALOGUE else Path(name).name.removesuffix(".gguf")

    @property
    def context(self) -> int:
        return self._config.context

    @property
    def tools(self) -> bool:
        """Not for the embedded model; other files' templates are not looked into."""
        return self._defaults.tools

    @property
    def state(self) -> State:
        if self._error:
            return "failed"
        if self._child is not None:
            return _STATES[self._child.state]
        return "loading" if self._task is not None else "off"

    @property
    def detail(self) -> str:
        if self._error:
            return self._error
        child = self._child
        if child is None or child.last_exit is None or child.state not in ("failed", "restarting"):
            return {
                "off": "the backend is not started",
                "loading": f"the model {self.model} is loading",
                "ready": f"the model {self.model} is ready",
                "down": f"the model {self.model} does not answer",
                "failed": f"the model {self.model} cannot run",
            }[self.state]
        reason = f"its process {child.last_exit.reason}"
        if child.state == "restarting":
            return f"the model {self.model} starts again: {reason}"
        complaint = _complaint(child.last_lines)
        said = f": {complaint}" if complaint else ""
        return f"the model {self.model} cannot run: {reason}{said}"

    @property
    def url(self) -> str:
        child = self._child
        if child is None or child.folder is None:
            return ""
        return f"http+unix://{quote(str(child.folder / SOCKET), safe='')}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    @property
    def settings(self) -> dict[str, Any]:
        """Engine, CPU and llama.cpp's settings."""
        return self._settings

    def identity(self) -> ModelIdentity:
        """By its digest as long as the files are known to be those that it opened."""
        return self._digest.identity()

    async def unknown_model(self) -> str:
        """Looks whether the files are still those that were opened."""
        return await self._digest.unknown()

    async def start(
        self, before_ready: BeforeReady | None = None, on_change: OnChange | None = None
    ) -> None:
        """Begin to load; returns at once. Raises ConfigError where there is no such model."""
        if self._task is None:
            path = await asyncio.to_thread(models.path_of, self._config.model)
            self._before_ready = before_ready
            self._tell = on_change or _nobody
            self._error = ""
            self._settled.clear()
            self._task = asyncio.create_task(self._start(path), name="llama start")

    async def stop(self, grace: float) -> None:
        """End the child and all its processes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._end_health_check()
        if self._child is not None:
            await self._child.stop(grace)
        self._digest.close()
        self._child = self._task = None

    def describe(self) -> Message:
        """Kind, model and, once it has been ready, engine, CPU and settings."""
        about: Message = {"kind": self.kind, "model": self.model, "threads": self._threads}
        manifest = self._digest.manifest
        if manifest is not None:
            about["model-sha256"] = manifest.sha256
            about["files"] = [file.as_dict() for file in manifest.files]
        for name in ("engine", "cpu", "settings"):
            if name in self._ready:
                about[name] = self._ready[name]
        return about

    async def _start(self, path: Path) -> None:
        try:
            files = gguf_files(path)
            if self._defaults.template is not None:
                files["template"] = self._defaults.template
            self._digest = ModelDigest(self.model, files, self._tell)
            child = Child(
                self._command(path),
                name=self.kind,
                env={"OMP_WAIT_POLICY": "PASSIVE"},
                on_line=self._line,
                on_state=self._changed,
                start_timeout=self._config.start_timeout,
            )
            await child.start()
        except ConfigError as error:
            self._fail(error.detail)
        except OSError as error:
            self._fail(f"the model {self.model} cannot be started: {error}")
        else:
            self._child = child

    def _command(self, path: Path) -> list[str]:
        defaults = self._defaults
        command = [
            *(sys.executable, "-P", str(SERVER), "--model", str(path), "--alias", self.model),
            *("--slots", str(self._config.slots), "--context", str(self._config.context)),
            *("--threads", str(self._threads)),
        ]
        if defaults.template is not None:
            command += ["--template", str(defaults.template)]
        if defaults.temperature is not None:
            command += ["--temperature", str(defaults.temperature)]
        if logging.getLogger(f"hyperbeam.backend.{self.kind}").isEnabledFor(logging.DEBUG):
            command.append("--verbose")
        return command

    async def settled(self) -> None:
        """Wait while it is loading."""
        await self._settled.wait()

    def _fail(self, error: str) -> None:
        self._error = error
        self._settled.set()
        self._tell()

    def _changed(self, state: ChildState) -> None:
        if state == "starting":
            self._digest.opening()
        if _STATES[state] == "loading":
            self._settled.clear()
        else:
            self._settled.set()
        if state != "running":
            self._end_health_check()
        self._tell()

    def _line(self, line: str) -> None:
        if not line.startswith('{"ready": true'):
            return
        with contextlib.suppress(ValueError):
            self._ready = json.loads(line)
            about = {name: self._ready[name] for name in ("engine", "cpu")}
            self._settings = canonical({**about, **self._ready["settings"]})
            self._end_health_check()
            self._health = asyncio.create_task(self._until_healthy(), name="llama health")

    def _end_health_check(self) -> None:
        if self._health is not None:
            self._health.cancel()
            self._health = None

    async def _until_healthy(self) -> None:
        child = self._child
        while child is not None and child.folder is not None:
            if await _is_healthy(child.folder / SOCKET):
                if self._before_ready is not None:
                    await self._before_ready()
                child.ready()
                return
            await asyncio.sleep(_HEALTH_INTERVAL)


def _nobody() -> None:
    """Nobody wants to be told of changes."""


def _complaint(lines: Sequence[str]) -> str:
    """The most telling line: llama.cpp's last ones only say that something failed."""
    for line in reversed(lines):
        found = _COMPLAINT.search(line)
        if found:
            return found[1].strip()
    return lines[-1] if lines else ""


async def _is_healthy(address: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(str(address))
    except OSError:
        return False
    try:
        writer.write(b"GET /health HTTP/1.1\r\nhost: llama\r\nconnection: close\r\n\r\n")
        status = await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
    return status.split(b" ")[1:2] == [b"200"]


def default_threads() -> int:
    """Half of the CPUs that this process may use, 1 to 4; the rest is for the node."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(4, count // 2))


def _require(name: str, value: int, limits: tuple[int, int]) -> None:
    if not limits[0] <= value <= limits[1]:
        raise ConfigError(f"[inference] {name} is {value}: give {limits[0]} to {limits[1]}")
