"""Bounds of what is free below each switch, so that a whole subtree is taken or left out with one comparison (HIRE
§5.3).

For the server part: the least and the most that a server below has free. For the INC part: the same of the switches of
the subtree (its top included), how many services could be added at least and at most, the least active ones, and flags
by service: supported by some switch, supported by all, active on some, active on all. The paper has the first and the
last two; "supported by all" is needed where switches differ, else an edge G → N would promise too much. All are arrays
by switch, computed level by level; flags of a service when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from offpath.sched.inc.columns import LOST, Columns, Flags, all_of, taken, unless
from offpath.sched.inc.layers import Ints, Layers, Level, layers_of
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import MOST_DEMAND

_UNBOUNDED: Final = 2 * MOST_DEMAND
"""The least of nothing."""
RESTRICTED: Final = (Connectivity.TOR, Connectivity.LEAF, Connectivity.SPINE)
"""Only some levels will do; those switches have edges of their own."""


@dataclass(slots=True)
class Changed:
    """Switches whose bounds of servers or of switches changed, rising; shape [changed]."""

    servers: Ints
    switches: Ints


@dataclass(slots=True)
class SwitchBounds:
    """Of the INC part, by switch. Where no switch of the subtree runs INC they say nothing (`Bounds.has_inc`)."""

    least: Ints
    most: Ints
    least_slots: Ints
    most_slots: Ints
    least_active: Ints


@dataclass(slots=True)
class ServerBounds:
    """Of the server part, by switch, shape [switches, 2]. Without a server below both are `LOST`."""

    least: Ints
    most: Ints


class Bounds:
    """Bounds of all subtrees; `update` after nodes changed."""

    def __init__(self, resources: Resources, columns: Columns | None = None, layers: Layers | None = None) -> None:
        self._layers = layers or layers_of(resources.topology)
        self.columns = columns or Columns(resources)
        self._hosts = resources.topology.hosts
        self.has_servers = self._over_servers(np.ones(self._hosts, np.int64), np.maximum, 0) > 0
        """By switch: a server is below it."""
        self.has_inc = self._over_switches(self.columns.runs_inc, np.logical_or)
        """By switch: a switch of the subtree may run INC."""
        self._supported: dict[tuple[str, frozenset[str]], tuple[Flags, Flags]] = {}
        self._active: dict[tuple[object, ...], tuple[Flags, Flags]] = {}
        self.columns.refresh(range(resources.topology.nodes))
        self._on = [self.columns.on(each) for each in range(self._hosts, resources.topology.nodes)]
        """By switch what its tasks shared at the last `update`."""
        self.servers, self.switches = self._server_bounds(), self._switch_bounds()

    def update(self, nodes: Iterable[int]) -> Changed:
        """Read these nodes' state and compute the bounds above them."""
        nodes = list(nodes)
        self.columns.refresh(nodes)
        self._active.clear()
        shared = self._shared_anew(nodes)
        servers, self.servers = self.servers, self._server_bounds()
        switches, self.switches = self.switches, self._switch_bounds()
        return Changed(
            _differing([(servers.least, self.servers.least), (servers.most, self.servers.most)], self._hosts),
            np.union1d(
                _differing(
                    [(getattr(switches, each), getattr(self.switches, each)) for each in SwitchBounds.__slots__],
                    self._hosts,
                ),
                shared,
            ),
        )

    def _shared_anew(self, nodes: Iterable[int]) -> Ints:
        """Those of ``nodes`` that share something else than before, and all switches above them: what is free may be
        the same, and `is_active_on_all` is not."""
        found: set[int] = set()
        for node in nodes:
            if node >= self._hosts and self.columns.on(node) != self._on[node - self._hosts]:
                self._on[node - self._hosts] = self.columns.on(node)
                found |= self._layers.over(node)
        return np.array(sorted(found), np.int64)

    # -- questions, each by switch ---------------------------------------------------------------------------------
    def all_fit(self, group: TaskGroup) -> Flags:
        """True only where every place below can run a task of the group: the edges G → N."""
        demand = np.array(group.demand, np.int64)
        if not group.is_inc:
            return _no_more(demand, self.servers.least)
        needed = demand + unless(self.is_active_on_all(group), group.shared)
        return self.may_run(group) & _no_more(needed, self.switches.least)

    def may_run(self, group: TaskGroup) -> Flags:
        """True only where every switch of the subtree may run the group's service, if there is room for its demand."""
        if group.connectivity in RESTRICTED:
            return np.zeros_like(self.has_inc)
        _, by_all = self._support(group)
        found: Flags = self.has_inc & by_all & (self.is_active_on_all(group) | (self.switches.least_slots > 0))
        return found

    def some_may_fit(self, group: TaskGroup) -> Flags:
        """False only where no place of the subtree can run a task of the group: nothing below needs a look."""
        demand = np.array(group.demand, np.int64)
        if not group.is_inc:
            return _no_more(demand, self.servers.most)
        by_some, _ = self._support(group)
        has_place = (self.switches.most_slots > 0) | self._activity(group.service)[0]
        found: Flags = self.has_inc & by_some & has_place & _no_more(demand, self.switches.most)
        return found

    def is_active_on_all(self, group: TaskGroup) -> Flags:
        """True where every switch of the subtree runs the service and covers what the group shares."""
        return self._activity(group.service, group.shared)[1]

    def state(self) -> tuple[Any, ...]:
        """Comparable."""
        return tuple(getattr(of, name).tolist() for of in (self.servers, self.switches) for name in type(of).__slots__)

    # -- computing -------------------------------------------------------------------------------------------------
    def _support(self, group: TaskGroup) -> tuple[Flags, Flags]:
        """Supported by some and by all switches of the subtree; it never changes."""
        key = group.service, group.features
        if key not in self._supported:
            own = self.columns.supports(group)
            runs = self.columns.runs_inc
            self._supported[key] = (
                self._over_switches(own & runs, np.logical_or), self._over_switches(own | ~runs, np.logical_and)
            )  # fmt: skip
        return self._supported[key]

    def _activity(self, service: str, shared: tuple[int, ...] | None = None) -> tuple[Flags, Flags]:
        """Active on some and on all switches of the subtree; with ``shared``, where that is covered."""
        key = service, shared
        known = self._active.get(key)
        if known is None:
            own = (
                self.columns.excess(service, (0, 0, 0))[1] if shared is None else self.columns.sharing(service, shared)
            )
            if own is None or not own.any():
                none = np.zeros_like(self.has_inc)
                known = none, none
            else:
                runs = self.columns.runs_inc
                by_all = self._over_switches(own | ~runs, np.logical_and) & self.has_inc
                known = self._over_switches(own & runs, np.logical_or), by_all
            self._active[key] = known
        return known

    def _server_bounds(self) -> ServerBounds:
        free = self.columns.server_free
        least = self._over_servers(free, np.minimum, _UNBOUNDED)
        least[~self.has_servers] = LOST
        return ServerBounds(least, self._over_servers(free, np.maximum, LOST))

    def _switch_bounds(self) -> SwitchBounds:
        columns = self.columns
        runs, free = columns.runs_inc, columns.switch_free
        return SwitchBounds(
            self._over_switches(np.where(runs[:, None], free, _UNBOUNDED), np.minimum),
            self._over_switches(np.where(runs[:, None], free, LOST), np.maximum),
            self._over_switches(np.where(runs, columns.slots, _UNBOUNDED), np.minimum),
            self._over_switches(np.where(runs, columns.slots, 0), np.maximum),
            self._over_switches(np.where(runs, columns.active, _UNBOUNDED), np.minimum),
        )

    def _over_servers(self, own: Any, combine: Any, nothing: int) -> Any:
        """``combine`` over the servers below each switch; ``nothing`` where there are none."""
        values = np.full((len(self._layers.equal), *own.shape[1:]), nothing, own.dtype)
        values[: self._hosts] = own
        for level in self._layers.levels:
            values[level.switches] = self._merge(values, level, combine)
        return values[self._hosts :]

    def _over_switches(self, own: Any, combine: Any) -> Any:
        """``combine`` over the switches of each subtree, its top included."""
        values = own.copy()
        for level in self._layers.switch_levels:
            top = level.switches - self._hosts
            values[top] = combine(values[top], self._merge(values, level, combine, self._hosts))
        return values

    def _merge(self, values: Any, level: Level, combine: Any, first: int = 0) -> Any:
        """``combine`` over what is directly below each switch of a level."""
        return combine.reduceat(taken(values, level.below - first), level.starts, axis=0)


def _no_more(needed: Ints, room: Ints) -> Flags:
    """By row: no dimension exceeds its room."""
    return all_of(needed <= room)


def _differing(pairs: list[tuple[Ints, Ints]], hosts: int) -> Ints:
    """Nodes whose row differs in some pair of arrays."""
    found = np.zeros(len(pairs[0][0]), np.bool_)
    for before, now in pairs:
        differs = before != now
        for column in differs.T if differs.ndim > 1 else (differs,):
            found |= column
    return np.nonzero(found)[0] + hosts
