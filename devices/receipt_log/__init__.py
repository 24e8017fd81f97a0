"""receipt-log@1.0: the append-only log that this node's receipts are in."""

from .config import ReceiptLogConfig
from .device import ReceiptLog

__all__ = ["ReceiptLog", "ReceiptLogConfig"]
