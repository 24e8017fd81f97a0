"""The backend that the config names; each is imported only where it is wanted."""

from __future__ import annotations

from ..config import InferenceConfig
from . import Backend
from .none import NoBackend


def make_backend(config: InferenceConfig) -> Backend:
    """The backend of `[inference]`. Raises ConfigError for options that do not fit it."""
    chosen = config.for_backend()
    if chosen.backend == "llama":
        from .llama import LlamaBackend

        return LlamaBackend(chosen)
    if chosen.backend == "sglang":
        from .sglang import RunningSGLang, SGLangBackend

        return RunningSGLang(chosen) if chosen.url else SGLangBackend(chosen)
    if chosen.backend == "url":
        from .url import UrlBackend

        return UrlBackend(chosen)
    return NoBackend()
