"""HTTP: requests to messages, messages to replies, streams, and the outbound hot path."""

from __future__ import annotations

from .server import Handler, Server
from .upstream import Upstream, UpstreamResponse

__all__ = ["Handler", "Server", "Upstream", "UpstreamResponse"]
