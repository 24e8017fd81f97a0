import time
from collections.abc import Iterator

import pytest

from hyperbeam.routing.breaker import FAILURES, OPEN_FIRST, OPEN_LIMIT, WINDOW, Breaker
from hyperbeam.serve.counters import LocalCounters


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "time", clock.time)
    yield clock


def fail(breaker: Breaker, times: int) -> list[bool]:
    return [breaker.failed() for _ in range(times)]


def test_the_third_failure_opens(clock: Clock) -> None:
    breaker = Breaker("n", LocalCounters())
    assert (breaker.state, breaker.since) == ("up", 0)
    assert fail(breaker, FAILURES) == [False, False, True]
    assert (breaker.state, breaker.closed, breaker.due) == ("down", False, False)
    assert breaker.wait == OPEN_FIRST
    assert breaker.since == 1_000_000
    clock.now += OPEN_FIRST
    assert (breaker.due, breaker.wait) == (True, 0.0)


def test_failures_that_are_few_among_results_or_long_ago_do_not_open(clock: Clock) -> None:
    breaker = Breaker("n", LocalCounters())
    for _ in range(4):
        breaker.succeeded()
    assert not any(fail(breaker, 3))
    assert breaker.failed()
    breaker.close()
    clock.now += WINDOW + 2
    assert not any(fail(breaker, 2))
    clock.now += WINDOW / 2
    assert breaker.failed()


def test_a_cut_answer_was_no_good_one(clock: Clock) -> None:
    breaker = Breaker("n", LocalCounters())
    opened = []
    for _ in range(3):
        breaker.succeeded()
        breaker.succeeded()
        opened.append(breaker.failed(begun=True))
    assert opened == [False, False, True]


def test_a_refused_connection_opens_at_once_and_longer_each_time(clock: Clock) -> None:
    breaker = Breaker("n", LocalCounters())
    waits = []
    for _ in range(8):
        assert breaker.failed(at_once=True)
        waits.append(breaker.wait)
        clock.now += breaker.wait
        breaker.close()
    assert waits == [1, 2, 4, 8, 16, OPEN_LIMIT, OPEN_LIMIT, OPEN_LIMIT]
    clock.now += 100
    assert breaker.failed(at_once=True)
    assert breaker.wait == OPEN_FIRST


def test_one_trial_for_all_processes(clock: Clock) -> None:
    counters = LocalCounters()
    breaker, other = Breaker("n", counters), Breaker("n", counters)
    assert not breaker.try_enter()
    breaker.failed(at_once=True)
    assert (other.state, other.try_enter()) == ("down", False)
    breaker.half_open()
    assert other.state == "half-open"
    assert (breaker.try_enter(), other.try_enter()) == (True, False)
    breaker.leave()
    assert other.try_enter()
    other.leave()
    other.close()
    assert breaker.closed


def test_what_is_down_stays_down_whatever_fails(clock: Clock) -> None:
    breaker = Breaker("n", LocalCounters())
    breaker.down()
    assert not any(fail(breaker, 5))
    clock.now += 100
    assert (breaker.is_down, breaker.due, breaker.wait) == (True, False, 0.0)
