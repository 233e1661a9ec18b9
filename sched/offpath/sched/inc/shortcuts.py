"""The edges G → M and G → N: at most 50 of each for a task group, the cheapest (HIRE §5.3).

What a class of groups costs everywhere is kept (`classes`). A group's own edges are chosen again only if its class or
the locality of its job changed; all that are to be chosen in a round are chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc import cost
from offpath.sched.inc.bounds import Bounds, Changed
from offpath.sched.inc.classes import Classes, Table, key
from offpath.sched.inc.cost import ONE, EdgeCost
from offpath.sched.inc.cost_columns import EDGE_TERMS, UNFIT
from offpath.sched.inc.layers import Ints, Layers
from offpath.sched.inc.locality import Locality, climbs
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.resources import Resources

MOST_SHORTCUTS: Final = 50
"""To nodes, and as many to subtrees."""
_TERMS: Final = len(EDGE_TERMS)
_DEAREST: Final = UNFIT // _TERMS
"""No edge that exists costs so much, with M → K."""
_NOWHERE: Final[frozenset[int]] = frozenset()
_BLOCK: Final = 1 << 16
"""Costs ranked at a time: so many stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """``node``: of the topology; ``is_subtree``: to N, so to any place below it, else to M."""

    node: int
    is_subtree: bool
    cost: EdgeCost


class Asked(NamedTuple):
    """A group whose edges are needed. ``priority``: 0 … 100. ``offset``: of equally cheap places the next one from here
    on comes first, so that groups do not all want the same. ``switches``: where tasks of its job run, if the reading
    counts how far a server is from them."""

    group: TaskGroup
    priority: int
    offset: int
    switches: frozenset[int] = frozenset()


