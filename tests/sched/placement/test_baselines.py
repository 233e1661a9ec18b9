"""The baselines keep the protocol, each its own rule, and none has a better score than MINA's."""

from __future__ import annotations

from random import Random

import pytest

from offpath.sched.errors import SchedError
from offpath.sched.placement.checker import score, violations
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Request
from offpath.sched.placement.registry import PLACEMENTS, make
from offpath.sched.topology.fattree import fat_tree, plain_tree

from .oracle import small_topology


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_policy_keeps_the_protocol_and_the_minimum_is_the_minimum(name: str) -> None:
    random = Random(f"protocol {name}")
    for _ in range(60):
        topology = random.choice([fat_tree(4), small_topology(random)])
        cluster, policy, best = Cluster(topology), make(name, random), Fragments()
        held: list[tuple[int, ...]] = []
        for _ in range(12):
            if held and random.random() < 0.4:
                cluster.release(held.pop(random.randrange(len(held))))
            request = Request(random.randint(1, topology.hosts))
            decision = policy.place(cluster, request)
            assert violations(cluster, request, decision) == []
            if decision.is_placed:
                free = list(cluster.free_hosts())
                least = best.place(cluster, request).score
                assert least is not None
                assert least <= score(topology, free, decision.hosts, 0.5) + 1e-9
                cluster.take(decision.hosts)
                held.append(decision.hosts)


def test_first_n_takes_the_first() -> None:
    assert make("first-n", Random(0)).place(Cluster(plain_tree(4, 2), busy=[1, 2]), Request(3)).hosts == (0, 3, 4)


def test_best_fit_takes_the_pod_with_the_least_room_that_is_enough() -> None:
    cluster = Cluster(plain_tree(4, 4), busy=[0, 4, 5, 8])
    policy = make("best-fit", Random(0))
    assert policy.place(cluster, Request(2)).hosts == (6, 7)
    assert policy.place(cluster, Request(3)).hosts == (1, 2, 3)
    assert policy.place(cluster, Request(6)).hosts == (6, 7, 12, 13, 14, 15)


def test_random_draws_the_same_from_the_same_seed() -> None:
    one, same, other = (
        make("random", Random(seed)).place(Cluster(fat_tree(8)), Request(9)).hosts for seed in (1, 1, 2)
    )
    assert one == same != other


def test_an_unknown_policy_is_told_with_those_there_are() -> None:
    with pytest.raises(SchedError, match="fragments, first-n, best-fit, random"):
        make("worst-fit", Random(0))
