"""Groups of one kind (`TaskGroup.kind`) form a class. For each class: what a task costs on every node and in every
subtree, as far as that depends on nothing else; a change of a node changes its column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from offpath.sched.inc import cost_columns
from offpath.sched.inc.bounds import Bounds
from offpath.sched.inc.columns import Columns, Flags, all_of, taken, unless
from offpath.sched.inc.cost_columns import UNFIT, Costs
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.poly import Kind, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.units import SERVER_DIMENSIONS, SWITCH_DIMENSIONS

_SPARE: Final = 64
"""So many classes, and a quarter of those in use, may stay although no group of the round is of them."""


@dataclass(slots=True)
class Table:
    """The classes of one kind: on servers or on switches.

    ``rows``: by class. ``places``, shape [classes, nodes of the kind]: fit, deviation and, on switches, Φ_new added up,
    or `UNFIT`. ``subtrees``, shape [classes, switches]: the same of the edge G → N. ``versions``: by class; another one
    after each change, never one that was.
    """

    nodes: int
    switches: int
    rows: dict[Kind, int] = field(default_factory=dict)
    examples: list[TaskGroup] = field(default_factory=list)
    places: Costs = field(init=False)
    subtrees: Costs = field(init=False)
    versions: list[int] = field(default_factory=list)
    _number: int = 0
    _fitting: list[int] | None = None

    def __post_init__(self) -> None:
        self.places = np.empty((0, self.nodes), np.int16)
        self.subtrees = np.empty((0, self.switches), np.int16)

    def add(self, examples: Sequence[TaskGroup], places: Costs, subtrees: Costs) -> None:
        """New classes."""
        for each in examples:
            self.rows[each.kind] = len(self.examples)
            self.examples.append(each)
            self.versions.append(self._version())
        self._fitting = None
        self.places = np.concatenate((self.places, places))
        self.subtrees = np.concatenate((self.subtrees, subtrees))

    def keep(self, used: Collection[Kind]) -> None:
        """Drop other classes if there are many."""
        wanted = [each for each in used if each in self.rows]
        if len(self.rows) <= len(wanted) + len(wanted) // 4 + _SPARE:
            return
        rows = [self.rows[each] for each in wanted]
        self._fitting = None
        self.examples, self.versions = [self.examples[each] for each in rows], [self.versions[each] for each in rows]
        self.places, self.subtrees = self.places[rows], self.subtrees[rows]
        self.rows = {each: n for n, each in enumerate(wanted)}

    def fitting(self, row: int) -> int:
        """Nodes where a task of the class fits."""
        if self._fitting is None:
            self._fitting = (self.places < UNFIT).sum(1).tolist()
        return self._fitting[row]

    def change(self, nodes: Ints, places: Costs, tops: Ints, subtrees: Costs) -> None:
        """Write new columns."""
        self._fitting = None
        self.places[:, nodes], self.subtrees[:, tops] = places, subtrees

    def note(self, touched: Flags) -> None:
        """These rows changed; shape [classes]."""
        for row in np.nonzero(touched)[0].tolist():
            self.versions[row] = self._version()

    def _version(self) -> int:
        self._number += 1
        return self._number


class Classes:
    """Both tables. ``bounds`` with its columns is up to date when one is asked."""

    def __init__(self, bounds: Bounds, reading: Reading) -> None:
        self._bounds, self._reading = bounds, reading
        self._columns: Columns = bounds.columns
        self._most_services = int(self._columns.most_services.max(initial=0))
        switches = self._columns.switches
        self.servers, self.on_switches = Table(self._columns.hosts, switches), Table(switches, switches)

    def of(self, group: TaskGroup) -> Table:
        """The table that has the group's class."""
        return self.on_switches if group.is_inc else self.servers

    def use(self, examples: Mapping[Kind, TaskGroup]) -> None:
        """Add what is new of these classes; of many others drop some."""
        for table in (self.servers, self.on_switches):
            asked = {name: each for name, each in examples.items() if self.of(each) is table}
            table.keep(asked)
            new = [each for name, each in asked.items() if name not in table.rows]
            if new:
                table.add(new, *self._computed(table, new, slice(None), slice(None)))

    def update(self, table: Table, nodes: Ints, tops: Ints, sink_changed: Flags) -> None:
        """The state of the table's ``nodes`` changed (of these ``sink_changed`` also M → K), and the bounds of
        ``tops``. All are numbers of columns."""
        if not table.examples or not (len(nodes) or len(tops)):
            return
        places, subtrees = self._computed(table, table.examples, nodes, tops)
        touched = (table.places[:, nodes] != places).any(1) | (table.subtrees[:, tops] != subtrees).any(1)
        table.note(touched | ((places < UNFIT) & sink_changed).any(1))
        table.change(nodes, places, tops, subtrees)

    def _computed(
        self, table: Table, examples: Sequence[TaskGroup], nodes: Ints | slice, tops: Ints | slice
    ) -> tuple[Costs, Costs]:
        """Of places and subtrees, each shape [examples, columns]."""
        if table is self.servers:
            demands = np.array([each.demand for each in examples], np.int64).reshape(len(examples), 2)
            return (
                cost_columns.server_fits(demands, taken(self._columns.server_free, nodes), self._reading),
                cost_columns.server_fits(demands, taken(self._bounds.servers.least, tops), self._reading),
            )
        return self._on_switches(examples, nodes), self._below_switches(examples, tops)

    def _on_switches(self, examples: Sequence[TaskGroup], nodes: Ints | slice) -> Costs:
        columns = self._columns
        needed, interference, is_open = _blank(len(examples), len(columns.active[nodes]))
        demands = np.array([each.demand for each in examples], np.int64)[:, None]
        has_slot, is_there = columns.slots[nodes] > 0, ~columns.lost[columns.hosts :][nodes]
        active, most = columns.active[nodes], columns.most_services[nodes]
        for rows in _alike(examples):
            one = examples[rows[0]]
            excess, runs = columns.excess(one.service, one.shared)
            is_active = runs[nodes]
            needed[rows] = demands[rows] + taken(excess, nodes)
            interference[rows] = cost_columns.new(is_active, active, most)
            may = is_there & columns.supports(one)[nodes] & columns.is_level_right(one.connectivity)[nodes]
            is_open[rows] = may & (is_active | has_slot)
        # What fits beside others fits the idle switch, too, so its capacity needs no look.
        found = cost_columns.switch_fits(needed, taken(columns.switch_free, nodes), self._reading)
        return _closed(found + interference, is_open)

    def _below_switches(self, examples: Sequence[TaskGroup], tops: Ints | slice) -> Costs:
        bounds = self._bounds
        needed, interference, is_open = _blank(len(examples), len(bounds.has_inc[tops]))
        demands = np.array([each.demand for each in examples], np.int64)[:, None]
        least_active = bounds.switches.least_active[tops]
        for rows in _alike(examples):
            one = examples[rows[0]]
            is_active = bounds.is_active_on_all(one)[tops]
            needed[rows] = demands[rows] + unless(is_active, one.shared)
            interference[rows] = cost_columns.new(is_active, least_active, self._most_services)
            is_open[rows] = bounds.may_run(one)[tops]
        found = cost_columns.switch_fits(needed, taken(bounds.switches.least, tops), self._reading)
        return _closed(found + interference, is_open)

    def terms(self, groups: Sequence[TaskGroup], nodes: Ints, *, is_subtree: bool) -> tuple[Ints, Ints, Ints]:
        """Fit (average and deviation) and interference of an edge of each group, all of one kind, to its node. Of a
        subtree it is what its fullest place would be."""
        columns, bounds, reading = self._columns, self._bounds, self._reading
        demands = np.array([each.demand for each in groups], np.int64)
        at = nodes - columns.hosts
        if not groups[0].is_inc:
            rest = taken(bounds.servers.least, at) if is_subtree else taken(columns.server_free, nodes)
            return *cost_columns.fits(demands, rest, reading), np.full(len(nodes), reading.server_interference)
        interference = np.empty(len(nodes), np.int64)
        for rows in _alike(groups):
            one, some = groups[rows[0]], at[rows]
            if is_subtree:
                is_active, active = bounds.is_active_on_all(one), bounds.switches.least_active
                demands[rows] += unless(is_active[some], one.shared)
                interference[rows] = cost_columns.new(is_active, active, self._most_services)[some]
            else:
                excess, is_active = columns.excess(one.service, one.shared)
                demands[rows] += taken(excess, some)
                interference[rows] = cost_columns.new(is_active, columns.active, columns.most_services)[some]
        rest = taken(bounds.switches.least, at) if is_subtree else taken(columns.switch_free, at)
        return *cost_columns.fits(demands, rest, reading), interference


