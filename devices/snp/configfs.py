"""Reports through configfs-tsm.

Source: Linux Documentation/ABI/testing/configfs-tsm-report: a folder for each request,
`inblob` takes the data, `outblob` and `auxblob` give report and certificates, and
`generation` counts the writes, so that two who share a folder notice each other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
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
            with self._entry() as entry:
                provider = self.read(entry, "provider").decode("ascii", "replace").strip()
        except PermissionError:
            return f"{self.root} may not be written by this user"
        except OSError as error:
            return f"{self.root} does not work: {error.strerror or error}"
        return "" if provider == PROVIDER else f"the evidence here is of {provider[:50]!r}"

    def collect(self, report_data: bytes) -> Collected:
        """A report over 64 bytes and what certificates the host gives."""
        for _ in range(TRIES):
            with self._entry() as entry:
                before = self._generation(entry)
                self.write(entry, "inblob", report_data)
                report = self.read(entry, "outblob")
                try:
                    table = self.read(entry, "auxblob")
                except FileNotFoundError:
                    table = b""
                if self._generation(entry) == before + 1:
                    return Collected(report, table)
        raise unavailable("the kernel's report folder is written by somebody else")

    def make(self, entry: Path) -> None:
        """Make an entry; the kernel puts its files there at once."""
        entry.mkdir()

    def read(self, entry: Path, name: str) -> bytes:
        """What a file of an entry says, to its end."""
        with (entry / name).open("rb", buffering=0) as file:
            found = bytearray()
            while len(found) < _MAX_READ and (chunk := file.read(_MAX_READ)):
                found += chunk
        return bytes(found)

    def write(self, entry: Path, name: str, data: bytes) -> None:
        """Write a file of an entry by one system call, as the kernel wants it."""
        file = os.open(entry / name, os.O_WRONLY)
        try:
            os.write(file, data)
        finally:
            os.close(file)

    def remove(self, entry: Path) -> None:
        """Take an entry away; its files go with it."""
        entry.rmdir()

    @contextlib.contextmanager
    def _entry(self) -> Iterator[Path]:
        entry = self.root / f"hyperbeam-{os.getpid()}-{secrets.token_hex(4)}"
        self.make(entry)
        try:
            yield entry
        finally:
            with contextlib.suppress(OSError):
                self.remove(entry)

    def _generation(self, entry: Path) -> int:
        try:
            return int(self.read(entry, "generation"))
        except ValueError:
            raise OSError("its generation is no number") from None
