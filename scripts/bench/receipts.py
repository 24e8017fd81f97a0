"""Measures receipts: CPU time to queue one, and to sign and store it, by receipts a batch.

Queuing is on the answer's path; the rest is in a thread that takes what 50 ms bring.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from hyperbeam.keys import Keys
from hyperbeam.receipts import Receipts

BATCHES = (1, 10, 100, 1000)
COUNT = 2000
ROUNDS = 3
HEX = "0123456789abcdef" * 4
RECEIPT: dict[str, Any] = {
    "v": "hyperbeam.receipt/1",
    "nonce": None,
    "nonce_by": "node",
    "salt": HEX,
    "statement": None,
    "answer_id": "chatcmpl-0123456789abcdef",
    "endpoint": "/v1/chat/completions",
    "request": {"sha256": HEX, "length": 312},
    "forwarded": {"sha256": HEX, "length": 330},
    "response": {
        "status": 200,
        "sha256": HEX,
        "length": 1024,
        "stream": False,
        "complete": True,
        "end": "complete",
    },
    "output_sha256": HEX,
    "model": {"name": "smollm2-135m-instruct", "sha256": HEX, "size": 144811968, "by": "hashed"},
    "backend": {"kind": "llama", "where": "child", "settings": {"slots": 4, "context": 2048}},
    "seed": 1234567,
    "seed_by": "node",
    "started": 1790000000000,
    "ended": 1790000000900,
}


async def measure(receipts: Receipts, keys: Keys, batch: int) -> tuple[float, float]:
    """Microseconds of CPU a receipt: to queue it, and in all."""
    queued = 0.0
    before = time.process_time()
    for _ in range(COUNT // batch):
        began = time.thread_time()
        keyset = keys.current
        for _ in range(batch):
            mine = {
                "id": receipts.new_id(),
                "node": keyset.node,
                "keyset": keyset.name,
                "config": keyset.config,
            }
            receipts.add({**RECEIPT, **mine}, keyset)
        queued += time.thread_time() - began
        await receipts.flush()
    made = COUNT // batch * batch
    return queued / made * 1e6, (time.process_time() - before) / made * 1e6


async def main() -> None:
    print(f"{'a batch':>8}{'queue us':>10}{'all us':>8}")
    with tempfile.TemporaryDirectory() as folder:
        keys = Keys(Path(folder))
        keys.open()
        receipts = Receipts(Path(folder) / "receipts.sqlite")
        receipts.open()
        for batch in BATCHES:
            rounds = [await measure(receipts, keys, batch) for _ in range(ROUNDS)]
            queue, whole = (statistics.median(each) for each in zip(*rounds, strict=True))
            print(f"{batch:8}{queue:10.1f}{whole:8.0f}")
        await receipts.close()


if __name__ == "__main__":
    asyncio.run(main())
