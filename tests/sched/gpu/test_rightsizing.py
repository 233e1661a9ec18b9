"""The knee of a throughput profile: the smallest instance from which no larger one is much better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.gpu.rightsizing import Rate, ThroughputProfile

SLICES = (1, 2, 3, 4, 7)


def profile(*throughputs: float) -> ThroughputProfile:
    """Of the largest instances, as many as there are figures."""
    offered = SLICES[len(SLICES) - len(throughputs) :]
    rates = tuple(Rate(f"{n}g", n, each) for n, each in zip(offered, throughputs, strict=True))
    return ThroughputProfile("m", 1, rates)


THROUGHPUTS = st.lists(st.floats(0.01, 1_000), min_size=1, max_size=5)
PROFILES = THROUGHPUTS.map(lambda values: profile(*values))
MONOTONE = THROUGHPUTS.map(lambda values: profile(*sorted(values)))
GAINS = st.floats(0, 2)


def test_a_job_that_gains_little_beyond_half_a_gpu_has_its_knee_there() -> None:
    flat = profile(0.3, 0.6, 0.92, 0.95, 1.0)
    assert flat.knee().profile == "3g"
    assert flat.share(flat.knee()) == 42
    assert flat.knee(0.05).profile == "7g"
    assert flat.knee(0.06).profile == "4g"


def test_a_gentle_slope_that_adds_up_to_a_lot_has_no_knee_before_its_end() -> None:
    """Each slice beyond the third gives 6 %, a rule on single slices would stop there; together they give 26 %."""
    assert profile(0.3, 0.5, 0.79, 0.84, 1.0).knee().profile == "7g"


def test_a_dip_between_two_instances_does_not_hide_what_lies_beyond_it() -> None:
    assert profile(0.5, 0.4, 0.9, 0.8, 1.0).knee().profile == "7g"
    assert profile(0.95, 0.4, 0.9, 0.8, 1.0).knee().profile == "1g"


def test_shares_are_the_fractions_of_table_3_and_the_whole_gpu_is_one() -> None:
    each = profile(2, 4, 6, 8, 10)
    assert [each.share(rate) for rate in each.rates] == [14, 28, 42, 57, 100]
    assert each.normalised() == pytest.approx((0.2, 0.4, 0.6, 0.8, 1.0))


def test_a_job_measured_on_the_whole_gpu_only_needs_it() -> None:
    assert profile(5.0).knee().profile == "7g"


@given(PROFILES, GAINS)
def test_the_knee_is_offered_and_nothing_larger_is_much_better(each: ThroughputProfile, gain: float) -> None:
    knee = each.knee(gain)
    at = each.rates.index(knee)
    assert all(rate.throughput <= (1 + gain) * knee.throughput for rate in each.rates[at:])


@given(PROFILES, GAINS)
def test_everything_below_the_knee_has_something_much_better_above(each: ThroughputProfile, gain: float) -> None:
    at = each.rates.index(each.knee(gain))
    for n, rate in enumerate(each.rates[:at]):
        assert max(larger.throughput for larger in each.rates[n + 1 :]) > (1 + gain) * rate.throughput


@given(PROFILES, GAINS, GAINS)
def test_who_asks_for_more_gain_is_given_no_more(each: ThroughputProfile, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert each.knee(more).compute_slices <= each.knee(less).compute_slices


@given(MONOTONE, GAINS)
def test_where_more_slices_never_hurt_the_knee_is_near_the_whole_gpus_throughput(
    each: ThroughputProfile, gain: float
) -> None:
    knee = each.knee(gain)
    assert each.rates[-1].throughput <= (1 + gain) * knee.throughput
    assert list(each.normalised()) == sorted(each.normalised())


@given(PROFILES, GAINS, st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_of_throughput_does_not_matter(each: ThroughputProfile, gain: float, unit: float) -> None:
    scaled = profile(*(rate.throughput * unit for rate in each.rates))
    assert scaled.knee(gain).profile == each.knee(gain).profile


@given(st.floats(0.01, 100), st.floats(0, 0.7))
def test_a_job_as_fast_as_its_slices_needs_the_whole_gpu(unit: float, gain: float) -> None:
    """From four slices to seven it is 75 % faster."""
    assert profile(*(unit * slices for slices in SLICES)).knee(gain).profile == "7g"
