"""The sockets that a node listens on."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable

from ..errors import ConfigError

BACKLOG = 2048


async def bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of `host`, all on one port (0: a free one).

    Raises ConfigError where the address is taken or not to be had.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not an address to listen on: {error}") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(BACKLOG)
            port = sock.getsockname()[1]
    except OSError as error:
        close(sockets)
        raise ConfigError(_problem(error, host, port)) from None
    return sockets


def close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _problem(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another program; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights than this user has; choose one over 1023"
    return f"cannot listen on port {port} of {host}: {error.strerror or error}"
