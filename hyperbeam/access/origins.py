"""Which web pages may read the node's replies (CORS). Source: the Fetch standard, 3.2."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Message, Send

ALLOW = b"access-control-allow-origin"
_FIELDS = b"access-control-"


class Origins:
    """Only pages of these origins may: a reply to any other says nothing of the kind."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = {origin.rstrip("/").encode() for origin in origins}

    def restrict(
        self, headers: list[tuple[bytes, bytes]], origin: object
    ) -> list[tuple[bytes, bytes]]:
        """A reply's headers to a page of `origin` (its header, None without one)."""
        asked = origin.encode("utf-8", "replace") if isinstance(origin, str) else b""
        if asked not in self._origins:
            kept = [(name, value) for name, value in headers if not name.startswith(_FIELDS)]
            return [*kept, (b"vary", b"origin")]
        own = [(name, asked if name == ALLOW else value) for name, value in headers]
        return [*own, (b"vary", b"origin")]

    def sending(self, send: Send, origin: object) -> Send:
        """`send` with the reply's head restricted."""

        async def restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": self.restrict(message["headers"], origin)}
            await send(message)

        return restricted
