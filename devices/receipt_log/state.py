"""What a log knows of itself: how far it is, and which very file its hashes are in.

A file that was copied back from a backup has another inode or another time of change; one
that an image of the disk brought back was written before the machine last started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hyperbeam.home import write_whole
from hyperbeam.verify import jcs, shape

V = "hyperbeam.log-state/1"
_MALFORMED = "state-damaged"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHAPE = shape.record(
    v=shape.constant(V),
    origin=shape.text(),
    size=shape.natural,
    root=shape.digest,
    stamp=shape.record(
        dev=shape.decimal, ino=shape.decimal, ctime_ns=shape.decimal, boot=shape.text()
    ),
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which file it is, when it last changed, and the machine's start that this was in ("":
    the system does not tell)."""

    dev: int
    ino: int
    ctime_ns: int
    boot: str

    @classmethod
    def of(cls, stat: os.stat_result) -> Stamp:
        """The stamp of an open file now."""
        return cls(stat.st_dev, stat.st_ino, stat.st_ctime_ns, _boot())


@dataclass(frozen=True, slots=True)
class State:
    """A log of `size` leaves with `root`, in the file that `stamp` tells."""

    origin: str
    size: int
    root: bytes
    stamp: Stamp

    @classmethod
    def load(cls, path: Path) -> State:
        """Raises OSError, Malformed."""
        value = jcs.parse(path.read_bytes(), str(path))
        shape.check(value, _SHAPE, str(path), _MALFORMED)
        said = value["stamp"]
        dev, ino, ctime_ns = (int(said[name]) for name in ("dev", "ino", "ctime_ns"))
        stamp = Stamp(dev, ino, ctime_ns, said["boot"])
        return cls(value["origin"], value["size"], bytes.fromhex(value["root"]), stamp)

    def save(self, path: Path) -> None:
        """On the disk, whole or not at all, when it returns. Raises OSError."""
        stamp = self.stamp
        value = {
            "v": V,
            "origin": self.origin,
            "size": self.size,
            "root": self.root.hex(),
            "stamp": {
                "dev": str(stamp.dev),
                "ino": str(stamp.ino),
                "ctime_ns": str(stamp.ctime_ns),
                "boot": stamp.boot,
            },
        }
        write_whole(path, jcs.encode(value))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
