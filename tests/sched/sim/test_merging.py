"""Jobs in several groups' way: they join the groups where that saves time, and only there."""

from __future__ import annotations

from random import Random

from offpath.sched.ina.conflicts import HDR, NDR, components
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.trees import Tree
from offpath.sched.sim.ina import merging
from offpath.sched.sim.ina.merging import Merge, worth
from offpath.sched.sim.ina.planners import Mina, Moment, Placed
from offpath.sched.topology.fattree import fat_tree

LIGHT = Timed("light", (0,), (40,), (10,), 30)
"""Saves a quarter, and holds the tree for a quarter of its time."""
BINDS = Timed("binds", (0,), (40,), (20,), 5)
"""Saves half, and holds the tree all the time."""


def moment(patterns: list[Timed], seed: int = 0, hosts: int = 5) -> Moment:
    """Jobs on drawn hosts of a small fat-tree: their trees are in each other's way."""
    random = Random(f"moment {seed}")
    topology = fat_tree(4, 1)
    places = random.sample(range(topology.hosts), topology.hosts)
    running = [
        Placed(job, tuple(sorted(places[hosts * job : hosts * job + hosts])), 0.5, pattern)
        for job, pattern in enumerate(patterns)
    ]
    return Moment(topology, running, [each.job for each in running], {}, [])


def test_what_a_group_is_worth_by_hand() -> None:
    assert worth((BINDS,)) == 0.5
    assert worth((LIGHT,)) == 0.25
    both = worth((BINDS, BINDS))
    assert 0.3 < both < 0.75  # one tree, wanted all the time by each


def three_groups(job: Timed) -> dict[int, bool]:
    """Two jobs apart, and one whose only tree is in both their ways: who has a tree."""

    def on(*switches: int) -> Tree:
        return Tree(switches[0], switches, ())

    here = moment([LIGHT, LIGHT, job])
    merge = Merge(HDR, Random(0), 1)
    offered = {0: (on(100),), 1: (on(101),), 2: (on(100, 101),)}
    merge._mina.drawn.update(offered)
    return {job: tree is not None for job, tree in merge.plan(here).items()}


def test_a_job_between_two_groups_joins_them_if_that_pays() -> None:
    assert three_groups(LIGHT) == {0: True, 1: True, 2: True}
    nothing = Timed("nothing", (0,), (40,), (20,), 100)
    assert three_groups(nothing) == {0: True, 1: True, 2: False}


def test_no_tree_of_minas_is_lost_and_each_that_is_added_pays() -> None:
    added = 0
    for seed in range(60):
        random = Random(seed)
        here = moment([random.choice((LIGHT, BINDS)) for _ in range(7)], seed, hosts=2)
        plain = Mina(NDR, Random(seed), 2).plan(here)
        merged = Merge(NDR, Random(seed), 2).plan(here)
        assert {job: merged[job] for job, tree in plain.items() if tree} == {j: t for j, t in plain.items() if t}
        patterns = {each.job: each.pattern for each in here.running}
        before, after = (
            sum(
                merging._worth(set(group), patterns)
                for group in components({job: tree for job, tree in each.items() if tree}, NDR)
            )
            for each in (plain, merged)
        )
        more = sum(tree is not None for tree in merged.values()) - sum(tree is not None for tree in plain.values())
        assert after > before if more else after == before
        added += more
    assert added > 0


def test_a_crowd_is_not_joined() -> None:
    here = moment([LIGHT] * 3)
    merge = Merge(HDR, Random(0), 1)
    patterns = {each.job: each.pattern for each in here.running} | dict.fromkeys(range(3, 40), LIGHT)
    assert merge._gain(0, [set(range(1, 31))], patterns) == 0.0
