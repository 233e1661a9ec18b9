"""The state of a cluster as arrays, as of the last `refresh`: what is compared with hundreds of demands at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources, is_level_right
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import MOST_DEMAND, Vector

Flags = NDArray[np.bool_]
LOST: Final = -1
"""What a lost node has free: even a demand of 0 does not fit."""


class Columns:
    """Row ``n`` of the servers' arrays is server ``n``; row ``n`` of the switches' is switch ``hosts + n``.

    Raises: PlacementInvalid: a node has more than `MOST_DEMAND` of a dimension; the arithmetic is exact up to there.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        hosts, switches = resources.topology.hosts, resources.topology.switches
        self.hosts, self.switches = hosts, switches
        self.server_capacity: Ints = _vectors([each.capacity for each in resources.servers], 2)
        self.switch_capacity: Ints = _vectors([each.capacity for each in resources.switches], 3)
        if max(self.server_capacity.max(initial=0), self.switch_capacity.max(initial=0)) > MOST_DEMAND:
            raise PlacementInvalid(f"a node has more than {MOST_DEMAND} of a dimension")
        self.level: Ints = np.array(resources.topology.level[hosts:], np.int64)
        self.most_services: Ints = np.array([each.most_services for each in resources.switches], np.int64)
        self.runs_inc: Flags = (self.most_services > 0) & (self.switch_capacity > 0).any(1)
        """Switches that may run INC at all."""
        kinds = {id(each): each for each in resources.switches}  # a specification takes long to hash
        numbers = {spec: n for n, spec in enumerate(dict.fromkeys(kinds.values()))}
        of_kind = {kind: numbers[spec] for kind, spec in kinds.items()}
        self._specs, self._spec_of = (
            list(numbers),
            np.array([of_kind[id(each)] for each in resources.switches], np.int64),
        )
        self.server_used: Ints = np.zeros((hosts, 2), np.int64)
        self.server_free: Ints = self.server_capacity.copy()
        self.switch_used: Ints = np.zeros((switches, 3), np.int64)
        self.switch_free: Ints = self.switch_capacity.copy()
        self.slots: Ints = self.most_services.copy()
        """Services that may still be added; 0 if the switch is lost."""
        self.active: Ints = np.zeros(switches, np.int64)
        """Active services."""
        self.lost: Flags = np.zeros(resources.topology.nodes, np.bool_)
        self._covered: defaultdict[str, dict[int, Vector]] = defaultdict(dict)
        """By service: what it shares on the switches that run it."""
        self._sharing: defaultdict[tuple[str, Vector], set[int]] = defaultdict(set)
        """By service and shared demand: the switches where a task states that demand."""
        self._on: list[frozenset[tuple[str, Vector]]] = [frozenset()] * switches
        self._excess: dict[tuple[str, Vector], tuple[Ints, Flags]] = {}
        """What `excess` found since the last `refresh`."""
        self._supported: dict[tuple[str, frozenset[str]], Flags] = {}
        self._level_right: dict[Connectivity, Flags] = {}

    # -- changes ---------------------------------------------------------------------------------------------------
    def refresh(self, nodes: Sequence[int]) -> None:
        """Read these nodes' state. They may come in any order, and more than once."""
        resources, hosts = self.resources, self.hosts
        servers = [each for each in nodes if each < hosts]
        switches = [each for each in nodes if each >= hosts]
        self._excess.clear()
        if servers:
            rows = np.array(servers, np.int64)
            used = _vectors(resources.used_of(servers), 2)
            self.lost[rows] = lost = self._lost_of(servers)
            _put(self.server_used, rows, used)
            _put(self.server_free, rows, _free(self.server_capacity, rows, used, lost))
        if switches:
            rows = np.array(switches, np.int64)
            at = rows - hosts
            used = _vectors(resources.used_of(switches), 3)
            self.lost[rows] = lost = self._lost_of(switches)
            _put(self.switch_used, at, used)
            _put(self.switch_free, at, _free(self.switch_capacity, at, used, lost))
            for node in switches:
                self._read_services(node)
            self.slots[at] = np.where(lost, 0, self.most_services[at] - self.active[at])

    def _lost_of(self, nodes: Sequence[int]) -> Flags:
        if not self.resources.lost:
            return np.zeros(len(nodes), np.bool_)
        return np.array([each in self.resources.lost for each in nodes], np.bool_)

    def _read_services(self, node: int) -> None:
        at = node - self.hosts
        now = self.resources.sharing(node)
        if now == self._on[at]:
            return  # then what is covered is the same, too
        for service, shared in self._on[at] - now:
            self._covered.get(service, {}).pop(at, None)
            self._sharing[service, shared].discard(at)
        covered = dict(now)
        if len(covered) != len(now):  # tasks of one service state different demands
            covered = self.resources.covered(node)
        for service, demand in covered.items():
            self._covered[service][at] = demand
        for key in now - self._on[at] if self._on[at] else now:
            self._sharing[key].add(at)
        self._on[at] = now
        self.active[at] = len(covered)

    def on(self, node: int) -> frozenset[tuple[str, Vector]]:
        """What the tasks of a switch share, by service, as of the last `refresh` that read it."""
        return self._on[node - self.hosts]

    # -- questions, each by switch ---------------------------------------------------------------------------------
    def excess(self, service: str, shared: Vector) -> tuple[Ints, Flags]:
        """What a task that shares ``shared`` would add to that of its service, shape [switches, 3]; and where the
        service is active."""
        known = self._excess.get((service, shared))
        if known is None:
            known = self._excess[service, shared] = self._computed_excess(service, shared)
        return known

    def _computed_excess(self, service: str, shared: Vector) -> tuple[Ints, Flags]:
        there = np.zeros((self.switches, 3), np.int64)
        is_active = np.zeros(self.switches, np.bool_)
        covered = self._covered.get(service)
        if covered:
            at = np.fromiter(covered, np.int64, len(covered))
            there[at] = _vectors(list(covered.values()), 3)
            is_active[at] = True
        wanted = np.array(shared, np.int64)
        if not self.resources.is_shared:
            return np.broadcast_to(wanted, there.shape), is_active
        return np.maximum(0, wanted - there), is_active

    def sharing(self, service: str, shared: Vector) -> Flags | None:
        """Where a task of the service states that shared demand; None: nowhere."""
        found = self._sharing.get((service, shared))
        if not found:
            return None
        flags = np.zeros(self.switches, np.bool_)
        flags[list(found)] = True
        return flags

    def supports(self, group: TaskGroup) -> Flags:
        """Where the group's service can run at all. It never changes."""
        key = group.service, group.features
        known = self._supported.get(key)
        if known is None:
            of_spec = np.array([each.supports(group) for each in self._specs], np.bool_)
            known = self._supported[key] = of_spec[self._spec_of]
        return known

    def is_level_right(self, connectivity: Connectivity) -> Flags:
        """Where the switch's level is one that the connectivity allows. It never changes."""
        if connectivity not in self._level_right:
            levels = {level: is_level_right(connectivity, level) for level in set(self.level.tolist())}
            self._level_right[connectivity] = np.array([levels[each] for each in self.level.tolist()], np.bool_)
        return self._level_right[connectivity]


