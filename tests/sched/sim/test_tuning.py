"""What jobs of a group should expect of INA: found from patterns alone, and the best of what was looked at."""

from __future__ import annotations

from itertools import product
from random import Random

from offpath.cli.mina.cells import inputs, patterns
from offpath.sched.ina.patterns import Network, Timed, timed
from offpath.sched.ina.tuning import DEFAULT, MOST, VALUES, saved, span_ns, trusts

from ..ina.training import drawn


def group(seed: int, jobs: int) -> tuple[Timed, ...]:
    random = Random(f"group {seed}")
    return tuple(drawn(random) for _ in range(jobs))


def test_two_jobs_get_the_best_of_all_pairs_of_values() -> None:
    for seed in range(20):
        both = group(seed, 2)
        found, until = trusts(both, False), span_ns(both)
        assert saved(both, found, until, False) == max(
            saved(both, each, until, False) for each in product(VALUES, repeat=2)
        )


def test_more_jobs_are_no_worse_off_than_with_the_default_and_no_single_change_helps_the_last() -> None:
    for seed in range(10):
        several = group(seed, 3)
        found, until = trusts(several, False), span_ns(several)
        best = saved(several, found, until, False)
        assert best >= saved(several, (DEFAULT,) * 3, until, False)
        assert all(best >= saved(several, (*found[:2], value), until, False) for value in VALUES)


def test_one_alone_and_a_crowd_get_the_default() -> None:
    assert trusts(group(1, 1)) == (DEFAULT,)
    assert trusts(group(1, MOST + 1)) == (DEFAULT,) * (MOST + 1)


def test_the_part_that_is_saved_by_hand() -> None:
    """Each alone needs the tree all the time: together they save no more than one of them could."""
    binds = Timed("binds", (0,), (20,), (10,), 5)
    part = saved((binds, binds), (DEFAULT, DEFAULT), 10_000, False)
    assert 0.5 <= part < 0.7
    hides = Timed("hides", (0,), (20,), (10,), 50)
    assert saved((hides, hides), (DEFAULT, DEFAULT), 10_000, False) == 1.0
    assert 0.98 < saved((binds, hides), (DEFAULT, DEFAULT), 10_000, False) <= 1.0


def test_models_share_better_tuned_than_with_one_value_for_all() -> None:
    """Over another stretch of time than that which was looked at."""
    names = ("bert-large-4", "vit-large-4", "opt-125m-4")
    known = [each for each in patterns(inputs(None), 4) if each.name in names]
    kinds = [timed(each, Network(12.5e9, 1.5), gpu_speedup=1.5) for each in known]
    means = {"tuned": 0.0, **{f"{value}": 0.0 for value in VALUES}}
    for both in product(kinds, repeat=2):
        means["tuned"] += saved(both, trusts(both), 20 * 10**9) / 9
        for value in VALUES:
            means[f"{value}"] += saved(both, (value, value), 20 * 10**9) / 9
    assert means["tuned"] > max(means[f"{value}"] for value in VALUES)
