"""Clusters with running jobs: placed, some ended, others placed since."""

from __future__ import annotations

from random import Random

from offpath.sched.ina.conflicts import HDR, NDR, Limit, Per
from offpath.sched.ina.trees import Tree, candidates
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Request
from offpath.sched.placement.registry import make
from offpath.sched.topology.fattree import clos, fat_tree, leaf_spine, plain_tree
from offpath.sched.topology.graph import Topology

LIMITS = [HDR, NDR, Limit(Per.SWITCH, 2), Limit(Per.LINK, 2), Limit(Per.LINK, 3)]


def running(
    topology: Topology, count: int, random: Random, placement: str, sizes: tuple[int, ...]
) -> dict[int, tuple[int, ...]]:
    """Hosts of ``count`` jobs, or as many as fit, by job in the order of arrival."""
    cluster, policy = Cluster(topology), make(placement, random)
    jobs: dict[int, tuple[int, ...]] = {}
    for job in range(8 * count):
        if len(jobs) == count:
            break
        if jobs and random.random() < 0.3:
            cluster.release(jobs.pop(random.choice(list(jobs))))
        decision = policy.place(cluster, Request(random.choice(sizes)))
        if decision.is_placed:
            cluster.take(decision.hosts)
            jobs[job] = decision.hosts
    return jobs


def instance(name: str) -> tuple[Topology, dict[int, tuple[int, ...]], dict[int, tuple[Tree, ...]], Limit]:
    """Topology, hosts by job, candidates by job, limit; drawn from ``name``."""
    random = Random(name)
    fat = fat_tree(4), fat_tree(6, 2), fat_tree(8), fat_tree(8, 2)
    topology = random.choice([*fat, leaf_spine(6, 6, 3), clos(4, 3, 4, 2, 2), plain_tree(4, 4, 4)])
    count = random.randint(3, 24)
    sizes = random.choice([(2, 3, 4), (2, 4, 8, 12), (1, 2, 5, 9)])
    jobs = running(topology, count, random, random.choice(["random", "random", "first-n", "fragments"]), sizes)
    trees = {job: candidates(topology, hosts, random.choice([1, 3, 5, 5, None]), random) for job, hosts in jobs.items()}
    return topology, jobs, trees, random.choice(LIMITS)
