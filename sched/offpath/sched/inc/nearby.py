"""Φ_loc of the cost model (HIRE appendix A) for many places at once: how near they are to the running tasks of a group
and of those that it is connected to.

Near a task are few nodes, so of each running group only those are kept where it differs from the usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc import cost
from offpath.sched.inc.cost import ONE
from offpath.sched.inc.cost_columns import EDGE_TERMS, Costs
from offpath.sched.inc.layers import Ints, Layers
from offpath.sched.inc.locality import Locality, climbs
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.resources import Resources

_MOST_REACHES: Final = 64
"""Kept, each an array of all nodes: groups of one job are asked for one after the other."""
_MOST_WEIGHT: Final = 10**7
"""Running tasks whose costs surely add up to less than 2^31."""


class Part(NamedTuple):
    """A running group. All costs are times its running tasks, ``tasks``. ``usual``: far from it. ``differs``: by node
    what is added to that; ``nodes`` and ``by``: the same as arrays. The first ``servers`` are servers."""

    tasks: int
    usual: int
    differs: dict[int, int]
    nodes: Ints
    by: NDArray[np.int32]
    servers: int


class Near(NamedTuple):
    """What runs of a group itself, if anything, and of those that it is connected to."""

    own: Part | None
    others: Sequence[Part]


class Nearby:
    """Of all groups. `moved` after each start and stop; `Locality` is up to date when something is asked."""

    def __init__(self, resources: Resources, locality: Locality, layers: Layers, reading: Reading) -> None:
        self._resources, self._locality, self._reading = resources, locality, reading
        self._hosts, self._nodes = resources.topology.hosts, resources.topology.nodes
        self._layers, self._above = layers, layers.above
        self._members = layers.members
        self._parts: dict[GroupId, Part] = {}
        self._reaches: dict[frozenset[int], Costs | None] = {}

    def moved(self, group: GroupId) -> None:
        """A task of the group started or stopped, or the group is gone."""
        self._parts.pop(group, None)

    def related(self, group: TaskGroup) -> tuple[GroupId, ...]:
        """The group and those that it is connected to, as far as the reading looks."""
        return (group.id, *group.connected[: self._reading.most_connected])

    def of(self, related: Sequence[GroupId]) -> Near | None:
        """Of these groups, of which the first is the one that asks, those that run. None: none does."""
        running = [each for each in related if self._resources.is_running(each)]
        if not running:
            return None
        parts = [self._parts.get(each) or self._computed(each) for each in running]
        return Near(parts[0], parts[1:]) if running[0] is related[0] else Near(None, parts)

    def _computed(self, group: GroupId) -> Part:
        tasks = self._resources.tasks_of(group)
        gains = self._locality.gains(group)
        greatest = max(gains.values(), default=0)
        if greatest:
            usual = cost.gain(0, greatest, self._reading)
            at = {gain: cost.gain(gain, greatest, self._reading) - usual for gain in set(gains.values())}
            differs = {node: tasks * at[gain] for node, gain in gains.items()}
            servers = 0
        else:
            usual = ONE
            differs = {
                node: tasks * (each - ONE)
                for first, each in self._locality.upsilons(group).items() if each != ONE
                for node in self._members[first]
            }  # fmt: skip
            servers = sum([node < self._hosts for node in differs])
        nodes, by = np.array(list(differs), np.int64), np.array(list(differs.values()), np.int32)
        found = self._parts[group] = Part(tasks, tasks * usual, differs, nodes, by, servers)
        return found

    def loc(self, near: Near | None, node: int) -> int:
        """Φ_loc of one place. A switch's N^s and N^n are the same place, so servers count for switches and the reverse
        (cases a and b); on a server the group's own tasks count there, those of connected groups at its switch (case
        c). 100 if nothing runs: then nothing is near."""
        if near is None:
            return ONE
        above = int(self._above[node]) if node < self._hosts else node
        parts = [(each, above) for each in near.others] + ([(near.own, node)] if near.own is not None else [])
        total = sum(each.usual + each.differs.get(at, 0) for each, at in parts)
        return total // sum(each.tasks for each, _ in parts)

    def reach(self, switches: frozenset[int]) -> Costs | None:
        """By node, what the way from a job's switches to it adds to Φ_loc (`Reading.reach`). It does not share the
        average with other terms, so it is multiplied by their number. None: nothing."""
        if switches not in self._reaches:
            if len(self._reaches) >= _MOST_REACHES:
                self._reaches.clear()
            far = climbs(self._layers, switches) if switches else None
            costs = None if far is None else (len(EDGE_TERMS) * self._reading.reach * far).astype(np.int16)
            self._reaches[switches] = costs
        return self._reaches[switches]

    def way(self, switches: frozenset[int], node: int) -> int:
        """`reach` of one place; 0: nothing."""
        far = self.reach(switches)
        return 0 if far is None else int(far[node])

    def locs(self, near: Sequence[Near], *, is_inc: bool) -> tuple[Costs, Costs]:
        """`loc` of all places of the kind, shape [groups, places], and of all subtrees, shape [groups, switches]."""
        parts = [each.others if each.own is None else [each.own, *each.others] for each in near]
        sums = np.array([(sum([p.tasks for p in each]), sum([p.usual for p in each])) for each in parts], np.int64)
        sums = sums.astype(np.int32 if sums[:, 0].max() < _MOST_WEIGHT else np.int64)
        weights, usual = sums[:, :1], sums[:, 1:]
        found = np.zeros((len(near), self._nodes), sums.dtype)
        for row, each in zip(found, near, strict=True):
            for part in each.others:
                row[part.nodes] += part.by
        places = found[:, :0] if is_inc else found.take(self._above, axis=1)
        for at, (own, _) in enumerate(near):
            if own is not None:
                found[at, own.nodes] += own.by
                if own.servers:
                    places[at, own.nodes[: own.servers]] += own.by[: own.servers]
        subtrees = ((found[:, self._hosts :] + usual) // weights).astype(np.int16)
        return subtrees if is_inc else ((places + usual) // weights).astype(np.int16), subtrees
