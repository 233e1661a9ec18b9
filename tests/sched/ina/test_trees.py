"""Candidate trees: one per root in the closest layer above all hosts, each a tree of those hosts."""

from __future__ import annotations

from random import Random

import pytest

from offpath.sched.ina.checker import tree_violations
from offpath.sched.ina.trees import Known, Tree, candidates, roots, within
from offpath.sched.topology.fattree import fat_tree, leaf_spine, plain_tree
from offpath.sched.topology.graph import Pod, Topology, from_links

from .instances import instance


@pytest.mark.parametrize(
    ("hosts", "count", "level"), [((0, 7), 1, 1), ((0, 8), 8, 2), ((0, 64), 64, 3), (range(1024), 64, 3)]
)
def test_the_roots_are_the_closest_common_layer(hosts: tuple[int, ...], count: int, level: int) -> None:
    topology = fat_tree(16)
    found = roots(topology, hosts)
    assert len(found) == count
    assert {topology.level[root] for root in found} == {level}


def test_a_tree_across_pods_goes_up_one_plane() -> None:
    topology = fat_tree(4)
    (tree, *_) = candidates(topology, (0, 2, 4), None, Random(0))
    assert tree == Tree(32, (16, 17, 18, 24, 26, 32), tuple(sorted(tree.links)))
    assert [topology.links[link] for link in tree.links] == [(16, 24), (17, 24), (18, 26), (24, 32), (26, 32)]
    assert len(candidates(topology, (0, 2, 4), None, Random(0))) == 4


def test_k_are_drawn_from_the_generator_and_all_if_there_are_fewer() -> None:
    topology = fat_tree(16)
    one, same, other = (candidates(topology, (0, 64), 5, Random(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 5
    assert len(candidates(topology, (0, 8), 9, Random(1))) == 8


def test_one_host_needs_no_tree_and_hosts_apart_have_none() -> None:
    assert candidates(fat_tree(4), (3,), 5, Random(0)) == ()
    apart = from_links("abcd", ("x", "y"), [(0, 4), (1, 4), (2, 5), (3, 5)])
    assert candidates(apart, (0, 2), 5, Random(0)) == ()


def test_every_candidate_of_every_job_is_a_tree_of_its_hosts() -> None:
    checked = 0
    for seed in range(80):
        topology, jobs, trees, _ = instance(f"trees {seed}")
        for job, hosts in jobs.items():
            for tree in trees[job]:
                assert tree_violations(topology, hosts, tree) == []
                checked += 1
    assert checked > 1_500


def odd_networks() -> list[Topology]:
    rails = [(h, 8 + 2 * (h // 4) + rail) for h in range(8) for rail in range(2)] + [
        (s, t) for s in range(8, 12) for t in (12, 13)
    ]
    ring = [(h, 6 + h // 2) for h in range(6)] + [(6, 7), (7, 8), (8, 6)]
    skips = [(0, 4), (1, 4), (2, 5), (3, 6), (4, 6), (5, 6), (4, 7), (6, 7)]
    return [
        from_links("abcdefgh", ("r0", "r1", "s0", "s1", "t0", "t1"), rails),
        from_links("abcdef", ("x", "y", "z"), ring),
        from_links("abcd", ("p", "q", "r", "s"), skips, level=(1, 1, 2, 3)),
        leaf_spine(4, 4, 3), plain_tree(2, 2, 2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("topology", odd_networks(), ids=["rails", "ring", "skips", "clos", "tree"])
def test_odd_networks_have_trees_too(topology: Topology) -> None:
    random = Random(4)
    for _ in range(40):
        hosts = tuple(sorted(random.sample(range(topology.hosts), random.randint(2, topology.hosts))))
        found = candidates(topology, hosts, None, random)
        assert found
        assert len({tree.root for tree in found}) == len(found)
        for tree in found:
            assert tree_violations(topology, hosts, tree) == []


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (Tree(24, (16, 17), (0,)), "root"),
        (Tree(16, (16, 17), ()), "do not form a tree"),
        (Tree(16, (16,), ()), "none of its switches"),
        (Tree(24, (16, 17, 24), (16, 17, 18)), "leads out|do not form a tree"),
    ],
)
def test_the_checker_sees_a_tree_that_is_none(tree: Tree, said: str) -> None:
    topology = fat_tree(4)
    assert any(word in each for each in tree_violations(topology, (0, 2), tree) for word in said.split("|"))


def test_trees_that_were_kept_are_those_that_would_be_drawn_anew() -> None:
    """Jobs come and go, all are drawn for each time; in fat-trees and across rings of switches."""
    ring = Topology(
        3, 3, ((0, 3), (1, 4), (2, 5), (3, 4), (4, 5), (3, 5)), (0, 0, 0, 1, 1, 1), Pod(0, 3), tuple("abcrst")
    )
    for topology in (fat_tree(4), fat_tree(6), ring):
        one, other, drawn = Random("kept"), Random("kept"), Random("jobs")
        known = Known(topology)
        jobs: dict[int, list[int]] = {}
        for job in range(40):
            jobs[job] = drawn.sample(range(topology.hosts), drawn.randint(1, min(5, topology.hosts)))
            if drawn.random() < 0.5:
                del jobs[drawn.choice(list(jobs))]
            known.forget(jobs)
            for number, hosts in jobs.items():
                assert known.candidates(number, hosts, 2, one) == candidates(topology, hosts, 2, other)


@pytest.mark.parametrize("topology", [*odd_networks(), fat_tree(4)])
def test_trees_within_some_switches_use_only_these_and_are_found_if_there_are_any(topology: Topology) -> None:
    random = Random(5)
    found_some = 0
    for _ in range(60):
        hosts = tuple(sorted(random.sample(range(topology.hosts), random.randint(2, min(5, topology.hosts)))))
        allowed = {each for each in range(topology.hosts, topology.nodes) if random.random() < 0.75}
        found = within(topology, hosts, allowed)
        for tree in found:
            assert tree_violations(topology, hosts, tree) == []
            assert allowed.issuperset(tree.switches)
        found_some += bool(found)
        whole = candidates(topology, hosts, None, random)
        if any(allowed.issuperset(each.switches) for each in whole):
            assert found, f"{hosts}: a tree within {sorted(allowed)} was missed"
    assert found_some > 3
    everything = range(topology.hosts, topology.nodes)
    assert {each.root for each in within(topology, (0, topology.hosts - 1), everything)} == {
        each.root for each in candidates(topology, (0, topology.hosts - 1), None, random)
    }


def test_a_tree_within_switches_goes_around_the_lowest_way_up_if_that_ends() -> None:
    topology = fat_tree(4)
    (tree,) = within(topology, (0, 4), {16, 18, 24, 25, 26, 27, 34})
    assert tree.switches == (16, 18, 25, 27, 34)
    assert within(topology, (0, 4), {16, 18, 24, 27, 34}) == ()
    assert within(topology, (0,), {16}) == ()
    assert within(topology, (0, 1), {16, 24})[0].switches == (16,)
