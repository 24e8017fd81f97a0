"""The section `[receipt-log]` of hyperbeam.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]


class ReceiptLogConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[receipt-log]`: the log of receipts."""

    witnesses: tuple[str, ...] = ()
    """Verifier keys (C2SP, kind 4) of those whose cosignatures on the log's heads are taken
    and shown: <name>+<key id>+<base64>."""
    gather: Seconds = 1.0
    """Seconds that a receipt may wait to be logged with others."""
