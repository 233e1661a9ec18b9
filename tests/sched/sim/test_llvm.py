"""The random numbers of LLVM's library: the generator by its known value, what is made of it by hand."""

from __future__ import annotations

import pytest

from offpath.cli.mina.cells import AUTHORS_MODELS, MODELS, authors_jobs, inputs
from offpath.sched.sim.ina.llvm import MODULUS, MULTIPLIER, Minstd


def before(value: int) -> Minstd:
    """A generator whose next value is ``value``."""
    return Minstd(value * pow(MULTIPLIER, -1, MODULUS) % MODULUS)


def test_the_ten_thousandth_value_is_what_the_standard_says() -> None:
    """ISO C++ [rand.predef]: of a default-constructed `minstd_rand`, whose seed is 1."""
    drawn = Minstd(1)
    values = [drawn.value() for _ in range(10_000)]
    assert values[0] == 48_271
    assert values[-1] == 399_268_537


def test_a_seed_of_zero_is_one() -> None:
    assert Minstd(0).value() == Minstd(MODULUS).value() == Minstd(1).value()


@pytest.mark.parametrize(
    ("value", "least", "most", "expected"),
    [(1, 0, 6, 0), (6, 0, 6, 5), (48_271, 0, 6, 6), (1 + 9, 1, 10, 10), (1 + 64 * 5 + 63, 0, 63, 63)],
)
def test_an_integer_is_the_lowest_bits_of_a_value_less_one(value: int, least: int, most: int, expected: int) -> None:
    assert before(value).integer(least, most) == expected


def test_what_is_above_the_range_is_drawn_again() -> None:
    """Three low bits that are 7 do not fit into 0 to 6; the next value counts."""
    drawn, next_values = before(8), before(8)
    next_values.value()
    while (second := next_values.value() - 1) & 7 == 7:
        pass
    assert drawn.integer(0, 6) == second & 7


def test_values_that_would_make_low_numbers_likelier_are_drawn_again() -> None:
    """2^31 - 2 values are no multiple of 8: the last six are not used."""
    last = MODULUS - 1
    drawn, after = before(last), before(last)
    after.value()
    assert drawn.integer(0, 7) == after.value() - 1 & 7


def test_a_range_of_one_number_consumes_nothing_and_an_impossible_one_is_refused() -> None:
    drawn = Minstd(42)
    assert drawn.integer(7, 7) == 7
    assert drawn.value() == Minstd(42).value()
    for most in (-1, 2**31):
        with pytest.raises(ValueError, match="no integer"):
            drawn.integer(0, most)


def test_a_real_takes_two_values_the_second_is_the_more_significant() -> None:
    drawn, values = Minstd(42), Minstd(42)
    low, high = values.value() - 1, values.value() - 1
    count = float(MODULUS - 1)
    assert drawn.real() == (low + high * count) / (count * count)
    assert drawn.value() == values.value()
    assert all(0 <= drawn.real() < 1 for _ in range(1_000))


def test_weights_are_drawn_by_their_share_and_a_single_one_consumes_nothing() -> None:
    drawn = Minstd(42)
    assert drawn.by_weight([5.0])() == 0
    assert drawn.value() == Minstd(42).value()
    place = Minstd(42).by_weight([1.0, 3.0, 0.0, 4.0])
    counts = [0] * 4
    for _ in range(8_000):
        counts[place()] += 1
    assert counts[2] == 0
    assert counts == [pytest.approx(each, abs=150) for each in (1_000, 3_000, 0, 4_000)]


def test_a_sample_is_in_order_and_asks_for_each_in_turn() -> None:
    """Each is taken with the chance wanted / left, by one number from those left, until enough are."""
    drawn, numbers = Minstd(42), Minstd(42)
    expected, wanted = [], 5
    for each in range(64):
        if wanted and numbers.integer(0, 63 - each) < wanted:
            expected.append(each)
            wanted -= 1
        if not wanted:
            break
    assert drawn.sample(range(64), 5) == expected
    assert drawn.value() == numbers.value()
    assert Minstd(1).sample([3, 4], 5) == [3, 4]


def test_the_authors_jobs_are_drawn_model_hosts_and_steps_one_job_after_the_other() -> None:
    """The list of seed 42, for which their simulator's mean JCT without INA and number of jobs at time 0 are known."""
    data = inputs(None)
    jobs = authors_jobs(data, 0, 2_000, 42)
    drawn = Minstd(42)
    hosts, weights = zip(*data["host_counts"][0], strict=True)
    place = drawn.by_weight(weights)
    for job in jobs[:50]:
        assert MODELS[job.pattern] == AUTHORS_MODELS[drawn.integer(0, 6)]
        assert job.hosts == hosts[place()]
        assert job.steps == 10 * drawn.integer(1, 10)
    begun = free = 0
    for job in jobs:
        free += job.hosts
        if free > 1_024:
            break
        begun += 1
    assert begun == 81
