"""Rounds and orders of jobs in compiled code: what `CollabSimulation` does with the policy itself, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offpath.cli.venn.population import Population, Shape
from offpath.cli.venn.workloads import Scale, jobs_of
from offpath.sched.collab.irs import Reading
from offpath.sched.collab.policies import COLLAB_POLICIES, make
from offpath.sched.collab.records import RoundEnded
from offpath.sched.collab.venn import Venn
from offpath.sched.sim import collab_columns as k
from offpath.sched.sim import collab_fast
from offpath.sched.sim.collab import CollabSimulation
from offpath.sched.sim.collab_fast import FastSimulation, order_of, simulation
from offpath.sched.sim.collab_kernel import build
from offpath.sched.sim.collab_records import CollabRun

from .test_collab import DAYS, World

KNOWN = ("fifo", "random", "srsf", "tiers-fifo", "venn", "venn-irs", "venn-paper")
Result = tuple[list[RoundEnded], CollabRun, object]
"""Also what the random numbers are after the run."""


def result(
    kind: type[CollabSimulation], name: str, seed: int, *, is_watched: bool, compiled: bool | None, **kernels: Any
) -> Result:
    world, random, ended = World(seed), Random(seed), list[RoundEnded]()
    some = kind(
        make(name, random.randrange), random.randrange, world.devices, world.days.__getitem__,
        ended.append if is_watched else None, compiled=compiled,
    )  # fmt: skip
    if kernels:
        some._kernels = kernels
    return ended, some.run(world.jobs, DAYS), random.getstate()


def compare(name: str, seed: int, *, compiled: bool | None = None, **kernels: Any) -> int:
    """A simulation that is watched stops at every round, so there are two runs of it."""
    plain = result(CollabSimulation, name, seed, is_watched=True, compiled=None)
    for is_watched in (True, False):
        ended, *others = result(FastSimulation, name, seed, is_watched=is_watched, compiled=compiled, **kernels)
        assert others == [*plain[1:]]
        assert not is_watched or ended == plain[0]
    return len(plain[0])


@settings(max_examples=40)
@given(st.sampled_from(KNOWN), st.integers(0, 10**6))
def test_it_decides_as_the_simulation_that_asks_the_policy(name: str, seed: int) -> None:
    compare(name, seed)


def test_it_decides_so_without_a_compiler() -> None:
    assert sum(compare(name, seed, compiled=False) for name in KNOWN for seed in range(2)) > 100


@pytest.mark.parametrize("name", KNOWN)
def test_it_decides_so_for_the_population_of_the_evaluation(name: str) -> None:
    clients, runs = 400, []
    for kind in (CollabSimulation, FastSimulation):
        population, random = Population(clients, 3, Shape()), Random(3)
        jobs = jobs_of("low", 20, Scale(share=200, shorter=200), 3, clients, 3)
        policy = make(name, random.randrange)
        run = kind(policy, random.randrange, population.devices, population.day).run(jobs, 20)
        runs.append((run, random.getstate()))
    assert runs[0] == runs[1]
    assert sum(each.completed for each in runs[0][0].jobs.values()) > 100


def test_policies_whose_order_is_not_compiled_are_asked() -> None:
    assert sorted(name for name in COLLAB_POLICIES if order_of(make(name, Random(1).randrange)) is not None) == [*KNOWN]
    assert order_of(Venn(epsilon=1.0)) is None
    assert order_of(Venn(reading=Reading(breaks=False))) is None


def test_it_is_taken_for_the_others_only_with_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(name: str) -> type[CollabSimulation]:
        world, random = World(1), Random(1)
        return type(simulation(make(name, random.randrange), random.randrange, world.devices, world.days.__getitem__))

    assert kind("random-meta") is CollabSimulation
    for can_compile, expected in ((True, FastSimulation), (False, CollabSimulation)):
        monkeypatch.setattr(collab_fast, "can_compile", lambda can=can_compile: can)
        assert kind("venn") is expected


# -- planted bugs ------------------------------------------------------------------------------------------------------
def _last_wins(real: Any) -> Any:
    return lambda a, b, *words: real(b, a, *words)


def _tells_nothing(real: Any) -> Any:
    def tell(state: Any, candidates: Any, jobs: Any, touched: Any) -> None:
        before = jobs[:, k.J_TOLD].copy()
        real(state, candidates, jobs, touched)
        some = (before > 0) & (jobs[:, k.J_TOLD] > 0)
        jobs[some, k.J_TOLD] = before[some]

    return tell


def _oldest_first(real: Any) -> Any:
    def by_speed(count: int, some: Any, found: Any, ordered_ns: Any) -> None:
        ordered_ns[: some.shape[1]] = some[k.S_RESPONSE_NS]

    return by_speed


def _forgets_a_draw(real: Any) -> Any:
    def is_repeated(job: int, state: Any, *words: Any) -> bool:
        found = real(job, state, *words)
        state[k.DRAWS] = max(0, state[k.DRAWS] - 1)
        return bool(found)

    return is_repeated


PLANTED: dict[str, Callable[[Any], Any]] = {
    "precedes": _last_wins,
    "tell": _tells_nothing,
    "take_turn": lambda real: lambda *words: None,
    "is_learnt": lambda real: lambda count, tiers, *words: real(count, tiers, *words) or count >= 8 * tiers,
    "may_gain": lambda real: lambda *words: False,
    "least_speedup": lambda real: lambda *words: math.inf,
    "by_speed": _oldest_first,
    "is_repeated": _forgets_a_draw,
}


def with_bug(where: str, bug: Callable[[Any], Any]) -> dict[str, Any]:
    found = build(lambda function: function)
    common = found["forward"].__globals__
    common[where] = bug(common[where])
    return {name: common[name] for name in found}


MANY = [("tiers-fifo", 27), ("venn-paper", 58), ("venn-paper", 56), ("srsf", 1), ("venn", 2), ("venn-paper", 3)]
"""In the first three there are tiers that are worth it."""


def compare_many(**kernels: Any) -> int:
    return sum(compare(name, seed, compiled=False, **kernels) for name, seed in MANY)


def test_without_a_bug_none_is_found() -> None:
    assert compare_many(**build(lambda function: function)) > 100


@pytest.mark.parametrize("where", sorted(PLANTED))
def test_a_planted_bug_is_found(where: str) -> None:
    with pytest.raises(AssertionError):
        compare_many(**with_bug(where, PLANTED[where]))


def test_a_change_of_a_column_or_a_function_is_not_found_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str:
        return str(build(lambda function: function)["forward"].__qualname__)

    before = name()
    assert name() == before
    monkeypatch.setattr(k, "ERROR", k.ERROR * 2)
    assert name() != before


def test_samples_are_ordered_by_speed_and_of_equal_speed_by_age() -> None:
    by_speed = build(lambda function: function)["by_speed"]
    some = np.array([[1, 0, 1, 0], [10, 20, 30, 40]])
    ordered = np.zeros(4, np.int64)
    by_speed(4, some, np.array([2, 2]), ordered)
    assert ordered.tolist() == [20, 40, 10, 30]
