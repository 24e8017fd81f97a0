"""Short questions to a backend about itself: is it ready, what does it run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hyperbeam import HyperbeamError
from hyperbeam.http.upstream import Upstream

_LIMIT = 4 * 1024 * 1024


class Trouble(Exception):
    """Why a backend cannot be asked now. The text says it, in words for the operator."""


class Server:
    """A backend at `url` (without a last slash), asked with `headers`, `timeout` s a question."""

    def __init__(
        self, url: str, headers: Sequence[tuple[bytes, bytes]] = (), timeout: float = 5.0
    ) -> None:
        self.url = url
        self.headers = list(headers)
        self._timeout = timeout
        self._upstream = Upstream()

    async def status(self, path: str) -> int:
        """The status of GET `path`. Raises Trouble."""
        return (await self._get(path))[0]

    async def json(self, path: str) -> dict[str, Any]:
        """The object at `path`. Raises Trouble."""
        status, body = await self._get(path)
        if status in (401, 403):
            raise Trouble(f"it refuses the key: {path} answers {status} ([inference] auth)")
        if status != 200:
            raise Trouble(f"{path} answers {status}")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Trouble(f"{path} answers no JSON object")
        return value

    async def close(self) -> None:
        await self._upstream.close()

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            response = await self._upstream.request(
                self.url + path,
                "GET",
                self.headers,
                b"",
                connect_timeout=self._timeout,
                first_byte_timeout=self._timeout,
                total_timeout=self._timeout,
            )
            return response.status, await response.read(_LIMIT)
        except HyperbeamError as error:
            raise Trouble(error.detail) from None
