"""Φ_loc of all places at once is what the model says of each; against terms worked out from Γ and Υ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import cost
from offpath.sched.inc.layers import layers_of
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.nearby import Near, Nearby
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.readings import READINGS, Reading
from offpath.sched.inc.resources import Resources
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .worlds import cluster, random_groups


class Running:
    """Groups some of whose tasks run, with Γ and Υ."""

    def __init__(self, seed: int) -> None:
        draw = Random(seed)
        self.resources: Resources = cluster(draw.choice([leaf_spine(3, 2, 2), fat_tree(4)]), cpu=10**6)
        self.reading: Reading = draw.choice(list(READINGS.values()))
        topology = self.resources.topology
        self.locality = Locality(topology)
        self.nearby = Nearby(self.resources, self.locality, layers_of(topology), self.reading)
        groups = random_groups(draw)
        self.groups = [
            replace(one, connected=tuple(each.id for each in draw.sample(groups, draw.randint(0, 4)) if each != one))
            for one in groups
        ]
        for _ in range(40):
            self.move(draw.choice(self.groups), draw.randrange(topology.nodes))

    def move(self, group: TaskGroup, node: int) -> None:
        """Starts a task where that is possible; else one that runs there stops."""
        if self.resources.fits(group, node) and self.resources.tasks_of(group.id) < group.tasks:
            self.resources.start(group, node)
            sign = 1
        elif self.resources.running(node)[group.id]:
            self.resources.stop(group, node)
            sign = -1
        else:
            return
        if group.is_inc:
            self.locality.propagate(group.id, node, sign)
        else:
            self.locality.count(group.id, group.tasks, self.resources.nodes_of(group.id))
        self.nearby.moved(group.id)
        self.nearby.of([group.id])  # so that something is kept that the next move makes wrong

    def expected(self, group: TaskGroup, node: int) -> int:
        """Cases a, b and c, as the text has them."""
        topology = self.resources.topology
        above = topology.up[node][0][0] if node < topology.hosts else node
        parts = []
        for name in self.nearby.related(group):
            gains = self.locality.gains(name)
            if tasks := self.resources.tasks_of(name):
                if gains:
                    term = cost.gain(gains.get(above, 0), max(gains.values()), self.reading)
                else:
                    term = self.locality.upsilon(name, node if name == group.id else above)
                parts.append((tasks, term))
        return cost.locality(parts)


def compare(seed: int) -> None:
    world = Running(seed)
    hosts, nodes = world.resources.topology.hosts, world.resources.topology.nodes
    for is_inc in (False, True):
        some: list[tuple[TaskGroup, Near]] = []
        for group in world.groups:
            near = world.nearby.of(world.nearby.related(group))
            places = range(hosts, nodes) if group.is_inc else range(nodes)
            assert [world.nearby.loc(near, node) for node in places] == [world.expected(group, at) for at in places]
            if near is not None and group.is_inc == is_inc:
                some.append((group, near))
        if some:
            at_places, at_subtrees = world.nearby.locs([near for _, near in some], is_inc=is_inc)
            first, end = (hosts, nodes) if is_inc else (0, hosts)
            for (group, _), here, below in zip(some, at_places.tolist(), at_subtrees.tolist(), strict=True):
                assert here == [world.expected(group, node) for node in range(first, end)]
                assert below == [world.expected(group, node) for node in range(hosts, nodes)]


@given(st.integers(0, 10**9))
def test_all_places_at_once_equal_the_definition(seed: int) -> None:
    compare(seed)


def compare_all(seeds: int) -> None:
    for seed in range(seeds):
        compare(seed)


def only_own(of: Any) -> Any:
    return lambda self, related: of(self, related[:1])


BUGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "what moved is not computed again": ("moved", lambda _: lambda self, group: None),
    "connected groups do not count": ("of", only_own),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = BUGS[bug]
    monkeypatch.setattr(Nearby, name, change(getattr(Nearby, name)))
    with pytest.raises(AssertionError):
        compare_all(40)
