"""Reports through configfs-tsm.

Source: Linux Documentation/ABI/testing/configfs-tsm-report: a folder for each request,
`inblob` takes the data, `outblob` and `auxblob` give report and certificates, and
`generation` counts the writes, so that two who share a folder notice each other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from .collect import Collected, unavailable

PROVIDER = "sev_guest"
TRIES = 3
_MAX_READ = 1024 * 1024


class ConfigFS:
    """Makes an entry in `root`, reads it, and takes it away again."""

    name = "configfs"

    def __init__(self, root: Path) -> None:
        self.root = root

    def available(self) -> str:
        """Why this machine does not offer it; "" where it does."""
        if not self.root.is_dir():
            return (
                f"there is no {self.root}: this is no confidential VM, or its kernel lacks "
                "configfs-tsm"
            )
        try:
            with _Entry(self.root) as entry:
                provider = entry.read("provider").decode("ascii", "replace").strip()
        except PermissionError:
            return f"{self.root} may not be written by this user"
        except OSError as error:
            return f"{self.root} does not work: {error.strerror or error}"
        return "" if provider == PROVIDER else f"the evidence here is of {provider[:50]!r}"

    def collect(self, report_data: bytes) -> Collected:
        """A report over 64 bytes and what certificates the host gives."""
        for _ in range(TRIES):
            with _Entry(self.root) as entry:
                before = entry.generation()
                entry.write("inblob", report_data)
                report = entry.read("outblob")
                try:
                    table = entry.read("auxblob")
                except FileNotFoundError:
                    table = b""
                if entry.generation() == before + 1:
                    return Collected(report, table)
        raise unavailable("the kernel's report folder is written by somebody else")


class _Entry:
    """One folder under configfs; its files are there as soon as it is made."""

    def __init__(self, root: Path) -> None:
        self._path = root / f"hyperbeam-{os.getpid()}-{secrets.token_hex(4)}"

    def __enter__(self) -> _Entry:
        self._path.mkdir()
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._path.rmdir()

    def read(self, name: str) -> bytes:
        with (self._path / name).open("rb", buffering=0) as file:
            found = bytearray()
            while len(found) < _MAX_READ and (chunk := file.read(_MAX_READ)):
                found += chunk
        return bytes(found)

    def write(self, name: str, data: bytes) -> None:
        file = os.open(self._path / name, os.O_WRONLY)
        try:
            os.write(file, data)
        finally:
            os.close(file)

    def generation(self) -> int:
        try:
            return int(self.read("generation"))
        except ValueError:
            raise OSError("its generation is no number") from None
