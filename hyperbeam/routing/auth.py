"""What a request to a backend is authorized with: read when it is sent, kept nowhere else."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..errors import Unavailable
from ..message import Message

log = logging.getLogger("hyperbeam.routing")


class Credentials:
    """Reads `auth` of route nodes: `forward`, `env:NAME` or `file:PATH`.

    A file is read again when it has changed. A value of one word is a bearer token, one of
    two is sent as it is (`Basic abc`).
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[tuple[int, int, int], str]] = {}
        self._missing: set[str] = set()

    def authorization(self, auth: str, request: Message) -> str:
        """The value of the `authorization` header; nothing where `auth` asks for none.

        Raises Unavailable `no_credential` where the variable or file is not to be had; the
        reason is for the operator and stands in the log alone.
        """
        if auth == "forward":
            headers = request.get("priv", {}).get("headers", {})
            return str(headers.get("authorization", ""))
        kind, _, name = auth.partition(":")
        try:
            value = self._file(name) if kind == "file" else os.environ.get(name, "").strip()
            reason = "is empty" if kind == "file" else "is not set"
        except (OSError, UnicodeDecodeError) as error:
            value, reason = "", f"cannot be read: {error}"
        if not value:
            if auth not in self._missing:
                self._missing.add(auth)
                log.error("the key for a backend, %s %s", auth, reason)
            raise Unavailable(
                "This node has no key for the backend: its log says why.",
                error="no_credential",
                retry_after=30,
            )
        self._missing.discard(auth)
        return value if " " in value else f"Bearer {value}"

    def _file(self, name: str) -> str:
        path = Path(name)
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = self._files.get(name)
        if known is None or known[0] != version:
            known = self._files[name] = (version, path.read_text(encoding="utf-8").strip())
        return known[1]
