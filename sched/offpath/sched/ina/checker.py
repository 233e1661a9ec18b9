"""Checks plans against topology and capacity, independently of solvers and of the grouping algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offpath.sched.ina.conflicts import Limit, Per
from offpath.sched.ina.groups import Plan
from offpath.sched.ina.trees import Tree
from offpath.sched.topology.graph import Topology


def tree_violations(topology: Topology, hosts: Sequence[int], tree: Tree) -> list[str]:
    """Reasons why the tree is not an aggregation tree of these hosts."""
    found = []
    switches = set(tree.switches)
    if tree.root not in switches or len(switches) != len(tree.switches) or min(switches) < topology.hosts:
        found.append("the root is not in the tree, or a node of it is not a switch")
    near: dict[int, list[int]] = {switch: [] for switch in switches}
    for link in tree.links:
        ends = topology.links[link]
        if not switches.issuperset(ends):
            found.append(f"link {link} leads out of the tree")
            continue
        near[ends[0]].append(ends[1])
        near[ends[1]].append(ends[0])
    reached, waiting = {tree.root}, [tree.root]
    while waiting:
        for other in near.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    if reached != switches or len(tree.links) != len(switches) - 1:
        found.append("its links do not form a tree of its switches")
    served = {low for low, high in topology.links if low < topology.hosts and high in switches}
    if not served.issuperset(hosts):
        found.append("a host is on none of its switches")
    return found


def violations(topology: Topology, hosts: Mapping[int, Sequence[int]], plan: Plan, limit: Limit) -> list[str]:
    """Violations in a plan; ``hosts``: by job of the plan."""
    found = [
        f"job {job}: {each}" for job, tree in plan.trees.items() for each in tree_violations(topology, hosts[job], tree)
    ]
    members = sorted(job for group in plan.groups for job in group)
    if members != sorted(plan.trees):
        found.append("groups are not a partition of the jobs that have trees")
    for job, category in plan.category.items():
        if (job in plan.trees) != (category < 3):
            found.append(f"job {job}: category {category}, tree or none")
    for group in plan.groups:
        if sum(plan.category[job] == 1 for job in group) != 1:
            found.append("a group does not have exactly one job of category 1")
    groups_at: dict[int, set[int]] = {}
    for number, group in enumerate(plan.groups):
        for job in group:
            tree = plan.trees[job]
            for need in tree.switches if limit.per is Per.SWITCH else tree.links:
                groups_at.setdefault(need, set()).add(number)
    word = limit.per.value
    found += [f"{len(at)} groups on {word} {need}" for need, at in groups_at.items() if len(at) > limit.capacity]
    return found
