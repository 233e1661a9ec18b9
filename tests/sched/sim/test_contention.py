"""Who meets whom on which link, and what that costs: by hand, and every way walked."""

from __future__ import annotations

from random import Random

import pytest

from offpath.sched.ina.engine import EngineError
from offpath.sched.sim.ina.contention import LEVELS, Links, factor, levels
from offpath.sched.topology.fattree import fat_tree, regular
from offpath.sched.topology.graph import Pod, Topology


def ends(topology: Topology, direction: int) -> tuple[int, int]:
    low, high = topology.links[direction // 2]
    return (high, low) if direction % 2 else (low, high)


def test_each_flow_goes_up_from_its_sender_and_down_to_its_receiver() -> None:
    """Every way is a walk without a gap or a turn back, and as short as can be."""
    topology = fat_tree(4)
    links = Links(topology)
    leaf = [topology.up[host][0][0] for host in range(topology.hosts)]
    for a in range(topology.hosts):
        for b in range(topology.hosts):
            if a == b:
                continue
            there, back = links.ring((a, b)), links.ring((b, a))
            assert sorted(there) == sorted(back)  # a ring of two has both directions
            half = len(there) // 2
            for way, (sender, receiver) in ((there[:half], sorted((a, b))), (there[half:], sorted((a, b))[::-1])):
                hops = dict(ends(topology, each) for each in way)
                assert len(hops) == len(way)
                at, seen = leaf[sender], 0
                while at != leaf[receiver]:
                    at, seen = hops[at], seen + 1
                assert seen == len(way) == (0 if leaf[a] == leaf[b] else 2 if a // 4 == b // 4 else 4)


def test_factors_by_hand() -> None:
    """On link 1: A sends all the time, B half of it, C never. A meets half a flow, B a whole one, C both."""
    rings = {1: (1, 2), 2: (1,), 3: (1, 3), 4: (9,), 5: ()}
    told = levels(rings, {1: 1.0, 2: 0.5, 3: 0.0, 4: 1.0, 5: 1.0})
    assert {job: factor(level) for job, level in told.items()} == {1: 1.5, 2: 2.0, 3: 2.5, 4: 1.0, 5: 1.0}


def test_no_factor_is_beyond_the_last() -> None:
    told = levels(dict.fromkeys(range(50), (1,)), dict.fromkeys(range(50), 1.0))
    assert set(told.values()) == {LEVELS - 1}
    assert factor(LEVELS - 1) == 8.0


def test_more_traffic_slows_nobody_less() -> None:
    topology = fat_tree(4)
    for seed in range(50):
        random = Random(f"more {seed}")
        links = Links(topology)
        hosts = random.sample(range(16), 16)
        rings = {n: links.ring(hosts[4 * n : 4 * n + 4]) for n in range(4)}
        plain = {n: random.random() for n in range(4)}
        more = {n: min(1.0, each + random.random()) for n, each in plain.items()}
        before, after = levels(rings, plain), levels(rings, more)
        assert all(before[n] <= after[n] for n in range(4))


def test_fewer_links_up_are_fuller() -> None:
    """A tree with one switch on top: every flow between leaves meets the others that leave the same leaf."""
    topology = regular((4, 4), (1, 1))
    links = Links(topology)
    rings = {n: links.ring((n, n + 4)) for n in range(4)}
    assert set(levels(rings, dict.fromkeys(rings, 1.0)).values()) == {12}


def test_switches_joined_sideways_are_beyond_the_model() -> None:
    ring = Topology(2, 2, ((0, 2), (1, 3), (2, 3)), (0, 0, 1, 1), Pod(0, 2), ("a", "b", "s", "t"))
    with pytest.raises(EngineError, match="no switch is above"):
        Links(ring).ring((0, 1))
