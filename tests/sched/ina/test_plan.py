"""Patterns, the Plan, the paper's rule and the root's admission, by hand and by property."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import pytest

from offpath.sched.ina.arbitration import Mismatch, Operation, Root
from offpath.sched.ina.decision import Epoch, decision, gain, needed
from offpath.sched.ina.mina_paper import Next, admits
from offpath.sched.ina.patterns import Network, PatternError, Timed, parse, rest, step_ns, timed

from . import training

GOOD: dict[str, Any] = {
    "duration": 2e-6,
    "allreduces": [{"start": 1e-6, "size": 1_000}, {"start": 1e-6, "size": 2_000}],
}


def test_a_step_by_hand() -> None:
    """1 000 bytes at 1 GB/s are 1 µs, twice as fast with INA; the second waits for the first."""
    job = timed(parse("p", GOOD), Network(1e9, 2.0, latency_ns=100))
    assert job.plain == (1_100, 2_100)
    assert job.ina == (600, 1_100)
    assert job.none_ns == 1_000 + 1_100 + 2_100
    assert job.all_ns == 1_000 + 600 + 1_100
    assert step_ns(job, [False, True]) == 1_000 + 1_100 + 1_100


def test_one_host_sends_nothing_and_a_faster_gpu_computes_faster() -> None:
    job = timed(parse("p", GOOD), Network(1e9, 2.0, latency_ns=100), hosts=1, gpu_speedup=2.0)
    assert job.plain == job.ina == (100, 100)
    assert (job.starts, job.duration_ns) == ((500, 500), 1_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration": -1}, "duration is -1"),
        ({"duration": 0}, "duration is 0"),
        ({"duration": True}, "not a number"),
        ({"duration": float("nan")}, "duration is nan"),
        ({"allreduces": []}, "0 all-reduces"),
        ({"allreduces": {}}, "a list of allreduces"),
        ({"allreduces": [3]}, r"allreduces\[0\] is not an object"),
        ({"allreduces": [{"start": 0}]}, r"allreduces\[0\].size is None"),
        ({"allreduces": [{"start": 1e9, "size": 1}]}, r"allreduces\[0\].start is 1e\+09"),
        ({"allreduces": [{"start": 0, "size": 1.5}]}, "positive number of bytes"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PatternError, match=said):
        parse("p", {**GOOD, **change})


def test_the_rest_of_a_step_in_one_sum_is_the_rest_run_through() -> None:
    for seed in range(300):
        random = Random(f"rest {seed}")
        job = training.drawn(random)
        left = rest(job, job.plain)
        for op in range(len(job.starts)):
            begins = job.starts[op] + random.randrange(40)
            expected = training.rest_of_step(job, op, begins, False)
            assert left.end_ns(op + 1, begins + job.plain[op]) == expected


def test_few_operations_do_for_all_and_never_fewer_than_the_fewest() -> None:
    """Against every subset: as short a step as with INA for all, in at most a little more INA than the least."""
    least, ours = 0, 0
    for seed in range(200):
        job = training.drawn(Random(f"needed {seed}"))
        uses = needed(job)
        assert step_ns(job, uses) == job.all_ns
        every = product((False, True), repeat=len(job.starts))
        best = min(
            sum(ina for ina, use in zip(job.ina, each, strict=True) if use)
            for each in every
            if step_ns(job, each) == job.all_ns
        )
        took = sum(ina for ina, use in zip(job.ina, uses, strict=True) if use)
        assert took >= best
        least, ours = least + best, ours + took
    assert ours <= 1.15 * least


def test_an_operation_that_shortens_nothing_does_not_ask_unless_it_is_alone() -> None:
    job = Timed("p", (0, 50), (10, 20), (5, 10), 60)
    assert not decision(Epoch(1, job), 0).wants_ina
    assert decision(Epoch(1, job, is_shared=False), 0).wants_ina
    late = decision(Epoch(1, job), 1)
    assert (late.wants_ina, late.score) == (True, Fraction(10, 10))


def test_verdicts_say_when_an_operation_begins() -> None:
    """Refused, the first ends at 40 and the second gains; admitted, it ends at 20 and nothing is left to gain."""
    job = Timed("p", (0, 20), (40, 20), (20, 10), 41)
    assert decision(Epoch(1, job), 1, [False]).score == Fraction(10, 10)
    assert decision(Epoch(1, job), 1, [True]).wants_ina is False
    assert decision(Epoch(1, job), 1) == decision(Epoch(1, job), 1, [False])
    for wrong, verdicts in ((2, []), (-1, []), (0, [True])):
        with pytest.raises(ValueError, match="operation"):
            decision(Epoch(1, job), wrong, verdicts)


def test_the_plan_gains_what_the_oracle_counts() -> None:
    for seed in range(200):
        random = Random(f"gain {seed}")
        job = training.drawn(random)
        op = random.randrange(len(job.starts))
        begins = job.starts[op] + random.randrange(30)
        found = gain(Epoch(1, job), op, begins)
        assert found.score * job.ina[op] == training.gain(job, op, begins)
        assert found.wants_ina == (found.score > 0)


def test_the_papers_rule_refuses_for_one_that_comes_soon_and_gains_more_per_time() -> None:
    mine = Next(100, 10, 5)
    assert admits(mine, [], in_use=0)
    assert not admits(mine, [], in_use=1)
    assert not admits(mine, [Next(105, 5, 6)], in_use=0)
    assert admits(mine, [Next(105, 5, 5)], in_use=0)  # as much per time is not more
    assert admits(mine, [Next(110, 5, 99)], in_use=0)  # this one is over by then
    assert admits(Next(100, 10, 0), [Next(105, 5, 0)], in_use=0)  # without any gain


def test_the_root_gives_each_operation_one_verdict_and_holds_its_place_until_delivery() -> None:
    root = Root()
    first, second = Operation(1, 1, 1, 0, 64), Operation(2, 1, 1, 0, 64)
    assert [root.admit(first), root.admit(first), root.admit(second)] == [True, True, False]
    root.delivered(first)
    assert not root.admit(second)  # sticky, although there is room now
    assert root.admit(Operation(2, 1, 1, 1, 64))
    root.delivered(first)
    assert root.held == 1


def test_ranks_that_disagree_are_told_and_a_dead_jobs_place_is_freed() -> None:
    root = Root()
    assert root.admit(Operation(1, 1, 1, 4, 64))
    for wrong in (Operation(1, 1, 1, 4, 65), Operation(1, 1, 2, 4, 64), Operation(1, 1, 1, 3, 64)):
        with pytest.raises(Mismatch):
            root.admit(wrong)
    root.fence(1, 1)
    assert root.held == 0
    assert root.admit(Operation(1, 2, 1, 0, 64))


def test_the_root_never_holds_more_than_its_capacity() -> None:
    random = Random("root")
    root = Root(capacity=2)
    held: list[Operation] = []
    indices = [0] * 5
    for _ in range(2_000):
        if held and random.random() < 0.45:
            root.delivered(held.pop(random.randrange(len(held))))
        job = random.randrange(5)
        if all(each.job != job for each in held):
            operation = Operation(job, 1, 1, indices[job], 1)
            indices[job] += 1
            was_free = len(held) < 2
            assert root.admit(operation) is was_free
            if was_free:
                held.append(operation)
        assert root.held == len(held) <= 2
