"""The section `[inference]` of hyperbeam.toml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class InferenceConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which model this node runs, and how. Every value is fixed while the node runs."""

    backend: Literal["none", "llama"] = "none"
    """`llama` is the embedded one; the profile `inference` sets it."""
    model: str = "smollm2-135m-instruct"
    """A name of `hyperbeam models list`, the path of a .gguf file, or a hub id."""
    slots: Positive = 4
    """Requests that are worked on at a time."""
    context: Positive = 2048
    """Tokens of prompt and answer together, a slot."""
    threads: Annotated[int, Meta(ge=0)] = 0
    """0: chosen by the node."""
    max_tokens: Positive = 256
    """Tokens of an answer where the request names no limit."""
    start_timeout: Seconds = 120.0
    """Seconds for the model to load."""
    stop_grace: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds for the backend to end before it is killed."""
