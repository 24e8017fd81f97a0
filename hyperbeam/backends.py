"""Backends by name: a device that runs a server tells the routes where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import Unavailable


@dataclass(frozen=True, slots=True)
class Address:
    """Where a backend listens: a base URL for `Upstream.request`, and headers it wants."""

    url: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Backends:
    """The backends that this node started, by the name that routes use."""

    def __init__(self) -> None:
        self._addresses: dict[str, Address] = {}

    def register(self, name: str, url: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Say where the backend `name` is now."""
        self._addresses[name] = Address(url, tuple(headers))

    def remove(self, name: str) -> None:
        """Say that the backend `name` is gone."""
        self._addresses.pop(name, None)

    def get(self, name: str) -> Address:
        """Raises Unavailable while no such backend runs."""
        address = self._addresses.get(name)
        if address is None:
            raise Unavailable(f"the backend {name!r} does not run", error="no_backend")
        return address
