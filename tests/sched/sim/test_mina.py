"""A cluster whose jobs share aggregation: what always holds, and that nothing depends on how time was skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from offpath.cli.mina.cells import TREES
from offpath.sched.ina.conflicts import HDR, share
from offpath.sched.ina.engine import RULES, can_compile
from offpath.sched.ina.patterns import AllReduce, Network, Pattern
from offpath.sched.placement.registry import make
from offpath.sched.sim.ina.cluster import MIGRATION_NS, Job, JobTooLarge, Simulation, World
from offpath.sched.sim.ina.metrics import Metrics, measure
from offpath.sched.sim.ina.planners import Trees
from offpath.sched.topology.fattree import fat_tree

MS = 10**6
PATTERNS = [
    Pattern("binds", tuple(AllReduce(n * 2 * MS, 50_000_000) for n in range(4)), 10 * MS),
    Pattern("hides", tuple(AllReduce(n * 5 * MS, 20_000_000) for n in range(6)), 40 * MS),
]


def simulation(
    seed: int, trees: str, rule: str, *, told: Callable[[Trees], None] | None = None, **more: Any
) -> Simulation:
    random = Random(f"mina {seed}")
    jobs = [Job(random.randrange(2), random.choice([1, 2, 3, 5, 9]), random.randint(1, 12)) for _ in range(60)]
    if more.pop("arrivals", False):
        jobs = [replace(job, arrival_ns=random.randrange(400 * MS)) for job in jobs]
    world = World(
        fat_tree(4), PATTERNS, Network(5e9, 2.0), make("first-n", random), TREES[trees](random, 3), RULES[rule],
        **{"compiled": False, **more},
    )  # fmt: skip
    return Simulation(world, jobs, on_plan=told)


def measured(run: Simulation) -> Metrics:
    run.run()
    return measure(run.outcomes, run.world.topology.hosts)


@pytest.mark.parametrize("trees", TREES)
@pytest.mark.parametrize("rule", RULES)
def test_a_job_takes_no_less_than_all_its_operations_with_ina_and_no_more_than_without(trees: str, rule: str) -> None:
    run = simulation(1, trees, rule, arrivals=True)
    found = measured(run)
    assert found.jobs == 60
    for each in run.outcomes:
        assert each.all_ns <= each.jct_ns <= each.none_ns
        assert each.started_ns >= each.job.arrival_ns
    assert 0 <= found.efficiency_score <= 1
    if rule == "none":
        assert found.efficiency_score == found.utilisation == 0
    busy = sum(len(each.hosts) * each.jct_ns for each in run.outcomes)
    assert found.host_utilisation == pytest.approx(busy / (16 * run.engine.now_ns))


def test_no_host_has_two_jobs_at_once() -> None:
    run = simulation(2, "mina", "mina-paper", arrivals=True)
    run.run()
    spans = sorted((host, each.started_ns, each.ended_ns) for each in run.outcomes for host in each.hosts)
    for (host, _, end), (other, begin, _) in pairwise(spans):
        assert host != other or end <= begin


@pytest.mark.parametrize("more", [{}, {"migration_ns": MIGRATION_NS // 50}, {"limit": HDR}, {"contention": True}])
def test_skipping_time_changes_nothing(more: dict[str, Any]) -> None:
    for trees, rule in (("mina", "mina-paper"), ("mina-code", "greedy"), ("first-in-transmission", "mina-weighed")):
        one, other = (simulation(3, trees, rule, fast_forward=each, **more) for each in (True, False))
        one.run()
        other.run()
        assert one.outcomes == other.outcomes


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
@pytest.mark.parametrize("more", [{}, {"contention": True}])
def test_a_compiled_run_is_a_plain_one(more: dict[str, Any]) -> None:
    for trees, rule in (("mina", "plan"), ("first", "mina-weighed"), ("first-in-transmission", "greedy")):
        one, other = (simulation(10, trees, rule, arrivals=True, compiled=each, **more) for each in (True, False))
        one.run()
        other.run()
        assert one.outcomes == other.outcomes


def test_a_run_is_the_same_each_time_and_another_with_another_seed() -> None:
    assert measured(simulation(4, "mina", "mina-paper")) == measured(simulation(4, "mina", "mina-paper"))
    assert measured(simulation(4, "mina", "mina-paper")) != measured(simulation(5, "mina", "mina-paper"))


def test_trees_of_the_papers_baseline_never_meet_and_those_of_its_code_do() -> None:
    met = {"first": 0, "first-in-transmission": 0}

    def look(name: str) -> Callable[[Trees], None]:
        def count(trees: Trees) -> None:
            held = [tree for tree in trees.values() if tree]
            limit = run.world.limit
            met[name] += sum(share(a, b, limit) for n, a in enumerate(held) for b in held[:n])

        return count

    for name in met:
        run = simulation(6, name, "greedy", told=look(name))
        run.run()
    assert met["first"] == 0 < met["first-in-transmission"]


def test_moving_trees_costs_time_and_is_counted() -> None:
    free = measured(simulation(7, "mina-code", "mina-paper"))
    costly = measured(simulation(7, "mina-code", "mina-paper", migration_ns=50 * MS))
    assert costly.migrations > 0
    assert costly.downtime_s == pytest.approx(costly.migrations * 0.05)
    assert free.downtime_s == 0
    assert costly.efficiency_score < free.efficiency_score


def test_ina_that_is_faster_saves_more_time() -> None:
    gained = []
    for ratio in (1.0, 1.5, 2.0, 4.0):
        run = simulation(8, "mina", "mina-paper")
        run = Simulation(replace(run.world, network=Network(5e9, ratio)), run.jobs)
        gained.append(measured(run).avg_jct_s)
    assert gained == sorted(gained, reverse=True)
    assert gained[0] > gained[-1]


def test_a_job_that_never_fits_is_refused() -> None:
    run = simulation(9, "mina", "mina-paper")
    with pytest.raises(JobTooLarge):
        Simulation(run.world, [Job(0, 17, 1)])


def test_links_that_others_use_cost_time_and_ina_spares_it() -> None:
    """Without INA every job is at least as slow as alone, some are slower; those with a tree to themselves are not."""
    alone = simulation(11, "first", "none")
    crowded = simulation(11, "first", "none", contention=True)
    assert measured(alone).slowest == 1.0 < measured(crowded).slowest
    for each in crowded.outcomes:
        assert each.jct_ns >= each.none_ns
        assert (each.jct_ns > each.none_ns) <= (each.slowest > 1.0)
        assert each.slowest == 1.0 or len(each.hosts) > 1
    spared = measured(simulation(11, "mina", "mina-paper", contention=True))
    assert spared.avg_jct_s < measured(simulation(11, "mina", "mina-paper")).avg_jct_no_ina_s
    assert spared.slowest < measured(simulation(11, "first", "none", contention=True)).slowest


def test_without_contention_links_are_nobodys() -> None:
    assert simulation(12, "mina", "mina-paper").world.contention is False
    free = simulation(12, "mina", "mina-paper")
    free.run()
    assert {each.slowest for each in free.outcomes} == {1.0}
