"""OpenAI-compatible inference by a model that this node runs itself."""

from .api import Inference

__all__ = ["Inference"]
