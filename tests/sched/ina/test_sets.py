"""The largest set without conflicts: the exact one is the largest, the quick one is legal and close to it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.gpu.exact import OPTIMAL
from offpath.sched.ina import exact, fast
from offpath.sched.ina.conflicts import HDR, NDR, Candidates, Limit, Per, components, share
from offpath.sched.ina.opportunistic import opportunistic
from offpath.sched.ina.peeling import independent_set
from offpath.sched.ina.trees import Tree

from ...sizes import sized
from .instances import LIMITS, instance

INSTANCES = sized(quick=40, fast=40, slow=150, full=1_500)
MEAN_GAP, MOST_JOBS_SHORT = 0.004, 1
"""docs/measurements.md has the table."""


def legal(candidates: Candidates, chosen: Mapping[int, int], limit: Limit) -> bool:
    used: dict[int, int] = {}
    for job, place in chosen.items():
        tree = candidates[job][place]
        for need in tree.switches if limit.per is Per.SWITCH else tree.links:
            used[need] = used.get(need, 0) + 1
    return all(count <= limit.capacity for count in used.values())


def most(candidates: Candidates, limit: Limit) -> int:
    """By trying everything."""
    best = 0
    for places in itertools.product(*((None, *range(len(trees))) for trees in candidates.values())):
        chosen = {job: place for job, place in zip(candidates, places, strict=True) if place is not None}
        if len(chosen) > best and legal(candidates, chosen, limit):
            best = len(chosen)
    return best


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.per.value} {limit.capacity}")
def test_what_is_called_optimal_cannot_be_bettered_by_trying_everything(limit: Limit) -> None:
    tight = 0
    for seed in range(12):
        _, _, trees, _ = instance(f"everything {seed}")
        small = {job: each[:2] for job, each in list(trees.items())[:7]}
        found = exact.solve(small, limit)
        assert found.status == OPTIMAL
        assert legal(small, found.trees, limit)
        assert len(found.trees) == found.bound == most(small, limit)
        tight += len(found.trees) < sum(bool(each) for each in small.values())
    assert tight or limit.capacity > 1 or limit == NDR


def test_the_quick_set_is_legal_and_its_gap_to_the_proven_optimum_is_what_the_docs_say() -> None:
    gaps, proven = [], 0
    for seed in range(INSTANCES):
        _, _, trees, limit = instance(f"gap {seed}")
        chosen = fast.solve(trees, limit)
        assert legal(trees, chosen, limit)
        best = exact.solve(trees, limit, hint=chosen)
        assert best.is_proven
        proven += 1
        assert legal(trees, best.trees, limit)
        assert len(chosen) >= len(best.trees) - MOST_JOBS_SHORT
        gaps.append(1 - len(chosen) / len(best.trees) if best.trees else 0.0)
    assert proven == INSTANCES >= 40
    assert statistics.fmean(gaps) <= MEAN_GAP


def test_the_same_input_gives_the_same_set() -> None:
    for seed in range(10):
        _, _, trees, limit = instance(f"same {seed}")
        assert fast.solve(trees, limit) == fast.solve(trees, limit)


def test_no_tree_could_be_added_to_a_quick_set() -> None:
    for seed in range(60):
        _, _, trees, limit = instance(f"maximal {seed}")
        chosen = fast.solve(trees, limit, effort=0)
        for job, own in trees.items():
            if job not in chosen:
                assert not any(legal(trees, {**chosen, job: place}, limit) for place in range(len(own)))


def test_an_exact_search_that_is_cut_off_says_so() -> None:
    trees: dict[int, tuple[Tree, ...]] = {}
    random = Random(3)
    for job in range(120):
        trees[job] = tuple(Tree(0, tuple(sorted(random.sample(range(200), 6))), ()) for _ in range(5))
    found = exact.solve(trees, HDR, limit_s=0.5)
    assert not found.is_proven
    assert found.status in ("feasible", "unknown")
    assert len(found.trees) < found.bound
    assert legal(trees, found.trees, HDR)


def test_no_jobs_are_served_at_once() -> None:
    assert exact.solve({1: ()}, HDR).trees == fast.solve({1: ()}, HDR) == fast.solve({}, NDR) == {}


def test_among_equal_sets_the_former_trees_are_kept() -> None:
    both = (Tree(0, (0,), ()), Tree(1, (1,), ()))
    trees = {1: both, 2: both}
    for former in ({1: 0, 2: 1}, {1: 1, 2: 0}):
        assert fast.solve(trees, HDR, former) == former
        assert exact.solve(trees, HDR, former).trees == former
    assert len(fast.solve({**trees, 3: both}, HDR, {3: 1, 1: 0})) == 2
    assert fast.solve({**trees, 3: both}, HDR, {3: 1, 1: 0}) == {1: 0, 3: 1}


graphs = st.integers(1, 14).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
)


@given(graphs)
def test_peeling_gives_a_maximal_independent_set_and_the_largest_where_only_rules_were_needed(
    graph: tuple[int, set[tuple[int, int]]],
) -> None:
    count, edges = graph
    near = [0] * count
    for one, other in edges:
        if one != other:
            near[one] |= 1 << other
            near[other] |= 1 << one
    found = independent_set(near)
    mask = sum(1 << vertex for vertex in found)
    assert all(not near[vertex] & mask for vertex in found)
    assert all(mask >> vertex & 1 or near[vertex] & mask for vertex in range(count))
    best = max(
        subset.bit_count() for subset in range(1 << count)
        if not any(near[vertex] & subset for vertex in range(count) if subset >> vertex & 1)
    )  # fmt: skip
    assert len(found) >= best - 1


@given(st.integers(1, 30).flatmap(lambda n: st.lists(st.integers(0, 10**6), min_size=n, max_size=n)))
def test_peeling_is_exact_on_forests(parents: list[int]) -> None:
    """Degrees 0 and 1 are all it meets there; compared with the rule of leaves, by recursion."""
    count = len(parents)
    near = [0] * count
    children: list[list[int]] = [[] for _ in range(count)]
    for vertex in range(1, count):
        parent = parents[vertex] % vertex
        near[vertex] |= 1 << parent
        near[parent] |= 1 << vertex
        children[parent].append(vertex)
    taken, left = [1] * count, [0] * count
    for vertex in reversed(range(count)):
        taken[vertex] += sum(left[child] for child in children[vertex])
        left[vertex] = sum(max(taken[child], left[child]) for child in children[vertex])
    assert len(independent_set(near)) == max(taken[0], left[0])


def test_the_baseline_takes_the_first_tree_with_room_and_the_authors_variant_sees_less() -> None:
    a, b, c = Tree(0, (0, 5), (1,)), Tree(1, (1, 5), (2,)), Tree(2, (2, 6), (1,))
    assert opportunistic((a, c), [b], HDR) == c
    assert opportunistic((a, c), [b], NDR) == a
    assert opportunistic((a,), [b], HDR) is None
    assert opportunistic((a,), [], HDR) == a  # b assigned, but not in transmission
    assert opportunistic((a,), [b], Limit(Per.SWITCH, 2)) == a
    assert share(a, b, HDR)
    assert not share(a, b, NDR)


def test_groups_of_unplanned_trees_are_what_hangs_together() -> None:
    trees = {1: Tree(0, (0, 1), ()), 2: Tree(1, (1, 2), ()), 3: Tree(2, (2, 3), ()), 4: Tree(9, (9,), ())}
    assert components(trees, HDR) == (frozenset({1, 2, 3}), frozenset({4}))
    assert components(trees, NDR) == tuple(frozenset({job}) for job in trees)
