"""The host's certificate table, as a guest gets it beside an extended report.

Source: GHCB Standardization (56421) 2.03, table 8: GUID, offset and length of each
certificate, an entry of zeros, then what they point at.
"""

from __future__ import annotations

import uuid

from ..checks import Malformed
from .certificate import MAX_CERTIFICATES

KINDS = {
    uuid.UUID("63da758d-e664-4564-adc5-f4b93be8accd").bytes: "vcek",
    uuid.UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1").bytes: "vlek",
    uuid.UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782").bytes: "ask",
    uuid.UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae").bytes: "ark",
}
"""What the entries hold; others (revocation lists, a host's own) are passed over."""
MAX_SIZE = 1024 * 1024
_ENTRY = 24
_MAX_ENTRIES = 4 * MAX_CERTIFICATES


def parse(data: bytes) -> dict[str, bytes]:
    """The certificates of a table by kind; an empty table has none.

    Raises Malformed `table-malformed`: no end, bytes that are not there, a kind twice.
    """
    found: dict[str, bytes] = {}
    if not data:
        return found
    if len(data) > MAX_SIZE:
        raise _malformed(f"it is over {MAX_SIZE} bytes")
    for number in range(_MAX_ENTRIES):
        entry = data[number * _ENTRY : (number + 1) * _ENTRY]
        if len(entry) < _ENTRY:
            raise _malformed("it has no last entry")
        if not any(entry):
            return found
        kind = KINDS.get(entry[:16])
        offset = int.from_bytes(entry[16:20], "little")
        length = int.from_bytes(entry[20:24], "little")
        if offset + length > len(data):
            raise _malformed(f"entry {number} points past its end")
        if kind is None or not length:
            continue
        if kind in found:
            raise _malformed(f"it has two certificates of kind {kind}")
        found[kind] = data[offset : offset + length]
    raise _malformed(f"it has over {_MAX_ENTRIES} entries")


def _malformed(why: str) -> Malformed:
    return Malformed(f"the host's certificate table cannot be read: {why}", "table-malformed")
