"""Algorithm 2: a tier is taken only where the round gets shorter by it; thresholds are learnt."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.tiers import Profile, Sample, Tiers, chosen, tail_s

HALF = Tiers((50,), (1.2, 0.5))


def test_the_tail_is_that_of_a_log_normal_distribution() -> None:
    random = Random(1)
    found = tail_s([random.lognormvariate(3.0, 0.5) for _ in range(20_000)])
    assert math.log(found) == pytest.approx(3.0 + 1.645 * 0.5, abs=0.03)


@given(st.floats(1, 1e4), st.floats(0.1, 1e4), st.integers(0, 1))
def test_a_tier_is_taken_exactly_if_the_round_gets_shorter(response: float, schedule: float, tier: int) -> None:
    """Figure 7: with V tiers devices take V times as long to find, and answer g times as fast."""
    before = schedule + response
    after = 2 * schedule + HALF.speedups[tier] * response
    if abs(before - after) > 1e-6 * before:
        assert chosen(HALF, response, schedule, lambda count: tier) == (tier if after < before else None)


def test_all_tiers_have_equal_chances_and_there_is_no_other() -> None:
    drawn: list[int] = []
    chosen(HALF, 1.0, 1.0, lambda count: drawn.append(count) or 0)
    assert drawn == [2]
    assert chosen(None, 1.0, 1.0, lambda count: 0) is None
    assert chosen(HALF, 1.0, 0.0, lambda count: 1) == 1, "devices abound"
    assert chosen(HALF, 1.0, 0.0, lambda count: 0) is None


def test_thresholds_split_the_devices_evenly_and_faster_ones_have_smaller_g() -> None:
    profile = Profile(4)
    for speed in range(100):
        profile.learn(Sample(speed, 100.0 - speed / 2 + speed % 3))
    tiers = profile.tiers()
    assert tiers is not None
    assert tiers.bounds == (25, 50, 75)
    assert list(tiers.speedups) == sorted(tiers.speedups, reverse=True)
    assert [tiers.of(speed) for speed in (0, 24, 25, 99)] == [0, 0, 1, 3]


def test_few_devices_or_devices_alike_give_no_tiers() -> None:
    few, alike = Profile(2), Profile(2)
    for n in range(15):
        few.learn(Sample(n, 1.0))
    for _ in range(50):
        alike.learn(Sample(7, 1.0))
        alike.learn(Sample(9, float("nan")))
    assert few.tiers() is None
    assert alike.tiers() is None
