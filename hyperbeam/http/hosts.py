"""The names that a node answers under, so that no page reaches it by rebinding its own name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from ..errors import HyperbeamError

CACHE = 64
"""Host headers that are remembered as accepted."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/@\s.][^:\[\]/@\s]*?)\.?)(?::[0-9]*)?\Z")


class Hosts:
    """Accepts localhost, `*.localhost`, loopback addresses and the names it is given.

    A name that resolves to loopback by its owner's will makes this node same-origin with
    its owner's page (DNS rebinding); only the Host header tells the two apart.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {host_name(name) for name in names} - {""}
        self._accepted: set[str] = set()

    def check(self, header: str | None) -> None:
        """Raises HyperbeamError (421) unless the Host `header` is missing or accepted."""
        if header is None or header in self._accepted:
            return
        name = host_name(header)
        if not _is_local(name) and name not in self._names:
            shown = name or header
            raise HyperbeamError(
                "this node answers on loopback only under localhost names; "
                f"add {shown[:200]!r} to http.hosts",
                status=421,
                error="misdirected_request",
                param="host",
            )
        if len(self._accepted) >= CACHE:
            self._accepted.clear()
        self._accepted.add(header)


def host_name(header: str) -> str:
    """The name of a Host header: lower case, no port, brackets or last dot; "" if it has none."""
    match = _HOST.match(header.strip().lower())
    if match is None:
        return ""
    name: str = match[1] or match[2]
    try:
        return str(ip_address(name))
    except ValueError:
        return "" if match[1] else name


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is for this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
