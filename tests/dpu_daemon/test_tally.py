"""Histograms by bits: every number in its bucket, quantiles inside it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offpath.dpu_daemon.tally import BOUNDS_NS, Histogram


def filled(numbers: list[int]) -> Histogram:
    histogram = Histogram()
    for ns in numbers:
        histogram.bits[ns.bit_length()] += 1
        histogram.sum_ns += ns
    return histogram


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_bucket_counts_what_lies_below_its_bound_and_above_the_one_before(numbers: list[int]) -> None:
    counts = filled(numbers).counts()
    total = 0
    for bound, count in zip(BOUNDS_NS, counts, strict=False):
        total += count
        assert total == sum(ns < bound for ns in numbers)
    assert total + counts[-1] == len(numbers)


@given(st.lists(st.integers(2**13, 2**35), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_is_within_a_factor_of_two(numbers: list[int], q: float) -> None:
    exact = sorted(numbers)[max(0, -int(-q * len(numbers) // 1) - 1)]
    assert exact / 2 <= filled(numbers).quantile_ns(q) <= exact * 2


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile_ns(0.5) == 0
