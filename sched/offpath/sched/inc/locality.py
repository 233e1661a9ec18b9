"""How near a place is to a group's running tasks: Γ for tasks on switches (algorithm 1), Υ for tasks on servers
(equation 6).

Both are kept by group and changed by what starts and stops. Γ is a sum of whole numbers, so a stop takes away exactly
what the start added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from offpath.sched.inc.layers import Ints, Layers, layers_of
from offpath.sched.inc.poly import GroupId
from offpath.sched.topology.graph import Topology

GAIN: Final = 16
"""γ of the authors' simulator."""
DECAY: Final = 8
"""ξ of the authors' simulator: 16 at the switch itself, 2 beside it, nothing further away."""
SCALE: Final = 10**9
"""1.0 of Υ."""


class Locality:
    """Γ and Υ of all groups that run somewhere."""

    def __init__(
        self, topology: Topology, gain: int = GAIN, decay: int = DECAY, *, layers: Layers | None = None
    ) -> None:
        self._topology = topology
        self._gain, self._decay = gain, decay
        self._layers = layers or layers_of(topology)
        self._spread = self._layers.spreads.setdefault((gain, decay), {})
        self._gains: dict[GroupId, dict[int, int]] = {}
        self._near: dict[GroupId, tuple[int, dict[int, int]]] = {}
        """By group: |G|, and 1 − Υ where it is above 0."""

    def propagate(self, group: GroupId, start: int, sign: int = 1) -> None:
        """Algorithm 1: Γ of the switches near ``start`` rises (``sign`` 1: a task started) or falls (−1: stopped)."""
        gains = self._gains.get(group)
        if gains is None:
            gains = self._gains[group] = {}
        if start not in self._spread:
            self._spread[start] = list(spread(self._topology, start, self._gain, self._decay))
        for node, gain in self._spread[start]:
            rest = gains.get(node, 0) + sign * gain
            if rest:
                gains[node] = rest
            else:
                del gains[node]
        if not gains:
            del self._gains[group]

    def gains(self, group: GroupId) -> Mapping[int, int]:
        """Γ by switch, where it is above 0."""
        return self._gains.get(group, {})

    def count(self, group: GroupId, tasks: int, servers: Mapping[int, int]) -> None:
        """Υ anew. ``tasks``: |G|; ``servers``: its running tasks by server."""
        if servers:
            self._near[group] = (tasks, nearness(self._layers, tasks, servers))
        else:
            self._near.pop(group, None)

    def upsilon(self, group: GroupId, node: int) -> int:
        """Υ of equation 6 in hundredths, rounded: the part of the group that does not run in the subtree of a switch,
        averaged level by level; of a server the part that does not run on it."""
        _, near = self._near.get(group, (0, {}))
        return _hundredths(near.get(self._layers.first_equal[node], 0))

    def upsilons(self, group: GroupId) -> dict[int, int]:
        """Υ in hundredths where it may be below 100: by server, then by the first of equal switches (`Layers`)."""
        _, near = self._near.get(group, (0, {}))
        return {node: _hundredths(each) for node, each in near.items()}

    def state(self) -> tuple[object, ...]:
        """Comparable."""
        gains = tuple(sorted((group, tuple(sorted(each.items()))) for group, each in self._gains.items()))
        near = tuple(sorted((group, each[0], tuple(sorted(each[1].items()))) for group, each in self._near.items()))
        return gains, near


def _hundredths(near: int) -> int:
    """Υ from 1 − Υ in parts of `SCALE`, rounded."""
    return 100 - (100 * near + SCALE // 2) // SCALE


def spread(topology: Topology, start: int, gain: int, decay: int) -> Iterable[tuple[int, int]]:
    """Algorithm 1: the switches that a task on ``start`` makes attractive, each with its γ."""
    if decay < 2:
        raise ValueError("the decay must be 2 or more, else γ never ends")
    visited: set[int] = set()
    here = {start}
    while gain > 0 and here:
        for node in sorted(here):
            yield node, gain
        visited |= here
        gain //= decay
        if gain:
            here = {other for node in here for other, _ in topology.beside[node]} - visited


def nearness(layers: Layers, tasks: int, servers: Mapping[int, int]) -> dict[int, int]:
    """1 − Υ in parts of `SCALE`, where it is above 0: at the servers and the switches above them, of equal switches at
    the first."""
    level = layers.topology.level
    near = {node: SCALE * count // tasks for node, count in servers.items()}
    sums: dict[int, int] = {}
    now, levels = list(near), set[int]()
    while True:
        for node in now:
            for parent, times in layers.parents[node]:
                sums[parent] = sums.get(parent, 0) + times * near[node]
                levels.add(level[parent])
        if not levels:
            return near
        lowest = min(levels)
        levels.remove(lowest)
        now = [node for node in sums if level[node] == lowest]
        for node in now:
            near[node] = sums[node] // len(layers.children[node])


def climbs(layers: Layers, switches: Collection[int]) -> Ints | None:
    """By node: of a server, how many levels a job on ``switches`` climbs from the highest of them until the server is
    below one (§6.2's detours, by server), one more than there are if it never is; of a switch the most of the servers
    below it. None: one of ``switches`` is at the top, or there are none."""
    topology = layers.topology
    top, highest = max(topology.level), max((topology.level[each] for each in switches), default=0)
    if not switches or highest == top:
        return None
    found = np.full(topology.nodes, top - highest + 1, np.int64)
    front = {each for each in switches if topology.level[each] == highest}
    fronts = [set(switches)]
    for _ in range(top - highest):
        front = {parent for each in front for parent, _ in topology.up[each]}
        fronts.append(front)
    for climb in reversed(range(len(fronts))):  # the lowest climb to a server is written last
        for first in {layers.first_equal[each] for each in fronts[climb]}:
            found[layers.servers(first)] = climb
    for level in layers.levels:
        found[level.switches] = np.maximum.reduceat(found[level.below], level.starts)
    return found
