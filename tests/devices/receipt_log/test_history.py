"""Any order of additions, restarts and accidents: no log ever tells two histories."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from devices.receipt_log.logs import Logs
from hyperbeam.verify.checkpoint import SignedCheckpoint

from .logs import FAST, check_growth, check_no_fork, head, leaf, opened, proves


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._base = Path(tempfile.mkdtemp(dir=FAST))
        self._folder = self._base / "log"
        self._logs: Logs = opened(self._folder)
        self._heads: list[SignedCheckpoint] = [head(self._logs)]
        self._since_accident: set[bytes] = set()
        self._backups: list[Path] = []
        self._next = 0

    @rule(count=st.integers(0, 5))
    def add(self, count: int) -> None:
        leaves = [leaf(self._next + number) for number in range(count)]
        self._next += count
        self._logs.add(leaves)
        self._since_accident |= set(leaves)

    @rule(number=st.integers(0, 20))
    def add_again(self, number: int) -> None:
        size = self._logs.live.size
        if leaf(number) in self._since_accident:
            self._logs.add([leaf(number)])
            assert self._logs.live.size == size

    @rule()
    def restart(self) -> None:
        before = head(self._logs).checkpoint
        self._logs.close()
        self._logs = opened(self._folder, unused=False)
        assert head(self._logs).checkpoint == before

    @rule()
    def back_up(self) -> None:
        backup = self._base / f"backup{len(self._backups)}"
        shutil.copytree(self._folder, backup)
        self._backups.append(backup)

    @precondition(lambda self: self._backups)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        backup = data.draw(st.sampled_from(self._backups))
        running = data.draw(st.booleans())
        if not running:
            self._logs.close()
        shutil.rmtree(self._folder)
        shutil.copytree(backup, self._folder)
        if running:
            self._logs.close()
        self._logs = opened(self._folder, unused=False)
        self._since_accident = set()

    @rule(name=st.sampled_from(["hashes", "state.json", "checkpoint", "begin.json"]))
    def lose(self, name: str) -> None:
        self._logs.close()
        (self._logs_folder() / name).unlink(missing_ok=True)
        self._logs = opened(self._folder, unused=False)
        self._since_accident = set()

    @rule(name=st.sampled_from(["hashes", "state.json", "checkpoint"]), grows=st.booleans())
    def tear(self, name: str, grows: bool) -> None:
        self._logs.close()
        path = self._logs_folder() / name
        if path.exists():
            size = path.stat().st_size
            os.truncate(path, size + 7 if grows else size // 2)
        self._logs = opened(self._folder, unused=False)
        self._since_accident = set()

    @rule(damaged=st.booleans())
    def lose_the_table(self, damaged: bool) -> None:
        self._logs.close()
        for path in self._folder.glob("leaves.sqlite*"):
            path.unlink()
        if damaged:
            (self._folder / "leaves.sqlite").write_bytes(b"not a database" * 500)
        self._logs = opened(self._folder, unused=False)

    @rule()
    def lose_all(self) -> None:
        self._logs.close()
        shutil.rmtree(self._folder)
        self._logs = opened(self._folder, unused=False)
        self._since_accident = set()

    @invariant()
    def no_fork(self) -> None:
        self._heads.append(head(self._logs))
        check_no_fork(self._heads)
        check_growth(self._heads, self._logs)

    @invariant()
    def all_proven(self) -> None:
        assert all(proves(self._logs, each) for each in self._since_accident)

    def teardown(self) -> None:
        self._logs.close()
        shutil.rmtree(self._base)

    def _logs_folder(self) -> Path:
        folders = [each for each in self._folder.iterdir() if each.is_dir()]
        return max(folders, key=lambda each: int(each.name))


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
