import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyperbeam.observe.histogram import SHORT, Histogram, quantile

VALUES = st.lists(st.floats(0, 10), min_size=1, max_size=50)


def test_a_value_counts_under_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(4.65)


@example([1.0, 1.0, 1.0, 0.001953125, 0.001953125, 0.001953125], 0.5)
@given(VALUES, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_value_it_stands_for(
    values: list[float], share: float
) -> None:
    histogram = Histogram(SHORT)
    for value in values:
        histogram.observe(value)
    found = quantile(SHORT, histogram.counts, share)
    assert found is not None
    at = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    upper = next((bound for bound in SHORT if bound >= at), SHORT[-1])
    lower = max((bound for bound in SHORT if bound < at), default=0.0)
    assert min(lower, SHORT[-1]) <= found <= upper


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile(SHORT, Histogram(SHORT).counts, 0.5) is None
