"""Where values are kept: in an LMDB file that processes share, or in memory."""

from .lmdb import LMDBStore
from .memory import MemoryStore
from .protocol import MAX_KEY, Kind, Store
from .recent import Recent
from .remote import Remotes

__all__ = ["MAX_KEY", "Kind", "LMDBStore", "MemoryStore", "Recent", "Remotes", "Store"]
