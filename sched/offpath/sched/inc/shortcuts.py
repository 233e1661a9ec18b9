"""The edges G → M and G → N: at most 50 of each for a task group, the cheapest (HIRE §5.3).

What a class of groups costs everywhere is kept (`classes`). A group's own edges are chosen again only if its class or
the locality of its job changed; all that are to be chosen in a round are chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc.bounds import Bounds, Changed
from offpath.sched.inc.classes import Classes, Table
from offpath.sched.inc.columns import Flags
from offpath.sched.inc.cost import ONE
from offpath.sched.inc.cost_columns import UNFIT, Costs
from offpath.sched.inc.edges import TERMS, Asked, Edges, EdgeTerms, Menu
from offpath.sched.inc.layers import Ints, Layers
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.nearby import Near, Nearby
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.ranking import Turns, cheapest
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.reservations import Reservation
from offpath.sched.inc.resources import Resources

MOST_SHORTCUTS: Final = 50
"""To nodes, and as many to subtrees."""
_DEAREST: Final = UNFIT // TERMS
"""No edge that exists costs so much, with M → K."""
_NOWHERE: Final[frozenset[int]] = frozenset()
_BLOCK: Final = 1 << 17
"""Costs ranked at a time: so many stay in the processor's cache."""


class _Due(NamedTuple):
    """A group whose edges are to be chosen: from which state, its class's row, and what runs near."""

    state: object
    asked: Asked
    row: int
    near: Near | None


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
        self._resources, self._bounds, self._layers = resources, bounds, layers
        self._nearby = Nearby(resources, locality, layers, reading)
        self._sinks, self._reading, self._most = sinks, reading, most
        self._classes = Classes(bounds, reading)
        self.terms = EdgeTerms(self._classes, self._nearby)
        self._moved: dict[GroupId, int] = {}
        """By group: how often its running tasks changed."""
        self._chosen: dict[GroupId, tuple[object, Edges]] = {}
        self._reservation: Reservation | None = None
        self._hosts, self._nodes = resources.topology.hosts, resources.topology.nodes
        self._mark = np.int32 if self._nodes * _DEAREST < 1 << 31 else np.int64
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
        self._nearby.moved(group)

    def forget(self, groups: Iterable[GroupId]) -> None:
        """These groups are gone."""
        for each in groups:
            self._chosen.pop(each, None)
            self._moved.pop(each, None)
            self._nearby.moved(each)

    def reserve(self, reservation: Reservation | None) -> None:
        """Other jobs get no edges to these switches; None: to all."""
        self._reservation = reservation

    # -- questions -------------------------------------------------------------------------------------------------
    def of(self, group: TaskGroup) -> Edges:
        """The group's edges as of the last `choose` that named it."""
        return self._chosen[group.id][1]

    def has_room(self, group: TaskGroup, tasks: int) -> bool:
        """True if that many more tasks could start now, were there no other group. `choose` named the group."""
        table = self._classes.of(group)
        row = table.rows[group.kind]
        room = table.fitting(row)
        if group.is_inc:
            taken, _ = self._taken(group)
            if not room or not taken:
                return room >= tasks
            own = [each - self._hosts for each in taken]
            return room - int((table.places[row, own] < UNFIT).sum()) >= tasks
        if room >= tasks or not any(group.demand):
            return room > 0
        fits = table.places[row] < UNFIT
        free = self._bounds.columns.server_free[fits]
        times = [free[:, at] // need for at, need in enumerate(group.demand) if need]
        return int(np.minimum.reduce(times).sum()) >= tasks

    def choose(self, asked: Sequence[Asked]) -> None:
        """Choose the edges of these groups where something changed."""
        self._classes.use({each.group.kind: each.group for each in asked})
        due: dict[tuple[bool, bool], dict[object, list[_Due]]] = {}
        chosen, changes, most = self._chosen, self._moved, self._reading.most_connected
        for each in asked:
            group, priority, offset, switches = each
            table = self._classes.of(group)
            row = table.rows[group.kind]
            moved = changes.get(group.id, 0), [changes.get(other, 0) for other in group.connected[:most]]
            kept = self.kept_from(group)
            now = table.versions[row], priority, offset, switches, moved, group.kind, kept
            known = chosen.get(group.id)
            if known is None or known[0] != now:
                near = self._nearby.of(self._nearby.related(group))
                alike = (row, priority, switches, kept) if near is None else group.id
                some = due.setdefault((group.is_inc, near is None), {})
                some.setdefault(alike, []).append(_Due(now, each, row, near))
        for (is_inc, _), by_cost in due.items():
            table = self._classes.on_switches if is_inc else self._classes.servers
            step = max(1, _BLOCK // max(1, table.nodes))
            rows = list(by_cost.values())
            for at in range(0, len(rows), step):
                self._choose(table, rows[at : at + step])

    def _choose(self, table: Table, due: Sequence[Sequence[_Due]]) -> None:
        """Of groups of one kind; near all of them something runs, or near none. ``due``: groups for which every place
        costs the same are together."""
        asked, rows = [each[0].asked for each in due], [each[0].row for each in due]
        is_inc = asked[0].group.is_inc
        first = self._hosts if is_inc else 0
        places, subtrees = table.places[rows], table.subtrees[rows]
        near = [each[0].near for each in due if each[0].near is not None]
        if near:
            for costs, locs in zip((places, subtrees), self._nearby.locs(near, is_inc=is_inc), strict=True):
                costs += locs
                costs -= np.int16(ONE)
        for row, group in enumerate(asked):
            far = self._nearby.reach(group.switches) if group.switches else None
            if far is not None:
                places[row] += far[: self._hosts]
                subtrees[row] += far[self._hosts :]
        own, over = zip(*[self._taken(each.group) for each in asked], strict=True)
        members = [each for alike in due for each in alike]
        self.computed += len(members)
        turns = Turns(
            np.repeat(np.arange(len(due)), [len(alike) for alike in due]),
            np.array([each.asked.offset % self._nodes for each in members], np.int32)[:, None],
        )
        nodes, totals, is_place = self._ranked(
            places, asked, turns, first, own, self._sinks[first : first + table.nodes]
        )
        tops, below, is_top = self._ranked(subtrees, asked, turns, self._hosts, over, None)
        menus = zip(_menus(nodes, totals, is_place, self._mark), _menus(tops, below, is_top, self._mark), strict=True)
        is_edge = np.concatenate((is_place, is_top), axis=1)
        nodes, totals = np.concatenate((nodes, tops), axis=1)[is_edge], np.concatenate((totals, below), axis=1)[is_edge]
        ends = np.cumsum(is_edge.sum(1)).tolist()
        begin = 0
        for each, end, count, both in zip(members, ends, is_place.sum(1).tolist(), menus, strict=True):
            edges = Edges(self.terms, each.asked, each.near, nodes[begin:end], totals[begin:end], count, both)
            self._chosen[each.asked.group.id] = each.state, edges
            begin = end

    def _ranked(
        self, costs: Costs, asked: Sequence[Asked], turns: Turns, first: int, taken: Sequence[Iterable[int]],
        sinks: Costs | None,
    ) -> tuple[Ints, Ints, Flags]:  # fmt: skip
        """For each group its cheapest nodes, what the edges cost, and whether they are there at all. ``costs``: shape
        [rows, nodes], is changed; column 0 is node ``first``. ``asked``: an example of each row. ``taken``: nodes that
        are no places, by row.

        A place is ranked with its cost M → K. Equally cheap ones are ordered by their number, from the offset on.
        """
        width = costs.shape[1]
        constant = 0 if asked[0].group.is_inc else self._reading.server_interference
        costs += np.array([ONE + constant + each.priority for each in asked], np.int16)[:, None]
        costs //= TERMS
        if sinks is not None:
            costs += sinks
        for n, nodes in enumerate(taken):
            if nodes:
                costs[n, [each - first for each in nodes]] = _DEAREST
        keys = cheapest(costs, self._most, _DEAREST).keys(turns, first, self._nodes)
        totals = (keys // self._nodes).astype(np.int64)
        found = (keys % self._nodes + turns.starts) % self._nodes
        is_there = totals < _DEAREST
        if sinks is not None:
            totals -= sinks[np.minimum(np.maximum(found - first, 0), width - 1)]
        return found.astype(np.int64), totals, is_there

    def _taken(self, group: TaskGroup) -> tuple[frozenset[int], frozenset[int]]:
        """Switches with a task of the group or kept for another job, and with these all above them: no task may go to
        the first, nor into the subtrees of the second."""
        taken = self.kept_from(group)
        if group.is_inc and self._resources.is_running(group.id):
            taken = taken.union(self._resources.places(group.id))
        return taken, frozenset().union(*[self._layers.over(each) for each in taken])

    def kept_from(self, group: TaskGroup) -> frozenset[int]:
        """Switches that are kept free for another job."""
        kept = self._reservation
        return kept.nodes if kept is not None and group.is_inc and group.id[0] != kept.group[0] else _NOWHERE


def _menus(nodes: Ints, totals: Ints, is_there: Flags, kind: type[np.signedinteger[Any]]) -> list[Menu]:
    """Of each row's edges. ``kind``: of the numbers in the keys."""
    least = np.where(is_there, totals, _DEAREST).min(axis=1, initial=_DEAREST)
    marks = np.where(is_there, nodes * _DEAREST + (totals - least[:, None]), -1).astype(kind)
    marks.sort(axis=1)
    return [Menu(mark.tobytes(), each) for mark, each in zip(marks, least.tolist(), strict=True)]
