"""What is left out of the flow network changes no cost: against a network with a node and arcs for every switch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import shortcuts
from offpath.sched.inc.edges import Menu
from offpath.sched.inc.flow import FlowProblem, flow_faults, solve
from offpath.sched.inc.layers import children
from offpath.sched.inc.network import FlowNetwork, Limits, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.readings import READINGS
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.transform import transform
from offpath.sched.inc.trees import Trees
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .requests import STORE
from .worlds import cluster, random_groups, random_request

TOPOLOGIES = (leaf_spine(3, 2, 2), fat_tree(4), fat_tree(4, planes_first=True), fat_tree(4, up=1))


def whole(network: FlowNetwork, built: Round) -> FlowProblem:
    """The same jobs' problem with all arcs that §5.3 names: nodes are M^s and N^s, N^n, M^n, K, S, then the jobs'."""
    topology = network.resources.topology
    hosts, nodes, switches = topology.hosts, topology.nodes, topology.switches
    sink, more = nodes + 2 * switches, nodes + 2 * switches - network.sink
    problem = FlowProblem.of_nodes(sink)
    problem.supply.extend(built.problem.supply[network.sink :])
    part = built.problem
    for arc in range(built.first_edge):
        problem.add(part.tails[arc] + more, part.heads[arc] + more, part.capacities[arc], part.costs[arc])
    for node, of in built.groups.items():
        for edge in of.shortcuts:
            shadow = of.group.is_inc * switches * (1 if edge.is_subtree else 2)
            problem.add(node + more, edge.node + shadow, of.most if edge.is_subtree else 1, edge.cost.total)
    for node, below in enumerate(children(topology)):
        for child in below:
            problem.add(node, child, 1 if child < hosts else nodes, 0)
            if child >= hosts:
                problem.add(node + switches, child + switches, nodes, 0)
        if node >= hosts:
            problem.add(node + switches, node + 2 * switches, 1, 0)
    for node, total in enumerate(network.sink_totals(np.arange(nodes)).tolist()):
        problem.add(node if node < hosts else node + 2 * switches, sink, 1, total)
    return problem


def loaded(seed: int) -> tuple[FlowNetwork, Round]:
    """A cluster where something runs, and a round of up to five jobs."""
    draw = Random(seed)
    resources = cluster(draw.choice(TOPOLOGIES), seed=seed)
    network = FlowNetwork(resources, draw.choice(list(READINGS.values())), Limits(shortcuts=draw.choice((2, 5, 50))))
    for group in random_groups(draw, draw.choice((0, 20))):
        node = draw.randrange(resources.topology.nodes)
        if resources.fits(group, node):
            resources.start(group, node)
            network.changed(node, group, 1)
    jobs = [PendingJob(transform(random_request(draw, f"j{n}"), STORE), n, 0) for n in range(draw.randint(1, 5))]
    return network, network.round(jobs, draw.choice((0, 1_000, 5_000)))


def compare(seed: int) -> None:
    network, built = loaded(seed)
    flow, expected = solve(built.problem), solve(whole(network, built))
    assert flow_faults(built.problem, flow) == []
    assert flow.cost == expected.cost
    picked = network.picked(built, flow)
    assert all(network.resources.fits(each.of.group, each.node) for each in picked)
    for each in picked:
        edge = each.of.shortcuts
        assert any(at.node == each.end and at.is_subtree == each.is_subtree for at in edge), (
            "it leaves the group by an edge that is there"
        )


@given(st.integers(0, 10**9))
def test_the_cheapest_flow_costs_what_it_costs_in_the_whole_network(seed: int) -> None:
    compare(seed)


def test_groups_with_equal_edges_share_them_and_equal_switches_their_servers() -> None:
    """Eight jobs alike. Fat-tree of degree 4: 36 links up and 20 switches, which the whole network has twice."""
    network = FlowNetwork(cluster(fat_tree(4)), READINGS["hire"])
    parts = (Composite("c", "server", Servers(2, 1_000, 1_024)),)
    built = network.round([PendingJob(transform(CompReq(f"j{n}", parts), STORE), n, 0) for n in range(8)], 0)
    every = sum(len(of.shortcuts) for of in built.groups.values())
    assert every == 8 * (16 + 20)
    assert built.edges is not None
    assert len(built.edges.ends) == 16 + 20, "of eight groups one"
    assert len(built.problem.tails) < len(whole(network, built).tails) / 3


def ignoring_costs(menus: Any) -> Any:
    return lambda nodes, totals, is_there, kind: [
        Menu(np.sort(row).tobytes(), each.least)
        for row, each in zip(np.where(is_there, nodes, -1), menus(nodes, totals, is_there, kind), strict=True)
    ]


def without_the_last(reached: Any) -> Any:
    def found(self: Trees, heads: Any) -> Any:
        stages, places = reached(self, heads)
        return stages, places[:-1]

    return found


BUGS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "groups with other costs share edges": (shortcuts, "_menus", ignoring_costs),
    "a place that can be reached is left out": (Trees, "reached", without_the_last),
}


def compare_all(seeds: int) -> None:
    for seed in range(seeds):
        compare(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, name, change = BUGS[bug]
    monkeypatch.setattr(of, name, change(getattr(of, name)))
    with pytest.raises(AssertionError):
        compare_all(60)
