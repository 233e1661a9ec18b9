"""Aggregation trees of a job (MINA §III-C): one per root in the closest layer with a switch above all its hosts.

In a fat-tree the tree of a root is unique. If a network leaves a choice on the way up, the parent that the tree already
has is taken, else the lowest: a small tree conflicts with few others.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from random import Random
from typing import Protocol

from offpath.sched.topology.graph import Topology


class Draws(Protocol):
    """Source of random draws for candidates; `random.Random` is one."""

    def sample(self, population: Sequence[int], k: int) -> list[int]:
        """Draw ``k`` of the population, without replacement."""


@dataclass(frozen=True, slots=True)
class Tree:
    """``root``: a switch. ``switches``: including the root, sorted node ids. ``links``: sorted ids of links between
    switches; links to hosts are left out, because no other job uses them."""

    root: int
    switches: tuple[int, ...]
    links: tuple[int, ...]


def candidates(topology: Topology, hosts: Sequence[int], k: int | None, random: Draws) -> tuple[Tree, ...]:
    """Return at most ``k`` trees (None: all), ordered by root and randomly selected. The paper's default is k = 5.

    Empty for a job of one host, which aggregates nothing, and for hosts that are not connected.
    """
    if len(hosts) < 2:
        return ()
    found = roots(topology, hosts)
    if found:
        return tuple(build(topology, hosts, root) for root in _draw(found, k, random))
    return _across(topology, hosts, k, random)


def _draw(found: list[int], k: int | None, random: Draws) -> list[int]:
    return found if k is None or len(found) <= k else sorted(random.sample(found, k))


class Known:
    """Caches `candidates` for jobs that are queried repeatedly. Draws like `candidates`, so equal generators give the
    same trees."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._jobs: dict[int, tuple[list[int], dict[int, Tree]]] = {}

    def candidates(self, job: int, hosts: Sequence[int], k: int | None, random: Draws) -> tuple[Tree, ...]:
        """Candidates of a job that keeps its hosts until `forget`."""
        if len(hosts) < 2:
            return ()
        if job not in self._jobs:
            self._jobs[job] = roots(self._topology, hosts), {}
        found, built = self._jobs[job]
        if not found:
            return candidates(self._topology, hosts, k, random)
        chosen = _draw(found, k, random)
        for root in chosen:
            if root not in built:
                built[root] = build(self._topology, hosts, root)
        return tuple(built[root] for root in chosen)

    def forget(self, running: Collection[int]) -> None:
        """Forget all other jobs."""
        for job in self._jobs.keys() - set(running):
            del self._jobs[job]


def roots(topology: Topology, hosts: Sequence[int]) -> list[int]:
    """The switches above all ``hosts`` that are closest to them; empty if none exists."""
    found = _numbers(topology, reduce(and_, _above_each(topology, hosts), -1))
    lowest = min((topology.level[switch] for switch in found), default=0)
    return [switch for switch in found if topology.level[switch] == lowest]


def _above_each(topology: Topology, hosts: Sequence[int]) -> list[int]:
    """For hosts with the same leaf switches together: a bit set of the switches above them."""
    above, first = topology.above, topology.hosts
    masks = []
    for leaves in {topology.up[host] for host in hosts}:
        mask = 0
        for leaf, _ in leaves:
            mask |= above[leaf - first]
        masks.append(mask)
    return masks


def _numbers(topology: Topology, mask: int) -> list[int]:
    """The switches of a bit set, in order."""
    found = []
    while mask > 0:
        low = mask & -mask
        found.append(topology.hosts + low.bit_length() - 1)
        mask ^= low
    return found


