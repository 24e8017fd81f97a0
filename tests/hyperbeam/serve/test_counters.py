from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperbeam.serve import counters
from hyperbeam.serve.counters import Counters, CountersFull, LocalCounters, SharedCounters

ROWS = 3
NAMES = ["", "a", "a b\0ü", "\ud800", "n" * 5000, "café", "cafe"]

names = st.sampled_from(NAMES)
rows = st.integers(0, ROWS - 1)
windows = st.integers(0, 3) | st.sampled_from([1_800_000_000, 2**31, 2**32 - 1])
deltas = st.integers(-5, 5) | st.sampled_from([2**31, 2**32])
writes = st.one_of(
    st.tuples(st.just("add"), rows, names, st.integers(-1000, 1000)),
    st.tuples(st.just("window_add"), rows, names, windows, deltas),
    st.tuples(st.just("set"), rows, names, st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("clear_row"), rows),
)


class Model:
    """What the rows of one file should hold."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, str], int] = {}
        self.windows: dict[tuple[int, str], tuple[int, int]] = {}
        self.values: dict[str, int] = {}

    def add(self, row: int, name: str, delta: int) -> None:
        self.counts[row, name] = self.counts.get((row, name), 0) + delta

    def window_add(self, row: int, name: str, window: int, delta: int) -> None:
        before, count = self.windows.get((row, name), (window, 0))
        count = (count if before == window else 0) + delta
        self.windows[row, name] = (window, min(max(count, 0), 2**32 - 1))

    def set(self, row: int, name: str, value: int) -> None:
        self.values[name] = value

    def clear_row(self, row: int) -> None:
        self.counts = {cell: count for cell, count in self.counts.items() if cell[0] != row}


def compare(model: Model, row: int, shared: Counters) -> None:
    for name in NAMES:
        assert shared.own(name) == model.counts.get((row, name), 0)
        assert shared.total(name) == sum(model.counts.get((r, name), 0) for r in range(ROWS))
        assert shared.value(name) == model.values.get(name, 0)
        kept = [model.windows[r, name] for r in range(ROWS) if (r, name) in model.windows]
        for window, _ in kept:
            assert shared.window_total(name, window) == sum(n for w, n in kept if w == window)
        assert shared.window_total(name, 77) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(writes, max_size=25))
def test_every_row_sees_what_all_wrote(history: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder, "counters")
        shared = [
            stack.enter_context(closing(SharedCounters(path, row, ROWS))) for row in range(ROWS)
        ]
        model = Model()
        for operation, row, *arguments in history:
            getattr(model, operation)(row, *arguments)
            whose = shared[row]
            getattr(whose, operation)(*([row] if operation == "clear_row" else arguments))
        for row, one in enumerate(shared):
            compare(model, row, one)
        late = stack.enter_context(closing(SharedCounters(path, 0, ROWS)))
        compare(model, 0, late)
        local = LocalCounters()
        alone = Model()
        for operation, _, *arguments in history:
            if operation != "clear_row":
                getattr(local, operation)(*arguments)
                getattr(alone, operation)(0, *arguments)
        compare(alone, 0, local)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "counters"


PROGRAM = """
import sys
from pathlib import Path
from hyperbeam.serve.counters import SharedCounters
path, row, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
counters = SharedCounters(path, row, rows)
for turn in range(1500):
    counters.add("all")
    counters.add(f"shared {turn % 300}", 2)
    counters.window_add("used", 9, 3)
    counters.add(f"own {row}.{turn % 50}")
print(counters.own("all"))
"""


def test_processes_lose_no_count_while_all_enter_names(path: Path) -> None:
    mine = SharedCounters(path, 3, 4, fresh=True)
    command = [sys.executable, "-c", PROGRAM, str(path)]
    others = [
        subprocess.Popen([*command, str(row), "4"], stdout=subprocess.PIPE) for row in range(3)
    ]
    for turn in range(1500):
        mine.add("all")
        mine.add(f"shared {299 - turn % 300}", 2)
    assert [other.communicate()[0] for other in others] == [b"1500\n"] * 3
    assert mine.total("all") == 6000
    assert [mine.total(f"shared {n}") for n in range(300)] == [40] * 300
    assert mine.window_total("used", 9) == 3 * 3 * 1500
    assert mine.total("own 2.49") == 30
    # "all", the shared ones, the window, and each process's own.
    assert mine.remaining() == counters.MAX_NAMES - 1 - 300 - 1 - 3 * 50


def test_a_row_of_the_dead_is_cleared_but_not_what_it_used(path: Path) -> None:
    supervisor = SharedCounters(path, 0, 2)
    worker = SharedCounters(path, 1, 2)
    worker.add("in flight", 7)
    worker.window_add("tokens", 5, 100)
    worker.set("open until", 42)
    supervisor.add("in flight", 1)
    worker.close()
    supervisor.clear_row(1)
    again = SharedCounters(path, 1, 2)
    assert again.own("in flight") == 0 and again.total("in flight") == 1
    assert supervisor.window_total("tokens", 5) == 100 and supervisor.value("open until") == 42


def test_a_fresh_file_forgets_the_last_run(path: Path) -> None:
    SharedCounters(path, 0, 2).add("in flight", 3)
    assert SharedCounters(path, 1, 2).total("in flight") == 3
    assert SharedCounters(path, 1, 2, fresh=True).total("in flight") == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_names_are_bounded_and_reading_enters_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "MAX_NAMES", 300)
    both: list[Counters] = [LocalCounters(), SharedCounters(path, 0, 1)]
    for one in both:
        for number in range(300):
            assert one.value(f"{number}") == one.total(f"{number}") == 0
            one.add(f"{number}")
        assert one.remaining() == 0
        with pytest.raises(CountersFull, match="300 names already"):
            one.set("more", 1)
        with pytest.raises(CountersFull, match="300 names already"):
            one.window_add("0", 1)
        one.add("0")
        assert one.total("0") == 2 and one.total("more") == 0


@pytest.mark.parametrize(("row", "rows"), [(2, 2), (-1, 2), (0, 0), (0, 2000)])
def test_a_row_that_is_not_there(path: Path, row: int, rows: int) -> None:
    with pytest.raises(ValueError, match=r"row"):
        SharedCounters(path, row, rows)
    assert not path.exists()


def test_a_file_that_is_none_or_of_other_rows(path: Path) -> None:
    SharedCounters(path, 0, 3).close()
    with pytest.raises(ValueError, match="not made for 2 rows"):
        SharedCounters(path, 0, 2)
    path.write_bytes(b"x" * 17)
    with pytest.raises(ValueError, match="not a file of counters"):
        SharedCounters(path, 0, 2)
