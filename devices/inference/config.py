"""The section `[inference]` of hyperbeam.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hyperbeam import ConfigError

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Kind = Literal["none", "llama", "sglang", "url"]

_START_TIMEOUTS: Mapping[Kind, float] = {"none": 0.0, "llama": 120.0, "sglang": 1800.0, "url": 60.0}
_AT_URL = ("url", "auth", "health")
_OF_SERVER = ("served_name", "args", "gpus", "python", "env", "deterministic")


class InferenceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which model this node runs, and how. Every value is fixed while the node runs."""

    backend: Kind = "none"
    """`llama` is the embedded one, which the profile `inference` sets; `sglang` runs SGLang
    (docs/sglang.md); `url` is any server that speaks OpenAI's API; `none` only routes."""
    model: str = "smollm2-135m-instruct"
    """For `llama` a name of `hyperbeam models list`, the path of a .gguf file, or a hub id; for
    `sglang` the path of a model's folder, or a hub id."""
    slots: Positive = 4
    """Requests that `llama` works on at a time."""
    context: Positive = 2048
    """Tokens of prompt and answer together, a slot of `llama`."""
    threads: Annotated[int, Meta(ge=0)] = 0
    """Of `llama`; 0: chosen by the node."""
    max_tokens: Positive = 256
    """Tokens of an answer of `llama` where the request names no limit."""
    served_name: str = ""
    """The model's name to clients. `sglang`: empty is the folder's name or the hub id; where the
    server is at `url`: which of its models is meant, empty is the first."""
    args: tuple[str, ...] = ()
    """More flags for SGLang, such as ["--tp-size", "2"]."""
    gpus: tuple[int | str, ...] = ()
    """Numbers (as nvidia-smi has them) or UUIDs of the GPUs that SGLang sees; empty: all."""
    python: str = ""
    """The Python interpreter of an environment that has SGLang installed; empty: the node's."""
    env: dict[str, str] = {}
    """Environment variables for SGLang."""
    deterministic: bool = True
    """Whether SGLang runs with --enable-deterministic-inference; without it no seed is honoured."""
    url: str = ""
    """The address of a server that runs already, such as http://127.0.0.1:30000."""
    auth: str = ""
    """Where the key for the server at `url` is: env:NAME of a variable, or file:PATH."""
    health: str = ""
    """What to ask the server at `url` each second, to know whether it is ready; empty: /ready of
    SGLang, else /health."""
    start_timeout: Seconds = 0.0
    """Seconds for the model to load; 0: 120 for `llama`, 1800 for `sglang`, 60 at an `url`."""
    stop_grace: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds for the backend to end before it is killed."""

    def for_backend(self) -> InferenceConfig:
        """Checked against the backend. Raises ConfigError for options that it does not have."""
        unread: tuple[str, ...] = ()
        if self.backend == "llama":
            unread = (*_AT_URL, *_OF_SERVER)
        elif self.backend == "sglang":
            unread = _AT_URL[1:] if not self.url else _OF_SERVER[1:]
        elif self.backend == "url":
            unread = _OF_SERVER[1:]
        for name in unread:
            if getattr(self, name) != getattr(_DEFAULTS, name):
                where = " with an url" if self.url and self.backend == "sglang" else ""
                raise ConfigError(
                    f'[inference] {name} is not read with backend = "{self.backend}"{where}: '
                    "take it out, or name the backend that it is for"
                )
        seconds = self.start_timeout or _START_TIMEOUTS["url" if self.url else self.backend]
        return msgspec.structs.replace(self, start_timeout=seconds)


_DEFAULTS = InferenceConfig()
