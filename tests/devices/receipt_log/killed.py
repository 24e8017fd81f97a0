"""A process that logs receipts and kills itself before a given step of its writing.

Each run is a fork: it shows what it does in `heads` (the heads it gave out) and ends by
SIGKILL, or with status 0. Arguments: the folder to work in.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from devices.receipt_log.leaves import Leaves
from devices.receipt_log.logs import Logs
from devices.receipt_log.one_log import LiveLog
from devices.receipt_log.writer import Writer
from hyperbeam.keys import Keys
from hyperbeam.receipts import Receipts
from tests.hyperbeam.test_receipts import a_receipt

MOST = 200


class Steps:
    """Kills the process before its `at`th write, sync, rename, signature or entry."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self._done = 0
        for owner, name in (
            (os, "pwrite"),
            (os, "fsync"),
            (os, "rename"),
            (LiveLog, "head"),
            (Leaves, "fill"),
            (Receipts, "logged"),
        ):
            setattr(owner, name, self._counted(getattr(owner, name), name))

    def _counted(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self._done += 1
            if self._done == self._at:
                if name == "pwrite":
                    descriptor, data, at = args
                    real(descriptor, bytes(data)[: len(data) // 2], at)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return step


async def run(home: Path, at: int | None) -> None:
    """Log two batches; write down each head before the next."""
    unused = not (home / "heads").exists()
    heads = (home / "heads").open("a")
    keys = Keys(home)
    keys.open()
    receipts = Receipts(home / "receipts.sqlite")
    receipts.open()
    keys.current  # noqa: B018 (so that its files are not among the steps)
    Steps(at)
    logs = Logs(home / "log", keys.identity.address, lambda: keys.current)
    logs.open(unused=unused)
    writer = Writer(receipts, logs, 0.001)
    writer.start()
    for batch in range(2):
        for _ in range(batch + 1):
            receipts.add(a_receipt(keys), keys.current)
        await writer.flush()
        heads.write(json.dumps(logs.live.head(keys.current).text()) + "\n")
        heads.flush()
    await writer.stop()
    logs.close()
    await receipts.close()


def forked(home: Path, at: int | None) -> bool:
    """Whether a run came to its end."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(run(home, at))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, f"run {at} in {home} failed"
    return True


def main(folder: Path) -> None:
    """A first run killed at each step; then likewise a run after another log has to begin."""
    for at in count(1):
        home = folder / f"first{at}"
        home.mkdir()
        ended = forked(home, at)
        assert forked(home, None)
        if ended:
            break
        assert at < MOST
    for at in count(1):
        copy = folder / f"later{at}"
        shutil.copytree(home, copy)
        ended = forked(copy, at)
        assert forked(copy, None)
        if ended:
            break
        assert at < MOST


if __name__ == "__main__":
    main(Path(sys.argv[1]))