class Edges(Sequence[Shortcut]):
    """A group's edges: to nodes first, then to subtrees, each cheapest first. ``nodes`` and ``totals``: arrays, shape
    [edges]; the first ``places`` lead to M. The terms of an edge are worked out when it is read, from the state that
    is there then: read it before anything changes."""

    __slots__ = ("_of", "asked", "nodes", "places", "totals")

    def __init__(self, of: Shortcuts, asked: Asked, nodes: Ints, places: int, totals: Ints) -> None:
        self._of, self.asked, self.nodes, self.places, self.totals = of, asked, nodes, places, totals

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        node, is_subtree = int(self.nodes[at]), at % len(self) >= self.places
        return Shortcut(node, is_subtree, self._of.cost(self.asked, node, is_subtree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class _Near(NamedTuple):
    """A running group: its running tasks, whether it is the one that asks, its gains and their greatest (0: it runs on
    servers)."""

    group: GroupId
    tasks: int
    is_own: bool
    gains: Mapping[int, int]
    greatest: int


class Shortcuts:
    """Of all groups. ``sinks``: what M → K costs, by node; the network keeps it up to date in place."""

    def __init__(
        self,
        resources: Resources,
        bounds: Bounds,
        locality: Locality,
        layers: Layers,
        sinks: NDArray[np.int16],
        reading: Reading,
        most: int = MOST_SHORTCUTS,
    ) -> None:
        self._resources, self._bounds, self._locality, self._layers = resources, bounds, locality, layers
        self._sinks, self._reading, self._most = sinks, reading, most
        self._classes = Classes(bounds, reading)
        self._moved: dict[GroupId, int] = {}
        """By group: how often its running tasks changed."""
        self._chosen: dict[GroupId, tuple[object, Edges]] = {}
        self._hosts, self._nodes = resources.topology.hosts, resources.topology.nodes
        self._turned = np.concatenate([np.arange(self._nodes, dtype=np.int32)] * 2)
        self.computed = 0
        """Groups whose edges were computed, not taken from the round before."""

    # -- changes ---------------------------------------------------------------------------------------------------
    def update(self, places: Ints, changed: Changed, sink_changed: Ints) -> None:
        """The state of ``places`` changed, the bounds in ``changed``, and M → K of ``sink_changed``; all rising."""
        hosts = self._hosts
        is_sink = np.isin(places, sink_changed, assume_unique=True)
        is_switch = places >= hosts
        self._classes.update(
            self._classes.servers, places[~is_switch], changed.servers - hosts, is_sink[~is_switch]
        )  # fmt: skip
        self._classes.update(
            self._classes.on_switches, places[is_switch] - hosts, changed.switches - hosts, is_sink[is_switch]
        )

    def moved(self, group: GroupId) -> None:
        """A task of the group started or stopped."""
        self._moved[group] = self._moved.get(group, 0) + 1

    def forget(self, groups: Iterable[GroupId]) -> None:
        """These groups are gone."""
        for each in groups:
            self._chosen.pop(each, None)
            self._moved.pop(each, None)

    # -- questions -------------------------------------------------------------------------------------------------
    def of(self, group: TaskGroup) -> Edges:
        """The group's edges as of the last `choose` that named it."""
        return self._chosen[group.id][1]

    def has_room(self, group: TaskGroup, tasks: int) -> bool:
        """True if that many more tasks could start now, were there no other group. `choose` named the group."""
        table = self._classes.of(group)
        row = table.rows[key(group)]
        room = table.fitting(row)
        if group.is_inc:
            if not room or not self._resources.tasks_of(group.id):
                return room >= tasks
            own = [each - self._hosts for each in self._resources.nodes_of(group.id)]
            return room - int((table.places[row, own] < UNFIT).sum()) >= tasks
        if room >= tasks or not any(group.demand):
            return room > 0
        fits = table.places[row] < UNFIT
        free = self._bounds.columns.server_free[fits]
        times = [free[:, at] // need for at, need in enumerate(group.demand) if need]
        return int(np.minimum.reduce(times).sum()) >= tasks

    def choose(self, asked: Sequence[Asked]) -> None:
        """Choose the edges of these groups where something changed."""
        keys = [key(each.group) for each in asked]
        self._classes.use({name: each.group for name, each in zip(keys, asked, strict=True)})
        due: dict[bool, list[tuple[object, Asked, int]]] = {False: [], True: []}
        for each, name in zip(asked, keys, strict=True):
            group = each.group
            table = self._classes.of(group)
            row = table.rows[name]
            moved = tuple([self._moved.get(other, 0) for other in self._related(group)])
            now = table.versions[row], each.priority, each.offset, each.switches, moved, name
            known = self._chosen.get(group.id)
            if known is None or known[0] != now:
                due[group.is_inc].append((now, each, row))
        for is_inc, some in due.items():
            self.computed += len(some)
            self._choose(self._classes.on_switches if is_inc else self._classes.servers, some)

    def _choose(self, table: Table, due: Sequence[tuple[object, Asked, int]]) -> None:
        step = max(1, _BLOCK // max(1, table.nodes))
        for at in range(0, len(due), step):
            block = due[at : at + step]
            asked, rows = [each for _, each, _ in block], [row for _, _, row in block]
            near = [self._near(self._related(each.group)) for each in asked]
            locs = [self._locs(each, asked[n].group.is_inc) if each else None for n, each in enumerate(near)]
            locs = [self._reached(each.switches, loc) for each, loc in zip(asked, locs, strict=True)]
            is_inc = asked[0].group.is_inc
            first = self._hosts if is_inc else 0
            taken = [self._taken(each.group) for each in asked]
            places = self._ranked(
                table.places[rows], asked, first, [each and each[0] for each in locs], [each for each, _ in taken],
                self._sinks[first : first + table.nodes],
            )  # fmt: skip
            subtrees = self._ranked(
                table.subtrees[rows], asked, self._hosts, [each and each[1] for each in locs],
                [each for _, each in taken], None,
            )  # fmt: skip
            for (now, each, _), (nodes, totals), (tops, below) in zip(block, places, subtrees, strict=True):
                edges = Edges(self, each, np.concatenate((nodes, tops)), len(nodes), np.concatenate((totals, below)))
                self._chosen[each.group.id] = now, edges

    def _ranked(
        self, costs: NDArray[np.int16], asked: Sequence[Asked], first: int, locs: Sequence[Any],
        taken: Sequence[Iterable[int]], sinks: NDArray[np.int16] | None,
    ) -> Iterator[tuple[Ints, Ints]]:  # fmt: skip
        """For each group its cheapest nodes and what the edges cost. ``costs``: shape [groups, nodes], is changed;
        column 0 is node ``first``. ``locs``: Φ_loc by node where it is not 100. ``taken``: nodes that are no places.

        A place is ranked with its cost M → K. Equally cheap ones are ordered by their number, from the offset on.
        """
        width = costs.shape[1]
        constant = 0 if asked[0].group.is_inc else self._reading.server_interference
        for n, loc in enumerate(locs):
            if loc is not None:
                costs[n] += loc - np.int16(ONE)
        costs += np.array([ONE + constant + each.priority for each in asked], np.int16)[:, None]
        costs //= _TERMS
        if sinks is not None:
            costs += sinks
        starts = np.array([each.offset % self._nodes for each in asked], np.int64)
        turned = np.lib.stride_tricks.sliding_window_view(self._turned, width)[first - starts + self._nodes]
        keys = costs.astype(np.int32)
        keys *= self._nodes
        keys += turned
        for n, nodes in enumerate(taken):
            if nodes:
                keys[n, [each - first for each in nodes]] = _DEAREST * self._nodes
        if width > self._most:
            keys = np.partition(keys, self._most - 1, axis=1)[:, : self._most]
        keys.sort(axis=1)
        totals = (keys // self._nodes).astype(np.int64)
        found = (keys % self._nodes + starts[:, None]) % self._nodes
        counts = (totals < _DEAREST).sum(1).tolist()
        if sinks is not None:
            totals -= sinks[np.minimum(np.maximum(found - first, 0), width - 1)]
        return ((found[n, :count], totals[n, :count]) for n, count in enumerate(counts))

    # -- locality --------------------------------------------------------------------------------------------------
    def _related(self, group: TaskGroup) -> tuple[GroupId, ...]:
        return (group.id, *group.connected[: self._reading.most_connected])

    def _near(self, related: Sequence[GroupId]) -> list[_Near]:
        """Of these groups, of which the first is the one that asks, those that run."""
        found = []
        for at, group in enumerate(related):
            if tasks := self._resources.tasks_of(group):
                gains = self._locality.gains(group)
                found.append(_Near(group, tasks, at == 0, gains, max(gains.values(), default=0)))
        return found

    def _loc(self, near: Sequence[_Near], node: int) -> int:
        """Φ_loc. A switch's N^s and N^n are the same place, so servers count for switches and the reverse (cases a and
        b); on a server the group's own tasks count there, those of connected groups at its switch (case c)."""
        above = int(self._layers.above[node]) if node < self._hosts else node
        parts = []
        for group, tasks, is_own, gains, greatest in near:
            if greatest:
                parts.append((tasks, cost.gain(gains.get(above, 0), greatest, self._reading)))
            else:
                parts.append((tasks, self._locality.upsilon(group, node if is_own else above)))
        return cost.locality(parts)

    def _locs(self, near: Sequence[_Near], is_inc: bool) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """`_loc` of all places of the kind, and of all subtrees."""
        below, own, gained = (np.zeros(self._nodes, np.int64) for _ in range(3))
        usual = weight = 0
        for group, tasks, is_own, gains, greatest in near:
            weight += tasks
            if greatest:
                default = cost.gain(0, greatest, self._reading)
                usual += tasks * default
                for node, each in gains.items():
                    gained[node] += tasks * (cost.gain(each, greatest, self._reading) - default)
            else:
                usual += tasks * ONE
                part = own if is_own else below
                for node, each in self._locality.upsilons(group).items():
                    part[node] += tasks * (each - ONE)
        equal, above = self._layers.equal, self._layers.above
        at_switch = (below + own)[equal[self._hosts :]] + gained[self._hosts :] + usual
        switches = (at_switch // weight).astype(np.int16)
        if is_inc:
            return switches, switches
        others = (below[equal] + gained)[above] + own[: self._hosts] + usual
        return (others // weight).astype(np.int16), switches

    def _reached(
        self, switches: frozenset[int], locs: tuple[NDArray[np.int16], NDArray[np.int16]] | None
    ) -> tuple[NDArray[np.int16], NDArray[np.int16]] | None:
        """`_locs` of a group on servers, with what the way from the job's switches costs. It does not share the average
        with other terms, so it is multiplied by their number."""
        far = climbs(self._layers, switches)
        if far is None:
            return locs
        more = (_TERMS * self._reading.reach * far).astype(np.int16)
        places, subtrees = more[: self._hosts], more[self._hosts :]
        return (places + ONE, subtrees + ONE) if locs is None else (places + locs[0], subtrees + locs[1])

    def _taken(self, group: TaskGroup) -> tuple[frozenset[int], frozenset[int]]:
        """Switches with a task of the group, and with these all above them: no other task may go to the first, nor
        into the subtrees of the second."""
        if not group.is_inc or not self._resources.tasks_of(group.id):
            return _NOWHERE, _NOWHERE
        own = frozenset(self._resources.nodes_of(group.id))
        return own, frozenset().union(*[self._layers.over(each) for each in own])

    # -- terms -----------------------------------------------------------------------------------------------------
    def terms(self, edges: Sequence[tuple[Asked, int, bool]]) -> Ints:
        """The terms of edges (`cost_columns.EDGE_TERMS`), shape [edges, 5]. Each: who asks, the node, and whether it
        leads to what is below it."""
        found = np.zeros((len(edges), _TERMS), np.int64)
        kinds: dict[tuple[bool, bool], list[int]] = {}
        for at, (asked, _, is_subtree) in enumerate(edges):
            kinds.setdefault((asked.group.is_inc, is_subtree), []).append(at)
        for (_, is_subtree), rows in kinds.items():
            groups, nodes = [edges[at][0].group for at in rows], np.array([edges[at][1] for at in rows], np.int64)
            average, spread, interference = self._classes.terms(groups, nodes, is_subtree=is_subtree)
            found[rows, 0], found[rows, 1], found[rows, 3] = average, spread, interference
        near: dict[GroupId, list[_Near]] = {}
        for at, (asked, node, _) in enumerate(edges):
            name = asked.group.id
            if name not in near:
                near[name] = self._near(self._related(asked.group))
            found[at, 2] = self._loc(near[name], node) if near[name] else ONE
            far = climbs(self._layers, asked.switches)
            if far is not None:
                found[at, 2] += _TERMS * self._reading.reach * far[node]
            found[at, 4] = asked.priority
        return found

    def cost(self, asked: Asked, node: int, is_subtree: bool) -> EdgeCost:
        """One edge with its terms."""
        terms = self.terms([(asked, node, is_subtree)])[0].tolist()
        return EdgeCost(tuple(zip(EDGE_TERMS, terms, strict=True)))
