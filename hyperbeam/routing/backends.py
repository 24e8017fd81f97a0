"""The backends that devices of this node run, under the names that route tables use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Where a backend listens (`url`, without a last slash), and what a request to it carries.

    `available` says whether it can be asked now.
    """

    url: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    available: Callable[[], bool] = _always


class Backends:
    """`backend = "local"` in a route table is the one that registers as `local`."""

    def __init__(self) -> None:
        self._found: dict[str, LocalBackend] = {}

    def register(
        self,
        name: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        available: Callable[[], bool] = _always,
    ) -> None:
        """Make a backend known; one that starts anew registers again with its new address."""
        self._found[name] = LocalBackend(url.rstrip("/"), tuple(headers), available)

    def unregister(self, name: str) -> None:
        """Forget a backend, known or not."""
        self._found.pop(name, None)

    def get(self, name: str) -> LocalBackend | None:
        return self._found.get(name)