def lacks(columns: Columns, group: TaskGroup, kept: Collection[int] = ()) -> list[tuple[int, str]]:
    """`scarcity.scarcity`'s counts: of the nodes that could run a task of the group, how many lack what now. ``kept``:
    switches that are kept free for another job."""
    resources, demand = columns.resources, np.array(group.demand, np.int64)
    if not group.is_inc:
        could = all_of(demand <= columns.server_capacity)
        needed, free = np.broadcast_to(demand, columns.server_free.shape), columns.server_free
        lost, names = columns.lost[: columns.hosts], list(SERVER_DIMENSIONS)
        barred: list[tuple[Flags, str]] = []
    else:
        shared = np.array(group.shared, np.int64)
        could = columns.supports(group) & columns.is_level_right(group.connectivity)
        could &= all_of(demand + shared <= columns.switch_capacity)
        excess, is_active = columns.excess(group.service, group.shared)
        needed, free, names = demand + excess, columns.switch_free, list(SWITCH_DIMENSIONS)
        lost, own = columns.lost[columns.hosts :], np.zeros(columns.switches, np.bool_)
        own[[node - columns.hosts for node in resources.places(group.id)]] = True
        others = np.zeros(columns.switches, np.bool_)
        others[[node - columns.hosts for node in kept]] = True
        barred = [(own, "run a task of the group already"), (others, "are kept free for another job"),
                  (~is_active & (columns.slots == 0), "run as many services as they may")]  # fmt: skip
    found = []
    for which, what in [(lost, "lost"), *barred]:
        found.append((int((could & which).sum()), what))
        could = could & ~which
    found += [(int((could & (needed[:, at] > free[:, at])).sum()), f"lack {name}") for at, name in enumerate(names)]
    return [each for each in found if each[0]]


def _blank(examples: int, switches: int) -> tuple[Ints, Costs, Flags]:
    """For what is needed, Φ_new, and whether the kind may run there: shape [examples, switches], of the first times
    [3]."""
    shape = examples, switches
    return np.empty((*shape, len(SWITCH_DIMENSIONS)), np.int64), np.empty(shape, np.int16), np.empty(shape, np.bool_)


def _closed(costs: Ints, is_open: Flags) -> Costs:
    return np.where(is_open & (costs < UNFIT), costs, UNFIT).astype(np.int16)


def _alike(examples: Sequence[TaskGroup]) -> Iterator[list[int]]:
    """Rows of groups that differ in their own demand only."""
    by: dict[object, list[int]] = {}
    for row, each in enumerate(examples):
        by.setdefault((each.service, each.features, each.shared, each.connectivity), []).append(row)
    yield from by.values()