def taken(of: NDArray[Any], rows: Ints | slice) -> NDArray[Any]:
    """These rows. Of short rows `take` copies a hundred in the time of an index for one."""
    return of[rows] if isinstance(rows, slice) else of.take(rows, axis=0)


def all_of(flags: Flags) -> Flags:
    """By row, as ``flags.all(1)``, a column at a time: rows are short, and NumPy begins anew for each."""
    found = flags[:, 0].copy()
    for at in range(1, flags.shape[1]):
        found &= flags[:, at]
    return found


def unless(flags: Flags, amounts: Vector) -> Ints:
    """By row the amounts; 0 where the flag is set."""
    both: Ints = np.array([amounts, [0] * len(amounts)], np.int64)
    return taken(both, flags.astype(np.int64))


def _put(of: Ints, rows: Ints, values: Ints) -> None:
    """``of[rows] = values``, a column at a time; at once if it is all of them in order."""
    if len(rows) == len(of) and (rows[1:] > rows[:-1]).all():
        of[:] = values
        return
    for at in range(of.shape[1]):
        of[rows, at] = values[:, at]


def _free(capacity: Ints, rows: Ints, used: Ints, lost: Flags) -> Ints:
    """What these nodes have left; a lost one has `LOST`."""
    free = taken(capacity, rows) - used
    if lost.any():
        free[lost] = LOST
    return free


def _vectors(rows: Sequence[Vector], size: int) -> Ints:
    """Shape [rows, ``size``]. Four times as fast as `numpy.array` of tuples."""
    return np.fromiter(chain.from_iterable(rows), np.int64, size * len(rows)).reshape(len(rows), size)
