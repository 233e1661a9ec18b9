"""Γ and Υ against cases worked by hand and against their definitions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc.layers import children, layers_of
from offpath.sched.inc.locality import Locality, climbs, spread
from offpath.sched.sim.inc import additional_levels
from offpath.sched.topology.fattree import fat_tree, leaf_spine
from offpath.sched.topology.graph import Pod, Topology

G = ("j", "g")
FAT = fat_tree(4)
"""16 servers; switches: ToRs 16 … 23, aggregation 24 … 31, cores 32 … 35."""


def upsilon(topology: Topology, node: int, tasks: int, servers: Counter[int]) -> Fraction:
    """Equation 6, as it stands."""
    if node < topology.hosts:
        return Fraction(tasks - servers[node], tasks)
    below = children(topology)[node]
    return sum((upsilon(topology, each, tasks, servers) for each in below), Fraction(0)) / len(below)


def test_algorithm_1_by_hand() -> None:
    """γ = 16 at the switch, ⌊16/8⌋ = 2 beside it, ⌊2/8⌋ = 0: the end."""
    assert dict(spread(FAT, 16, 16, 8)) == {16: 16, 24: 2, 25: 2}
    assert dict(spread(leaf_spine(3, 1, 2), 3, 16, 4)) == {3: 16, 6: 4, 7: 4, 4: 1, 5: 1}


def test_algorithm_1_visits_a_switch_once_and_ends() -> None:
    everywhere = list(spread(FAT, 16, 10**9, 2))
    assert sorted(node for node, _ in everywhere) == list(range(16, 36))
    with pytest.raises(ValueError, match="decay"):
        list(spread(FAT, 16, 16, 1))


def test_equation_6_by_hand() -> None:
    """Of 4 tasks 2 run on server 0, 1 on server 1. ToR: (½ + ¾)/2 = ⅝; aggregation: (⅝ + 1)/2; core: (13/16 + 3)/4."""
    locality = Locality(FAT)
    locality.count(G, 4, {0: 2, 1: 1})
    nodes = {0: 50, 1: 75, 2: 100, 16: 62, 17: 100, 24: 81, 26: 100, 32: 95}  # 62.5, 81.25, 95.3
    assert {node: locality.upsilon(G, node) for node in nodes} == nodes


@given(st.integers(0, 10**9))
def test_upsilon_is_equation_6(seed: int) -> None:
    draw = Random(seed)
    topology = draw.choice([FAT, leaf_spine(3, 3, 2)])
    tasks = draw.randint(1, 12)
    servers = Counter(draw.randrange(topology.hosts) for _ in range(draw.randint(0, tasks)))
    locality = Locality(topology)
    locality.count(G, tasks, servers)
    for node in range(topology.nodes):
        assert abs(locality.upsilon(G, node) - 100 * upsilon(topology, node, tasks, servers)) <= Fraction(501, 1000)


@given(st.lists(st.tuples(st.integers(16, 35), st.booleans()), max_size=30))
def test_gains_are_the_sum_over_the_running_tasks(steps: list[tuple[int, bool]]) -> None:
    """Whatever started and stopped."""
    locality, running = Locality(FAT), Counter[int]()
    for node, is_start in steps:
        if is_start or not running[node]:
            locality.propagate(G, node)
            running[node] += 1
        else:
            locality.propagate(G, node, -1)
            running[node] -= 1
        expected = Counter[int]()
        for start, count in running.items():
            for near, gain in spread(FAT, start, 16, 8):
                expected[near] += count * gain
        assert dict(locality.gains(G)) == dict(+expected)
    for node in list(running.elements()):
        locality.propagate(G, node, -1)
    assert locality.state() == Locality(FAT).state()


# -- layers -------------------------------------------------------------------------------------------------------
def test_equal_topologies_share_their_layers_and_a_known_one_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = leaf_spine(5, 3, 2)
    layers = layers_of(topology)
    assert layers_of(leaf_spine(5, 3, 2)) is layers
    hashed: list[Topology] = []
    monkeypatch.setattr(Topology, "__hash__", hashed.append)
    assert layers_of(topology) is layers
    assert hashed == []


# -- climbs --------------------------------------------------------------------------------------------------------
@given(st.integers(0, 10**9))
def test_climbs_are_the_detours_of_a_job_with_one_server(seed: int) -> None:
    draw = Random(seed)
    topology = draw.choice([FAT, leaf_spine(3, 2, 2), fat_tree(6)])
    switches = draw.sample(range(topology.hosts, topology.nodes), draw.randint(1, 4))
    layers = layers_of(topology)
    found = climbs(layers, switches)
    detours = [additional_levels(topology, switches, [server]) for server in range(topology.hosts)]
    if found is None:
        assert set(detours) == {0}
        return
    assert found[: topology.hosts].tolist() == detours
    for switch in range(topology.hosts, topology.nodes):
        below = [found[child] for child in layers.children[switch]]
        assert found[switch] == max(below)


def test_a_server_that_no_switch_reaches_is_one_level_further_than_the_top() -> None:
    apart = Topology(2, 3, ((0, 2), (1, 3)), (0, 0, 1, 1, 2), Pod(0, 2), ("a", "b", "s", "t", "top"))
    found = climbs(layers_of(apart), [2])
    assert found is not None
    assert found[:2].tolist() == [0, 2]
    assert climbs(layers_of(apart), []) is None
