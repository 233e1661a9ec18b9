"""What the simulator of MINA's figures does beside trees and rule, each by hand on a small cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from offpath.cli.mina.cells import TREES, inputs, patterns
from offpath.sched.ina import linear_time, peeling
from offpath.sched.ina.conflicts import NDR, Instance
from offpath.sched.ina.engine import RULES
from offpath.sched.ina.patterns import (
    FINE_TICKS_PER_S,
    NS_PER_S,
    AllReduce,
    Network,
    Pattern,
    parse,
    timed,
)
from offpath.sched.ina.trees import candidates, roots
from offpath.sched.placement.registry import make
from offpath.sched.sim.ina.cluster import Job, Simulation, World
from offpath.sched.sim.ina.metrics import measure
from offpath.sched.sim.ina.planners import Code, First, Moment, Placed, Trees
from offpath.sched.topology.fattree import fat_tree, regular

MS = 10**6
STEP = Pattern("step", (AllReduce(0, 50_000_000),), 10 * MS)  # 10.05 ms plain, 5.05 ms with INA at 5 GB/s, ratio 2
NETWORK = Network(5e9, 2.0)


class Scripted:
    """Trees by number of the plan, from the candidates of each job by root."""

    name = "scripted"
    reads_traffic = False

    def __init__(self, plans: Sequence[Mapping[int, int]]) -> None:
        self.plans = list(plans)

    def plan(self, moment: Moment) -> Trees:
        wanted = self.plans.pop(0)
        return {
            each.job: candidates(moment.topology, each.hosts, None, Random(0))[wanted[each.job]]
            if each.job in wanted
            else None
            for each in moment.running
        }


def world(planner: object = None, **more: object) -> World:
    made = World(
        fat_tree(4), [STEP], NETWORK, make("first-n", Random(0)), TREES["first-in-transmission"](Random(0), 3),
        RULES["greedy"], compiled=False,
    )  # fmt: skip
    return replace(made, **{"planner": planner or made.planner, **more})  # type: ignore[arg-type]


def ran(made: World, jobs: Sequence[Job]) -> Simulation:
    run = Simulation(made, jobs)
    run.run()
    return run


# -- A: numbers of core switches ------------------------------------------------------------------------------------
def test_cores_in_a_row_are_of_one_plane_or_of_all() -> None:
    """An aggregation switch's plane is its place among the eight of its pod; a core is on one plane in each pod."""
    for planes_first, expected in ((False, [0] * 8 + [1] * 8), (True, [*range(8), *range(8)])):
        topology = fat_tree(16, planes_first=planes_first)
        first = topology.hosts + 128
        below: dict[int, set[int]] = {}
        for node in range(first, first + 128):
            for core, _ in topology.up[node]:
                below.setdefault(core, set()).add((node - first) % 8)
        cores = roots(topology, (0, 64))
        assert [below[core] for core in cores[:16]] == [{plane} for plane in expected]


def test_the_numbering_changes_no_network_but_its_names() -> None:
    for down, up in (((4, 4, 8), (1, 4, 4)), ((2, 2, 2, 2), (1, 2, 3, 2))):
        one, other = (regular(down, up, planes_first=each) for each in (False, True))
        assert (one.level, one.pods, one.hosts) == (other.level, other.pods, other.hosts)
        assert [len(each) for each in one.up] == [len(each) for each in other.up]
        assert len(set(other.links)) == len(one.links)
        hosts = (0, one.hosts - 1)
        assert len(roots(one, hosts)) == len(roots(other, hosts))


def test_the_baseline_goes_to_another_plane_where_planes_come_first() -> None:
    """Two jobs in the same two pods, on different leaves. While the first transmits over core 0 the second finds the
    links from its plane to that core taken: the next core is one of the same plane, or of the next."""
    for planes_first, same_plane in ((False, True), (True, False)):
        topology = fat_tree(4, planes_first=planes_first)
        pattern = timed(STEP, NETWORK)
        one, other = Placed(0, (0, 4), 0.5, pattern), Placed(1, (2, 6), 0.5, pattern)
        planner = First(NDR, among_assigned=False)
        first = planner.plan(Moment(topology, [one], [0], {}, []))[0]
        assert first is not None
        second = planner.plan(Moment(topology, [one, other], [1], {0: first}, [first]))[1]
        assert second is not None
        assert (first.root, second.root) == (16 + 16, 16 + 17)
        assert bool(set(first.switches) & set(second.switches)) == same_plane
        assert planner.plan(Moment(topology, [one, other], [1], {0: first}, []))[1].root == first.root  # type: ignore[union-attr]


