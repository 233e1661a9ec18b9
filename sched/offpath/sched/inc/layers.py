"""A topology as arrays: what rounds read again and again and nothing changes.

Switches with equal subtrees of servers are found once: in a fat-tree all cores are such equals, and so are the
aggregation switches of a pod. What depends only on the servers below is computed for one of them.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from offpath.sched.topology.graph import Topology

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """Switches of one level that have something below them. ``below``: their children, one switch after the other;
    those of ``switches[n]`` begin at ``starts[n]``."""

    switches: Ints
    below: Ints
    starts: Ints


class Layers:
    """Of one topology. Levels rise, so what is below is known before it is needed above."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.level: Ints = np.array(topology.level, np.int64)
        """By node."""
        self.children = children(topology)
        self.first_equal = equals(topology, self.children)
        """By node: a node whose servers below are arranged alike, itself if it is the first of them."""
        self.equal: Ints = np.array(self.first_equal, np.int64)
        self.members: dict[int, list[int]] = {}
        """By node that is the first of its equals: all of them."""
        for node, first in enumerate(self.first_equal):
            self.members.setdefault(first, []).append(node)
        self.parents = self._parents()
        """By node that is the first of its equals: the first ones of the switches above it, each with how many such
        children it has."""
        self.above: Ints = np.array(
            [up[0][0] if up else node for node, up in enumerate(topology.up[: topology.hosts])], np.int64
        )
        """By server: its first switch, itself if it has none."""
        self._over: dict[int, frozenset[int]] = {}
        self._servers: dict[int, Ints] = {}
        self.spreads: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}
        """Γ's steps (`locality.spread`) as far as they were asked for, by γ and ξ, then by switch."""
        self.levels = list(self._levels(0))
        self.switch_levels = list(self._levels(topology.hosts))
        """Of the children only the switches."""

    def over(self, node: int) -> frozenset[int]:
        """The node and all switches above it."""
        found = self._over.get(node)
        if found is None:
            above = [self.over(parent) for parent, _ in self.topology.up[node]]
            found = self._over[node] = frozenset((node,)).union(*above)
        return found

    def servers(self, node: int) -> Ints:
        """All servers below a switch, rising; of a server itself."""
        found = self._servers.get(node)
        if found is None:
            if node < self.topology.hosts:
                found = np.array([node], np.int64)
            else:
                below = {self.first_equal[child] for child in self.children[node]}
                found = np.unique(np.concatenate([np.zeros(0, np.int64), *map(self.servers, below)]))
            self._servers[node] = found
        return found

    def _parents(self) -> list[tuple[tuple[int, int], ...]]:
        found: list[Counter[int]] = [Counter() for _ in self.children]
        for node, below in enumerate(self.children):
            if self.first_equal[node] == node:
                for child in below:
                    found[self.first_equal[child]][node] += 1
        return [tuple(each.items()) for each in found]

    def _levels(self, least: int) -> list[Level]:
        topology = self.topology
        by_level: dict[int, list[int]] = {}
        for node in range(topology.hosts, topology.nodes):
            if any(child >= least for child in self.children[node]):
                by_level.setdefault(topology.level[node], []).append(node)
        found = []
        for _, switches in sorted(by_level.items()):
            below = [[child for child in self.children[node] if child >= least] for node in switches]
            starts = np.cumsum([0, *(len(each) for each in below[:-1])])
            flat = [child for each in below for child in each]
            found.append(Level(np.array(switches, np.int64), np.array(flat, np.int64), starts.astype(np.int64)))
        return found


_latest: deque[tuple[Topology, Layers]] = deque(maxlen=4)


def layers_of(topology: Topology) -> Layers:
    """Those of the last few topologies are kept. Equal topologies share them; to find that out takes a look at all
    links, so a topology that was asked for before is recognised by its identity."""
    for known, layers in tuple(_latest):
        if known is topology:
            return layers
    layers = _made(topology)
    _latest.append((topology, layers))
    return layers


@lru_cache(maxsize=4)
def _made(topology: Topology) -> Layers:
    return Layers(topology)


def children(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """By node: the nodes below that link up to it, sorted."""
    found: list[list[int]] = [[] for _ in range(topology.nodes)]
    for node in range(topology.nodes):
        for parent, _ in topology.up[node]:
            found[parent].append(node)
    return tuple(tuple(each) for each in found)


def equals(topology: Topology, below: tuple[tuple[int, ...], ...]) -> list[int]:
    """By node: the first node of its class. Servers differ; switches are equal if their children's classes are."""
    found = list(range(topology.nodes))
    first: dict[tuple[int, ...], int] = {}
    for node in sorted(range(topology.hosts, topology.nodes), key=lambda each: (topology.level[each], each)):
        found[node] = first.setdefault(tuple(sorted(found[child] for child in below[node])), node)
    return found
