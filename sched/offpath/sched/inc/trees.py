"""Both trees of HIRE's flow network (§5.3) as arcs, without those that no cheapest flow needs.

Switches with equal subtrees of servers have one N^s: from each of them flow reaches the same servers. Switches of a
level that share all their children have one node for these in the shadow tree. Such nodes add neither cost nor limit,
so the cheapest flow costs what it costs with a node for each switch. A fat-tree needs a third of the arcs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from offpath.sched.inc.columns import Flags
from offpath.sched.inc.layers import Ints, Layers

_Arc = tuple[int, int, int]
"""Tail, head and capacity."""


@dataclass(frozen=True, slots=True)
class Arcs:
    """Tails, heads and capacities, each of shape [arcs]."""

    tails: Ints
    heads: Ints
    capacities: Ints

    def only(self, which: Flags) -> Arcs:
        """Some of them."""
        return Arcs(self.tails[which], self.heads[which], self.capacities[which])


@dataclass(frozen=True, slots=True)
class Trees:
    """Nodes: M^s and N^s as in the topology, then N^n and M^n, what switches share, and K.

    ``places``: M, by node of the topology. ``over_servers`` and ``over_switches``: N^s and N^n, by switch. ``stages``:
    an arc begins where arcs of earlier stages end.
    """

    places: Ints
    over_servers: Ints
    over_switches: Ints
    sink: int
    stages: tuple[Arcs, ...]

    def reached(self, heads: Ints) -> tuple[list[Arcs], Ints]:
        """The arcs that flow into ``heads`` may use, and the topology's nodes where it may end, rising."""
        is_reached = np.zeros(self.sink, np.bool_)
        is_reached[heads] = True
        found = []
        for stage in self.stages:
            found.append(stage.only(is_reached[stage.tails]))
            is_reached[found[-1].heads] = True
        return found, np.nonzero(is_reached[self.places])[0]


@lru_cache(maxsize=4)
def trees_of(layers: Layers) -> Trees:
    """Those of the last few topologies are kept."""
    topology = layers.topology
    hosts, switches, nodes = topology.hosts, topology.switches, topology.nodes
    by_level: dict[int, list[int]] = {}
    for node in range(hosts, nodes):
        by_level.setdefault(topology.level[node], []).append(node)
    sink = nodes + 2 * switches
    stages: list[list[_Arc]] = []
    for _, of_level in sorted(by_level.items(), reverse=True):
        first, second = list(_over_servers(layers, of_level)), list[_Arc]()
        below = {node: tuple(each for each in layers.children[node] if each >= hosts) for node in of_level}
        counts = Counter(below.values())
        shared: dict[tuple[int, ...], int] = {}
        for node, children in below.items():
            first.append((node + switches, node + 2 * switches, 1))
            if counts[children] == 1 or len(children) < 2:
                first += [(node + switches, each + switches, nodes) for each in children]
                continue
            if children not in shared:
                second += [(sink, each + switches, nodes) for each in children]
                shared[children] = sink
                sink += 1
            first.append((node + switches, shared[children], nodes))
        stages += [first, second]
    places = np.arange(nodes, dtype=np.int64)
    places[hosts:] += 2 * switches
    return Trees(
        places, layers.equal[hosts:].copy(), np.arange(nodes, nodes + switches, dtype=np.int64), sink,
        tuple(_arcs(each) for each in stages),
    )  # fmt: skip


def _over_servers(layers: Layers, of_level: Sequence[int]) -> Iterator[_Arc]:
    """N^s of these switches; of equal ones only the first has arcs, to the first of their children."""
    hosts, nodes = layers.topology.hosts, layers.topology.nodes
    for node in of_level:
        if layers.first_equal[node] == node:
            for child in dict.fromkeys(layers.first_equal[each] for each in layers.children[node]):
                yield node, child, 1 if child < hosts else nodes


def _arcs(of_stage: Sequence[_Arc]) -> Arcs:
    found = np.array(of_stage, np.int64).reshape(len(of_stage), 3)
    return Arcs(*(np.ascontiguousarray(found[:, at]) for at in range(3)))