# -- B: ends at one instant -----------------------------------------------------------------------------------------
def test_jobs_that_end_at_one_instant_give_back_one_after_the_other() -> None:
    """Two jobs of six hosts end together; eight are wanted. All at once: the first eight hosts. One by one: six and two
    of those that were free; of one group the job that began earlier gives back first, of two groups the younger."""
    jobs = [Job(0, 6, 3), Job(0, 6, 3), Job(0, 8, 1)]
    for trees, earlier in (("first-in-transmission", (*range(6), 12, 13)), ("mina", tuple(range(6, 14)))):
        planner = TREES[trees](Random(0), 4)
        made = world(planner, rule=RULES["none"])
        at_once, one_by_one = (ran(replace(made, ends_one_by_one=each), jobs) for each in (False, True))
        assert at_once.outcomes[0].ended_ns == at_once.outcomes[1].ended_ns == one_by_one.outcomes[1].ended_ns
        assert at_once.outcomes[2].hosts == tuple(range(8))
        assert one_by_one.outcomes[2].hosts == earlier
        assert one_by_one.outcomes[2].started_ns == at_once.outcomes[2].started_ns == one_by_one.outcomes[0].ended_ns


def test_trees_are_planned_after_each_of_them() -> None:
    """At the end of the first two, of which each makes room for one job of eight hosts."""
    jobs = [Job(0, 6, 3), Job(0, 6, 3), Job(0, 8, 1), Job(0, 8, 1)]
    plans = [ran(world(ends_one_by_one=each, rule=RULES["none"]), jobs).plans for each in (False, True)]
    assert plans == [2, 3]


@pytest.mark.parametrize("trees", ["mina-code", "first-in-transmission", "mina"])
def test_one_by_one_nothing_depends_on_how_time_was_skipped(trees: str) -> None:
    random = Random("one by one")
    jobs = [Job(0, random.choice((1, 2, 3, 5)), random.randint(1, 4)) for _ in range(60)]
    told = []
    for fast_forward in (True, False):
        made = world(TREES[trees](Random(3), 3), fast_forward=fast_forward, ends_one_by_one=True)
        run = ran(made, jobs)
        assert run.plans > len({each.started_ns for each in run.outcomes})
        told.append(run.outcomes)
    assert told[0] == told[1]


# -- C: the independent set -----------------------------------------------------------------------------------------
def test_the_code_of_the_figures_serves_the_linear_time_set_and_so_fewer_jobs_than_the_rule_for_cliques() -> None:
    topology, pattern = fat_tree(16), timed(STEP, NETWORK)
    served = {"theirs": 0, "ours": 0}
    for seed in range(4):
        hosts = list(range(topology.hosts))
        Random(seed).shuffle(hosts)
        running = [Placed(job, tuple(hosts[12 * job : 12 * job + 12]), 0.5, pattern) for job in range(85)]
        planned = Code(NDR, Random(seed), 5).plan(Moment(topology, running, [], {}, []))
        draws = Random(seed)
        graph = Instance({each.job: candidates(topology, each.hosts, 5, draws) for each in running}, NDR).neighbours()
        assert sum(tree is not None for tree in planned.values()) == len(linear_time.independent_set(graph))
        served["theirs"] += len(linear_time.independent_set(graph))
        served["ours"] += len(peeling.independent_set(graph))
    assert served["theirs"] < served["ours"]


# -- D: utilisation -------------------------------------------------------------------------------------------------
def test_operations_of_a_single_host_count_as_made_with_ina_where_the_figures_do() -> None:
    """20 steps of one operation of 50 µs."""
    for counts, expected in ((False, 0), (True, 20 * 50_000)):
        (outcome,) = ran(world(single_hosts_use_ina=counts), [Job(0, 1, 20)]).outcomes
        assert (outcome.ina_ns, outcome.with_ina) == (expected, 20 if counts else 0)
        assert measure([outcome], 16).utilisation == expected / outcome.jct_ns


# -- E: migrations --------------------------------------------------------------------------------------------------
def test_a_change_of_tree_counts_in_flight_when_the_operation_ends_if_another_tree_waits_then() -> None:
    """Job 0 transmits from 0 to 5.05 ms of each step of 10 ms; others come, and with each a plan."""
    jobs = [Job(0, 9, 10), *(Job(0, 1, 1, arrival_ns=at * MS) for at in (1, 2, 12, 18, 33))]
    plans = [{0: 0}, {0: 1}, {0: 2}, {0: 0}, {0: 1}, {0: 1}]
    run = ran(world(Scripted(plans)), jobs)
    moved = run.outcomes[0]
    assert moved.migrations == 4
    assert moved.migrations_in_flight == 2  # at 1 and 2 ms in one operation, and at 12; at 18 none is in flight
    back = ran(world(Scripted([{0: 0}, {0: 1}, {0: 0}])), jobs[:3]).outcomes[0]
    assert (back.migrations, back.migrations_in_flight) == (2, 0)


