"""What `GET /~receipt-log@1.0/` says."""

from __future__ import annotations

from collections.abc import Sequence

_PAGE = """\
receipt-log@1.0: the append-only log of this node's receipts

Log:        {origin}
Leaves:     {size}
Witnesses:  {witnesses}

Every inference has a receipt, and every receipt is in this log within a day. A leaf is
SHA-256(0x00 || the receipt as canonical JSON); the log shows hashes, never receipts.

  GET  /~receipt-log@1.0/head                        the signed head (C2SP checkpoint)
  GET  /~receipt-log@1.0/inclusion?id=RECEIPT        the proof that a receipt is in the log
  GET  /~receipt-log@1.0/inclusion?leaf=HASH         the same by the leaf's hash, or ?index=N
  GET  /~receipt-log@1.0/consistency?old=N&new=N     the proof that the log only grew
  POST /~receipt-log@1.0/cosign                      a witness's cosignature on a head

A proof of inclusion means: who keeps this head can show later that the receipt was there,
and this node cannot drop or change it without two heads that contradict each other.

It does not mean that the receipt is true, or that the node wrote one for every answer.
Without a witness it does not show that everybody is given the same head: keep the heads
that you get, compare them with other people's, or demand a witness that you trust.

A head is signed only over what the disk has. After anything that might have brought back
an older state (a restored backup, a copy of the node's folder, a kill in the middle of a
write, another owner of the files, a start of the machine) the node does not go on under the
same name: it begins a log named hyperbeam/receipts/<address>/<16 hex>, whose first leaf is
the canonical JSON {{"v": "hyperbeam.log/1", previous, reason}}, with the last head of the log
before. The head as JSON (accept: application/json) shows it as "begins", and the logs that
ended. What is in those is still proven, under their last heads. A node cannot notice that a
whole machine with its memory, or a file system under a machine that runs on, was set back
exactly: that is what witnesses are for.
"""


def page(origin: str, size: int, witnesses: Sequence[str]) -> str:
    """The page for a log."""
    return _PAGE.format(origin=origin, size=size, witnesses=", ".join(witnesses) or "none")
