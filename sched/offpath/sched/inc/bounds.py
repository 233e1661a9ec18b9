"""Bounds of what is free below each switch, so that a whole subtree is taken or left out with one comparison (HIRE
§5.3).

For the server part: the least and the most that a server below has free. For the INC part: the same of the switches of
the subtree (its top included), how many services could be added at least, the least active ones, and bit vectors of
the services: supported by some switch, supported by all, active on some, active on all. The paper has the first and
the last two; "supported by all" is needed where switches differ, else an edge G → N would promise too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.inc.locality import children
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import Vector, fits_in, plus

_LOST: Final = -1
"""Of a node that is lost: even a demand of 0 does not fit."""


@dataclass(slots=True)
class _Bits:
    """Numbers of what bits stand for."""

    numbers: dict[object, int]

    def bit(self, what: object) -> int:
        """The bit of ``what``, a new one if it is new."""
        return 1 << self.numbers.setdefault(what, len(self.numbers))


@dataclass(frozen=True, slots=True)
class SwitchBounds:
    """Of the switches of a subtree that run INC. ``least_slots``: services that any of them could add."""

    least: Vector
    most: Vector
    least_slots: int
    most_slots: int
    least_active: int
    supported_by_some: int
    supported_by_all: int
    active_on_some: int
    active_on_all: int


@dataclass(frozen=True, slots=True)
class ServerBounds:
    """Of the servers of a subtree."""

    least: Vector
    most: Vector


@dataclass(slots=True)
class Changed:
    """Nodes whose bounds of servers or of switches changed."""

    servers: set[int] = field(default_factory=set)
    switches: set[int] = field(default_factory=set)


class Bounds:
    """Bounds of all subtrees. `update` after nodes changed: only these and what is above them is computed again."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        topology = resources.topology
        self._children = children(topology)
        self._upwards = sorted(range(topology.hosts, topology.nodes), key=lambda node: (topology.level[node], node))
        self._order = {node: at for at, node in enumerate(self._upwards)}
        self._services, self._kinds = _Bits({}), _Bits({})
        self._example: dict[int, TaskGroup] = {}
        """By bit of a kind (service and features): a group of it."""
        self._nodes: list[SwitchBounds | None] = [None] * topology.nodes
        self.servers: list[ServerBounds | None] = [None] * topology.nodes
        """By node; None: no server below."""
        self.switches: list[SwitchBounds | None] = [None] * topology.nodes
        """By node; None: no switch of the subtree runs INC."""
        self.update(range(topology.nodes))

    def learn(self, group: TaskGroup) -> None:
        """Give the group's kind a bit. A new kind costs a look at every switch."""
        if group.is_inc and (group.service, group.features) not in self._kinds.numbers:
            self._example[self._kinds.bit((group.service, group.features))] = group
            self.update(range(self._resources.topology.nodes))

    def update(self, nodes: Iterable[int]) -> Changed:
        """Compute the bounds of these nodes and of all switches above them that this changes."""
        topology = self._resources.topology
        changed = Changed()
        waiting: set[int] = set()
        for node in nodes:
            if node >= topology.hosts:
                self._nodes[node] = self._one(node)
                waiting.add(node)
                continue
            free = self._free(node)
            bounds = ServerBounds(free, free)
            if self.servers[node] != bounds:
                self.servers[node] = bounds
                changed.servers.add(node)
                waiting.update(parent for parent, _ in topology.up[node])
        while waiting:
            node = min(waiting, key=self._order.__getitem__)
            waiting.remove(node)
            if self._merge(node, changed):
                waiting.update(parent for parent, _ in topology.up[node])
        return changed

    # -- questions -------------------------------------------------------------------------------------------------
    def all_fit(self, group: TaskGroup, node: int) -> bool:
        """True only if every place below the switch can run a task of the group: the edge G → N."""
        if not group.is_inc:
            servers = self.servers[node]
            return servers is not None and fits_in(group.demand, servers.least)
        bounds = self.switches[node]
        if bounds is None or not bounds.supported_by_all & self._kinds.bit((group.service, group.features)):
            return False
        if group.connectivity in (Connectivity.TOR, Connectivity.LEAF, Connectivity.SPINE):
            return False  # only some levels will do; those switches have edges of their own
        is_active = self.is_active_on_all(group, node)
        needed = group.demand if is_active else plus(group.demand, group.shared)
        return (is_active or bounds.least_slots > 0) and fits_in(needed, bounds.least)

    def some_may_fit(self, group: TaskGroup, node: int) -> bool:
        """False only if no place of the subtree can run a task of the group: nothing below needs a look."""
        if not group.is_inc:
            servers = self.servers[node]
            return servers is not None and fits_in(group.demand, servers.most)
        bounds = self.switches[node]
        if bounds is None or not bounds.supported_by_some & self._kinds.bit((group.service, group.features)):
            return False
        has_place = bounds.most_slots > 0 or bool(bounds.active_on_some & self._services.bit(group.service))
        return has_place and fits_in(group.demand, bounds.most)

    def is_active_on_all(self, group: TaskGroup, node: int) -> bool:
        """True if every switch of the subtree runs the service and covers what the group shares."""
        bounds = self.switches[node]
        return bounds is not None and bool(bounds.active_on_all & self._services.bit((group.service, group.shared)))

    def state(self) -> tuple[object, ...]:
        """Comparable, whatever numbers the bits have."""

        def words(bits: int, of: _Bits) -> tuple[str, ...]:
            return tuple(sorted(repr(what) for what, at in of.numbers.items() if bits >> at & 1))

        return tuple(self.servers), tuple(
            each and (each.least, each.most, each.least_slots, each.most_slots, each.least_active,
                      words(each.supported_by_some, self._kinds), words(each.supported_by_all, self._kinds),
                      words(each.active_on_some, self._services), words(each.active_on_all, self._services))
            for each in self.switches
        )  # fmt: skip

    # -- computing -------------------------------------------------------------------------------------------------
    def _free(self, node: int) -> Vector:
        free = self._resources.free(node)
        return (_LOST,) * len(free) if self._resources.is_lost(node) else free

    def _one(self, node: int) -> SwitchBounds | None:
        """Of one switch alone; None if it never runs INC."""
        resources = self._resources
        spec = resources.switches[node - resources.topology.hosts]
        if not spec.most_services or not any(spec.capacity):
            return None
        supported = 0
        for bit, group in self._example.items():
            supported |= bit if spec.supports(group) else 0
        active = 0
        for service, shared in resources.sharing(node):
            active |= self._services.bit(service) | self._services.bit((service, shared))
        free, slots = self._free(node), resources.slots(node)
        return SwitchBounds(free, free, slots, slots, len(resources.active(node)), supported, supported, active, active)

    def _merge(self, node: int, changed: Changed) -> bool:
        """True if the switch's bounds changed."""
        below = self._children[node]
        own = self._nodes[node]
        servers = _servers([each for each in (self.servers[child] for child in below) if each is not None])
        inc = [one for one in (self.switches[child] for child in below) if one is not None]
        switches = _switches([*inc, own] if own is not None else inc)
        if self.servers[node] != servers:
            self.servers[node] = servers
            changed.servers.add(node)
        if self.switches[node] != switches:
            self.switches[node] = switches
            changed.switches.add(node)
        return node in changed.servers or node in changed.switches


def _servers(parts: Sequence[ServerBounds]) -> ServerBounds | None:
    if not parts:
        return None
    return ServerBounds(_column(min, [each.least for each in parts]), _column(max, [each.most for each in parts]))


def _switches(parts: Sequence[SwitchBounds]) -> SwitchBounds | None:
    if not parts:
        return None
    some = active = 0
    by_all = active_all = -1
    for each in parts:
        some |= each.supported_by_some
        active |= each.active_on_some
        by_all &= each.supported_by_all
        active_all &= each.active_on_all
    return SwitchBounds(
        _column(min, [each.least for each in parts]), _column(max, [each.most for each in parts]),
        min(each.least_slots for each in parts), max(each.most_slots for each in parts),
        min(each.least_active for each in parts), some, by_all, active, active_all,
    )  # fmt: skip


def _column(choose: Callable[[Sequence[int]], int], vectors: Sequence[Vector]) -> Vector:
    return tuple(choose(each) for each in zip(*vectors, strict=True))
