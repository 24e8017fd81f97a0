"""A node's answer on its way to the client."""

from __future__ import annotations

from typing import Self

from hyperbeam.errors import HyperbeamError
from hyperbeam.http.response import UpstreamResponse

from .lease import Lease


class LeasedBody:
    """The chunks of `response`; its node counts as busy until it is closed, begun or not."""

    def __init__(self, response: UpstreamResponse, lease: Lease | None) -> None:
        self._response = response
        self._lease = lease

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._response)
        except HyperbeamError as error:
            if self._lease is not None:
                self._lease.failed(error)
            raise

    async def aclose(self) -> None:
        """End the answer and give the node's place back."""
        if self._lease is not None:
            self._lease.close()
        await self._response.aclose()