def within(topology: Topology, hosts: Sequence[int], allowed: Collection[int]) -> tuple[Tree, ...]:
    """All trees that use only ``allowed`` switches, ordered by root: those with a root in the lowest layer that has one
    above all ``hosts``. Empty for a job of one host."""
    if len(hosts) < 2:
        return ()
    usable, masks = set(allowed), _above_each(topology, hosts)
    common = _numbers(topology, reduce(and_, masks, -1))
    if not common:
        return tuple(each for each in _across(topology, hosts, None, Random(0)) if usable.issuperset(each.switches))
    useful = usable.intersection(_numbers(topology, reduce(or_, masks, 0)))
    for level in sorted({topology.level[root] for root in common}):
        found = []
        for root in common:
            if topology.level[root] == level and root in useful:
                reaching = _reaching(topology, root, useful)
                if all(any(leaf in reaching for leaf, _ in topology.up[host]) for host in hosts):
                    found.append(build(topology, hosts, root, reaching))
        if found:
            return tuple(found)
    return ()


def _reaching(topology: Topology, root: int, allowed: Collection[int]) -> set[int]:
    """The root, and the allowed switches below it with a way up to it over allowed switches."""
    reaching = {root}
    below = [each for each in allowed if topology.level[each] < topology.level[root]]
    for switch in sorted(below, key=lambda each: -topology.level[each]):
        if any(parent in reaching for parent, _ in topology.up[switch]):
            reaching.add(switch)
    return reaching


def build(topology: Topology, hosts: Sequence[int], root: int, only: Collection[int] | None = None) -> Tree:
    """The tree of ``root``, which must be above all ``hosts``. ``only``: over these switches, each of which has a way
    to the root over others of them; None: over any."""
    above, first, level, up = topology.above, topology.hosts, topology.level, topology.up
    bit = 1 << (root - first)
    switches: set[int] = {root}
    links: list[int] = []
    waiting: list[tuple[int, int]] = []

    def climb(node: int) -> int:
        """Return the link to the parent, which is added to the tree."""
        ways = [
            (parent not in switches, parent, link)
            for parent, link in up[node]
            if above[parent - first] & bit and (only is None or parent in only)
        ]
        _, parent, link = min(ways)
        if parent not in switches:
            switches.add(parent)
            heapq.heappush(waiting, (level[parent], parent))
        return link

    seen = set()
    for host in sorted(hosts):
        if up[host] not in seen or len(up[host]) > 1:
            seen.add(up[host])
            climb(host)
    while waiting:
        _, node = heapq.heappop(waiting)
        links.append(climb(node))
    return Tree(root, tuple(sorted(switches)), tuple(sorted(links)))


def _across(topology: Topology, hosts: Sequence[int], k: int | None, random: Draws) -> tuple[Tree, ...]:
    """For switches of one layer that are linked to each other (rings, meshes): shortest paths from the roots with the
    nearest farthest host."""
    leaves = sorted({topology.up[host][0][0] for host in hosts if topology.up[host]})
    if any(not topology.up[host] for host in hosts):
        return ()
    farthest: dict[int, int] = {}
    reached: dict[int, int] = {}
    for leaf in leaves:
        for node, distance in _distances(topology, leaf).items():
            farthest[node] = max(farthest.get(node, 0), distance)
            reached[node] = reached.get(node, 0) + 1
    found = sorted(node for node, times in reached.items() if times == len(leaves))
    nearest = min((farthest[node] for node in found), default=0)
    found = [node for node in found if farthest[node] == nearest]
    return tuple(_shortest(topology, leaves, root) for root in _draw(found, k, random))


def _distances(topology: Topology, start: int) -> dict[int, int]:
    distances = {start: 0}
    waiting = deque((start,))
    while waiting:
        node = waiting.popleft()
        for other, _ in topology.beside[node]:
            if other not in distances:
                distances[other] = distances[node] + 1
                waiting.append(other)
    return distances


def _shortest(topology: Topology, leaves: Sequence[int], root: int) -> Tree:
    distances = _distances(topology, root)
    switches, links = {root}, []
    for leaf in leaves:
        node = leaf
        while node not in switches:
            switches.add(node)
            node, link = min(way for way in topology.beside[node] if distances[way[0]] == distances[node] - 1)
            links.append(link)
    return Tree(root, tuple(sorted(switches)), tuple(sorted(links)))