def test_a_tree_that_is_left_is_in_the_way_only_of_those_who_still_meet_it() -> None:
    """Three planes of three cores. At 1 ms job 0 leaves plane 0 for plane 1 while it transmits until 5.05 ms. Job 1 is
    given a tree of plane 0 then, and at 2 ms one of plane 2: its operation at 3 ms uses INA."""
    late = Pattern("late", (AllReduce(2 * MS, 50_000_000),), 20 * MS)
    jobs = [Job(0, 20, 10), Job(1, 20, 1, arrival_ns=1 * MS), Job(0, 1, 1, arrival_ns=2 * MS)]
    for last, uses in ((6, 1), (1, 0)):
        made = world(
            Scripted([{0: 0}, {0: 3, 1: 1}, {0: 3, 1: last}]), topology=fat_tree(6), patterns=[STEP, late],
            placement=make("random", Random(1)),
        )  # fmt: skip
        assert ran(made, jobs).outcomes[1].with_ina == uses


# -- F: times -------------------------------------------------------------------------------------------------------
def test_the_shipped_patterns_are_exact_in_fine_ticks_and_not_in_ns() -> None:
    data = inputs(None)
    exact = 0
    for found, rounded in zip(patterns(data, 4, FINE_TICKS_PER_S), patterns(data, 4), strict=True):
        source = data["patterns"][found.name]
        assert found.duration_ns / FINE_TICKS_PER_S == source["duration"]
        assert [each.start_ns / FINE_TICKS_PER_S for each in found.operations] == [
            each["start"] for each in source["allreduces"]
        ]
        exact += rounded.duration_ns / NS_PER_S == source["duration"]
    assert exact == 0


def test_steps_that_computation_bounds_end_together_in_fine_ticks_wherever_they_do_in_seconds() -> None:
    """Six steps of 3 units of 2^-22 s and nine of 2 are one time; in ns they are 3 ns apart."""
    unit = 2.0**-22
    ends = {}
    for ticks in (FINE_TICKS_PER_S, NS_PER_S):
        steps = [parse("s", {"duration": n * unit, "allreduces": [{"start": 0, "size": 8}]}, ticks_per_s=ticks)
                 for n in (3_000_001, 2_000_001)]  # fmt: skip
        run = ran(world(patterns=steps), [Job(0, 2, 2_000_001), Job(1, 2, 3_000_001)])
        ends[ticks] = [each.ended_ns for each in run.outcomes]
        assert [end / ticks for end in ends[ticks]] == pytest.approx([2_000_001 * 3_000_001 * unit] * 2, rel=1e-9)
    assert ends[FINE_TICKS_PER_S][0] == ends[FINE_TICKS_PER_S][1]
    assert ends[NS_PER_S][0] != ends[NS_PER_S][1]


def test_a_finer_tick_changes_times_by_rounding_only() -> None:
    fine, coarse = (patterns(inputs(None), 4, ticks) for ticks in (FINE_TICKS_PER_S, NS_PER_S))
    for one, other in zip(fine, coarse, strict=True):
        a, b = timed(one, NETWORK), timed(other, NETWORK)
        for many, few in ((a.plain, b.plain), (a.ina, b.ina), ((a.none_ns, a.all_ns), (b.none_ns, b.all_ns))):
            assert [n / FINE_TICKS_PER_S for n in many] == pytest.approx([n / NS_PER_S for n in few], abs=5e-8)
    made = world(patterns=fine, migration_ns=5 * MS)
    run = ran(made, [Job(n % 7, 3, 2) for n in range(9)])
    assert run.ticks_per_s == FINE_TICKS_PER_S
    found = measure(run.outcomes, 16, run.ticks_per_s)
    again = ran(replace(made, patterns=coarse), [Job(n % 7, 3, 2) for n in range(9)])
    assert found.avg_jct_s == pytest.approx(measure(again.outcomes, 16).avg_jct_s, rel=1e-3)


def test_patterns_in_different_ticks_are_refused() -> None:
    with pytest.raises(ValueError, match="ticks per second"):
        Simulation(world(patterns=[STEP, replace(STEP, ticks_per_s=FINE_TICKS_PER_S)]), [Job(0, 2, 1)])
