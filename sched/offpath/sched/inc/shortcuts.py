"""The edges G → M and G → N: at most 50 of each for a task group, the cheapest (HIRE §5.3).

Groups with equal demands form a class. For each class the places and the subtrees that fit are kept, with the terms
that depend on nothing else; a change of a node changes them there and above. A group's own edges are computed again
only if its class or the locality of its job changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from offpath.sched.inc import cost
from offpath.sched.inc.bounds import Bounds, Changed
from offpath.sched.inc.cost import EdgeCost
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import Vector

MOST_SHORTCUTS: Final = 50
"""To nodes, and as many to subtrees."""

_Key = tuple[str, frozenset[str], Vector, Vector, Connectivity]
_Terms = tuple[tuple[int, int], int]
"""Fit (average, deviation) and interference."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """``node``: of the topology; ``is_subtree``: to N, so to any place below it, else to M."""

    node: int
    is_subtree: bool
    cost: EdgeCost


_Ranking = list[tuple[int, list[int]]]
"""Costs, rising, each with its nodes, sorted."""
_Near = tuple[GroupId, int, bool, Mapping[int, int], int]
"""A running group: its running tasks, whether it is the one that asks, its gains and their greatest (0: on servers)."""


@dataclass(slots=True)
class _Class:
    """``places`` and ``subtrees``: by node, where a task fits now. ``version`` rises with each change. ``rankings``:
    by kind of node and priority, of which version."""

    example: TaskGroup
    places: dict[int, _Terms] = field(default_factory=dict)
    subtrees: dict[int, _Terms] = field(default_factory=dict)
    version: int = 0
    rankings: dict[tuple[bool, int], tuple[int, _Ranking]] = field(default_factory=dict)


class Shortcuts:
    """Of all groups. ``sinks``: what M → K costs, by node; kept by the network."""

    def __init__(
        self,
        resources: Resources,
        bounds: Bounds,
        locality: Locality,
        sinks: Sequence[int],
        reading: Reading,
        most: int = MOST_SHORTCUTS,
    ) -> None:
        self._resources, self._bounds, self._locality = resources, bounds, locality
        self._sinks, self._reading, self._most = sinks, reading, most
        self._classes: dict[_Key, _Class] = {}
        self._moved: dict[GroupId, int] = {}
        """By group: how often its running tasks changed."""
        self._chosen: dict[GroupId, tuple[object, tuple[Shortcut, ...]]] = {}
        self._most_services = max((each.most_services for each in resources.switches), default=0)
        self.computed = 0
        """Groups whose edges were computed, not taken from the round before."""

    # -- changes ---------------------------------------------------------------------------------------------------
    def update(self, places: Iterable[int], changed: Changed) -> None:
        """The state of ``places`` changed, and these bounds."""
        hosts = self._resources.topology.hosts
        own = sorted(places)
        of_kind = {
            False: ([each for each in own if each < hosts], sorted(changed.servers)),
            True: ([each for each in own if each >= hosts], sorted(changed.switches)),
        }
        for each in self._classes.values():
            nodes, tops = of_kind[each.example.is_inc]
            touched = [self._look(each, node) for node in nodes] + [self._look_below(each, node) for node in tops]
            each.version += any(touched)

    def moved(self, group: GroupId) -> None:
        """A task of the group started or stopped."""
        self._moved[group] = self._moved.get(group, 0) + 1

    def forget(self, groups: Iterable[GroupId], classes_in_use: Iterable[TaskGroup]) -> None:
        """These groups are gone; keep only the classes of the others."""
        for each in groups:
            self._chosen.pop(each, None)
            self._moved.pop(each, None)
        used = {_key(each) for each in classes_in_use}
        for key in [key for key in self._classes if key not in used]:
            del self._classes[key]

    def _class(self, group: TaskGroup) -> _Class:
        key = _key(group)
        found = self._classes.get(key)
        if found is None:
            self._bounds.learn(group)
            found = self._classes[key] = _Class(replace(group, id=("", "")))  # no task of it runs anywhere
            topology = self._resources.topology
            for node in range(topology.hosts, topology.nodes) if group.is_inc else range(topology.hosts):
                self._look(found, node)
            for node in range(topology.hosts, topology.nodes):
                self._look_below(found, node)
        return found

    def _look(self, kind: _Class, node: int) -> bool:
        """At a node as a place. True if the class had or has it: then its cost may have changed."""
        group, resources = kind.example, self._resources
        had = kind.places.pop(node, None)
        if not resources.fits(group, node):
            return had is not None
        interference = self._reading.server_interference
        if group.is_inc:
            most = resources.switches[node - resources.topology.hosts].most_services
            active = resources.active(node)
            interference = cost.new(group.service in active, len(active), most)
        fitted = cost.fit(resources.needed(group, node), resources.free(node), self._reading)
        kind.places[node] = fitted, interference
        return True

    def _look_below(self, kind: _Class, node: int) -> bool:
        """At a switch as the top of a subtree."""
        group, bounds = kind.example, self._bounds
        had = kind.subtrees.pop(node, None)
        if node < self._resources.topology.hosts or not bounds.all_fit(group, node):
            return had is not None
        interference = self._reading.server_interference
        servers, switches = bounds.servers[node], bounds.switches[node]
        needed, least = group.demand, servers.least if servers is not None else ()
        if group.is_inc and switches is not None:
            is_active = bounds.is_active_on_all(group, node)
            least = switches.least
            if not is_active:
                needed = tuple(own + shared for own, shared in zip(group.demand, group.shared, strict=True))
            interference = cost.new(is_active, switches.least_active, self._most_services)
        kind.subtrees[node] = cost.fit(needed, least, self._reading), interference
        return True

    # -- questions -------------------------------------------------------------------------------------------------
    def of(self, group: TaskGroup, priority: int, offset: int) -> tuple[Shortcut, ...]:
        """The group's edges: nodes first, cheapest first. ``priority``: 0 … 100. ``offset``: of equally cheap places
        the next one from here on comes first, so that groups do not all want the same."""
        kind = self._class(group)
        related = (group.id, *group.connected[: self._reading.most_connected])
        now = kind.version, priority, offset, tuple(self._moved.get(each, 0) for each in related)
        known = self._chosen.get(group.id)
        if known is not None and known[0] == now:
            return known[1]
        self.computed += 1
        near = self._near(related)
        places, subtrees = self._taken(group)
        found: list[Shortcut] = []
        for is_subtree, taken in ((False, places), (True, subtrees)):
            terms = kind.subtrees if is_subtree else kind.places
            for node in self._cheapest(self._ranked(kind, is_subtree, priority, near), taken, offset):
                fitted, interference = terms[node]
                edge = cost.shortcut(fitted, self._loc(near, node), interference, priority)
                found.append(Shortcut(node, is_subtree, edge))
        chosen = tuple(found)
        self._chosen[group.id] = now, chosen
        return chosen

    def _ranked(self, kind: _Class, is_subtree: bool, priority: int, near: Sequence[_Near]) -> _Ranking:
        """Nodes by cost, to a place with its cost M → K. Without locality it is one ranking for the whole class."""
        key = is_subtree, priority
        known = kind.rankings.get(key)
        if not near and known is not None and known[0] == kind.version:
            return known[1]
        by_cost: dict[int, list[int]] = {}
        terms = kind.subtrees if is_subtree else kind.places
        for node in sorted(terms):
            fitted, interference = terms[node]
            loc = self._loc(near, node) if near else cost.ONE
            total = cost.shortcut_total(fitted, loc, interference, priority) + self._sink(node, is_subtree)
            by_cost.setdefault(total, []).append(node)
        ranking = sorted(by_cost.items())
        if not near:
            kind.rankings[key] = kind.version, ranking
        return ranking

    def _cheapest(self, ranking: _Ranking, taken: Container[int], offset: int) -> Iterator[int]:
        """The first of the ranking; of equally cheap ones the next from ``offset`` on."""
        start, left = offset % max(1, self._resources.topology.nodes), self._most
        for _, nodes in ranking:
            at = bisect_left(nodes, start)
            for node in chain(islice(nodes, at, None), islice(nodes, at)):
                if node not in taken:
                    yield node
                    left -= 1
                    if not left:
                        return

    def has_room(self, group: TaskGroup, tasks: int) -> bool:
        """True if that many more tasks could start now, were there no other group."""
        kind = self._class(group)
        if group.is_inc:
            return len(kind.places.keys() - self._taken(group)[0]) >= tasks
        room = 0
        for node in kind.places:
            free = self._resources.free(node)
            room += min((have // need for need, have in zip(group.demand, free, strict=True) if need), default=tasks)
            if room >= tasks:
                return True
        return False

    def _sink(self, node: int, is_subtree: bool) -> int:
        return 0 if is_subtree else self._sinks[node]

    def _near(self, related: Sequence[GroupId]) -> list[_Near]:
        """Of these groups, of which the first is the one that asks, those that run."""
        found = []
        for at, group in enumerate(related):
            if tasks := self._resources.nodes_of(group).total():
                gains = self._locality.gains(group)
                found.append((group, tasks, at == 0, gains, max(gains.values(), default=0)))
        return found

    def _loc(self, near: Sequence[_Near], node: int) -> int:
        """Φ_loc. A switch's N^s and N^n are the same place, so servers count for switches and the reverse (cases a and
        b); on a server the group's own tasks count there, those of connected groups at its switch (case c)."""
        above = node
        if node < self._resources.topology.hosts:
            above = next((parent for parent, _ in self._resources.topology.up[node]), node)
        parts = []
        for group, tasks, is_own, gains, greatest in near:
            if greatest:
                parts.append((tasks, cost.gain(gains.get(above, 0), greatest, self._reading)))
            else:
                parts.append((tasks, self._locality.upsilon(group, node if is_own else above)))
        return cost.locality(parts)

    def _taken(self, group: TaskGroup) -> tuple[set[int], set[int]]:
        """Switches with a task of the group, and with these all above them: no other task may go to the first, nor
        into the subtrees of the second."""
        if not group.is_inc:
            return set(), set()
        topology = self._resources.topology
        own = set(self._resources.nodes_of(group.id))
        found, waiting = set(own), list(own)
        while waiting:
            above = {parent for parent, _ in topology.up[waiting.pop()]} - found
            found |= above
            waiting += above
        return own, found


def _key(group: TaskGroup) -> _Key:
    return group.service, group.features, group.demand, group.shared, group.connectivity
