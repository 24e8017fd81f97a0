"""The node's home folder: one node at a time, and nobody else reads it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from .config import Config


def default_home() -> Path:
    """The user data folder of this platform."""
    import platformdirs

    return Path(platformdirs.user_data_dir("hyperbeam"))


def home_of(config: Config) -> Path:
    """The folder that a node of this configuration keeps its own things in."""
    return Path(config.home) if config.home else default_home()


class Home:
    """A folder held by one node: `open` locks it, the lock ends with the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        """Make and lock the folder; once is enough. Raises ConfigError if another node has it."""
        if self._lock is not None:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"home {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(
                f"home {self.path}: another node runs with it; give this one its own by --home"
            ) from None
        self._lock = lock

    def close(self) -> None:
        """Give the folder free."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a cut leaves all of it or nothing, readable to this user only.

    Raises OSError.
    """
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
