"""The client's address behind proxies that are trusted to tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from ..errors import ConfigError

FORWARDED = "x-forwarded-for"
REMEMBERED = 1024


UNKNOWN = "unknown"
"""A client that a trusted proxy does not name: it is nobody's address."""


class Proxies:
    """Networks (`10.0.0.0/8`, `::1`) whose `x-forwarded-for` is believed. Raises ConfigError."""

    def __init__(self, networks: Iterable[str]) -> None:
        try:
            self._networks = [ip_network(text, strict=False) for text in networks]
        except ValueError as error:
            raise ConfigError(f"http.trusted_proxies: {error}") from None
        self._known: dict[str, bool] = {}

    def client(self, peer: str, headers: Mapping[str, Any]) -> str:
        """The last address of the chain that is no trusted proxy; `peer` where it is none.

        UNKNOWN where an address that would count cannot be read.
        What stands before an address that is not trusted may be made up, and counts for nothing.
        """
        if not self._trusts(peer):
            return peer
        said = headers.get(FORWARDED)
        chain = [part.strip() for part in said.split(",")] if isinstance(said, str) else []
        found = peer
        for part in reversed(chain):
            address = _address(part)
            if not address:
                return UNKNOWN
            found = address
            if not self._trusts(address):
                return found
        return found

    def _trusts(self, text: str) -> bool:
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            try:
                address = ip_address(text)
                known = any(address in network for network in self._networks)
            except ValueError:
                known = False
            self._known[text] = known
        return known


def _address(part: str) -> str:
    """An address without brackets and port; "" for what is none."""
    bare = part.strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return str(ip_address(bare))
    except ValueError:
        return ""
