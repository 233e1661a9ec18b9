"""Plans: never more groups than capacity anywhere, category 2 joined, few trees moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from offpath.sched.ina import exact, fast
from offpath.sched.ina.checker import violations
from offpath.sched.ina.conflicts import HDR, Candidates, Limit, Per
from offpath.sched.ina.groups import MEASURED, Plan, plan
from offpath.sched.ina.trees import Tree, candidates
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Request
from offpath.sched.topology.fattree import fat_tree

from ...sizes import sized
from .instances import LIMITS, instance

STORIES = sized(quick=4, fast=4, slow=10, full=200)


def on(*switches: int) -> Tree:
    return Tree(switches[0], tuple(sorted(switches)), ())


def story(name: str, limit: Limit) -> list[Plan]:
    """Jobs come and go on a network; each plan is checked, and that the next is made from it."""
    random = Random(name)
    topology = random.choice([fat_tree(6), fat_tree(8, 2), fat_tree(8)])
    cluster, policy = Cluster(topology), Fragments()
    hosts: dict[int, tuple[int, ...]] = {}
    trees: dict[int, tuple[Tree, ...]] = {}
    plans = [Plan()]
    for job in range(30):
        if hosts and random.random() < 0.4:
            gone = random.choice(list(hosts))
            cluster.release(hosts.pop(gone))
            del trees[gone]
        decision = policy.place(cluster, Request(random.choice((2, 3, 5, 8, 11))))
        if decision.is_placed:
            cluster.take(decision.hosts)
            hosts[job] = decision.hosts
            trees[job] = candidates(topology, decision.hosts, 5, random)
        before = plans[-1].trees
        now = plan(trees, before, limit)
        assert violations(topology, hosts, now, limit) == []
        moved = {each for each in now.trees if each in before and before[each] != now.trees[each]}
        assert now.migrated == moved
        assert now.granted == set(now.trees) - set(before)
        assert now.revoked == (set(before) & set(trees)) - set(now.trees)
        plans.append(now)
    return plans


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.per.value} {limit.capacity}")
def test_every_plan_of_a_story_is_sound(limit: Limit) -> None:
    shared = 0
    for seed in range(STORIES):
        shared += sum(len(group) > 1 for each in story(f"story {seed}", limit) for group in each.groups)
    assert shared or limit != HDR


def test_the_papers_figure_7_kind_of_case_gives_the_second_category_a_group() -> None:
    """Two jobs without conflict, one that conflicts with one of them, one that conflicts with both."""
    trees: Candidates = {1: (on(1, 2),), 2: (on(5, 6),), 3: (on(1, 3),), 4: (on(2, 5),)}
    found = plan(trees, {1: trees[1][0], 2: trees[2][0]}, HDR)
    assert found.category == {1: 1, 2: 1, 3: 2, 4: 3}
    assert found.groups == (frozenset({1, 3}), frozenset({2}))
    assert set(found.trees) == {1, 2, 3}
    again = plan(trees, found.trees, HDR)
    assert (again.trees, set(again.groups), again.migrations) == (found.trees, set(found.groups), 0)
    assert sorted(plan(trees, {}, HDR, merge=False).category.values()) == [1, 1, 3, 3]


def test_a_tree_that_joined_counts_for_those_that_come_after() -> None:
    """4 conflicts with 2 alone; but 3, which joined 1, is in its way: two groups would meet on switch 7."""
    trees: Candidates = {1: (on(1),), 2: (on(2),), 3: (on(1, 7),), 4: (on(2, 7),)}
    found = plan(trees, {1: on(1), 2: on(2)}, HDR)
    assert found.category == {1: 1, 2: 1, 3: 2, 4: 3}


def test_the_smaller_group_is_joined_and_the_former_tree_preferred() -> None:
    trees: Candidates = {1: (on(1),), 2: (on(2),), 3: (on(1),), 4: (on(1), on(2))}
    first = {1: on(1), 2: on(2), 3: on(1)}
    assert frozenset({2, 4}) in plan(trees, first, HDR).groups
    kept = plan(trees, {**first, 4: on(1)}, HDR)
    assert kept.trees[4] == on(1)
    assert kept.migrations == 0


def test_with_capacity_two_a_third_shares_with_one_of_the_two() -> None:
    trees: Candidates = {1: (on(1),), 2: (on(1),), 3: (on(1),)}
    found = plan(trees, {}, Limit(Per.SWITCH, 2))
    assert sorted(found.category.values()) == [1, 1, 2]
    assert sorted(map(len, found.groups)) == [1, 2]


def test_a_former_tree_that_was_not_drawn_again_may_stay() -> None:
    found = plan({1: (on(5),)}, {1: on(1)}, HDR)
    assert found.trees == {1: on(1)}
    assert found.migrations == 0


def test_a_tree_moves_if_that_serves_one_more_and_downtime_is_what_the_paper_measured() -> None:
    trees: Candidates = {1: (on(1), on(2)), 2: (on(1),)}
    found = plan(trees, {1: on(1)}, HDR)
    assert found.trees == {1: on(2), 2: on(1)}
    assert (found.migrated, found.granted) == ({1}, {2})
    assert found.downtime_ms() == MEASURED.migration_ms == 559.0
    assert MEASURED.release_ms + MEASURED.reallocate_ms == 125 + 294


def test_an_end_moves_nobody_who_need_not() -> None:
    """Taking a job away leaves all others where they are, unless that serves one more."""
    for seed in range(40):
        _, _, trees, limit = instance(f"end {seed}")
        before = plan(trees, {}, limit)
        if not before.trees:
            continue
        gone = Random(seed).choice(list(before.trees))
        after = plan({job: each for job, each in trees.items() if job != gone}, before.trees, limit)
        served = sum(category == 1 for category in after.category.values())
        if served <= sum(category == 1 for job, category in before.category.items() if job != gone):
            assert after.migrations == 0


def test_changes_are_near_the_fewest_that_the_exact_solver_proves() -> None:
    ours = best = 0
    for seed in range(25):
        _, _, trees, limit = instance(f"fewest {seed}")
        jobs = list(trees)
        first = fast.solve({job: trees[job] for job in jobs[:-3]}, limit)
        now = fast.solve(trees, limit, first)
        proven = exact.solve(trees, limit, first, hint=now)
        assert proven.is_proven
        if len(now) == len(proven.trees):
            ours += sum(now.get(job) != place for job, place in first.items())
            best += sum(proven.trees.get(job) != place for job, place in first.items())
    assert best <= ours <= best + 8


def wrong_capacity(found: Plan) -> Plan:
    return replace(found, groups=tuple(frozenset({job}) for job in found.trees), category=dict.fromkeys(found.trees, 1))


def two_firsts(found: Plan) -> Plan:
    return replace(found, category={**found.category, 3: 1})


def lost_member(found: Plan) -> Plan:
    return replace(found, groups=found.groups[1:])


def third_with_tree(found: Plan) -> Plan:
    return replace(found, category={**found.category, 3: 3})


def foreign_tree(found: Plan) -> Plan:
    return replace(found, trees={**found.trees, 3: found.trees[2]})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (wrong_capacity, "groups on switch"), (two_firsts, "category 1"), (lost_member, "partition"),
        (third_with_tree, "category 3"), (foreign_tree, "host is on none"),
    ],
)  # fmt: skip
def test_the_checker_sees(spoil: object, said: str) -> None:
    topology = fat_tree(4)
    hosts: Mapping[int, tuple[int, ...]] = {1: (0, 2), 2: (4, 6), 3: (1, 3)}
    trees = {job: candidates(topology, each, 1, Random(0)) for job, each in hosts.items()}
    found = plan(trees, {1: trees[1][0]}, HDR)
    assert violations(topology, hosts, found, HDR) == []
    assert any(said in each for each in violations(topology, hosts, spoil(found), HDR))  # type: ignore[operator]
