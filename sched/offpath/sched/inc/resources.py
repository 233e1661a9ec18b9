"""What servers and switches have left, and whether a task fits: the oracle that every policy asks.

On a switch the tasks of one service share what is marked sharable: it counts once while any of them runs there, and
each task adds its own demand. Equation 4 as printed divides by the number of tasks instead, which is 0 on an idle
switch and lets unequal demands shrink each other. All amounts are whole numbers, so that stopping a task restores the
state before its start exactly, in any order of starts and stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from operator import add, le, neg
from typing import Final, TypeVar

from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import MOST_SERVICES, SWITCH_CAPACITY, Vector, fits_in, plus
from offpath.sched.topology.graph import Topology

_NOTHING: Final[Vector] = (0, 0, 0)
_NO_SERVICES: Final[frozenset[tuple[str, Vector]]] = frozenset()
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """``capacity``: of CPU and memory, shape [2]."""

    capacity: Vector


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """``capacity``: shape [3]. ``services``: what it may run; None: all whose features it has."""

    features: frozenset[str] = frozenset()
    capacity: Vector = SWITCH_CAPACITY
    services: frozenset[str] | None = None
    most_services: int = MOST_SERVICES

    def supports(self, group: TaskGroup) -> bool:
        """True if the switch can run the group's service at all."""
        allowed = self.services is None or group.service in self.services
        return allowed and self.most_services > 0 and group.features <= self.features


@dataclass(slots=True)
class _Service:
    """One service on one switch. ``shared``: how many tasks stated which shared demand; the service needs the most of
    each dimension (they are all equal unless a template was changed meanwhile)."""

    shared: Counter[Vector] = field(default_factory=Counter)

    @property
    def demand(self) -> Vector:
        if len(self.shared) == 1:
            return next(iter(self.shared))
        return tuple(max(each) for each in zip(*self.shared, strict=True))

    @property
    def tasks(self) -> int:
        return self.shared.total()


@dataclass(slots=True)
class _Switch:
    """``own``: the sum of the tasks' own demands. ``used``: with what is shared."""

    own: Vector = _NOTHING
    services: dict[str, _Service] = field(default_factory=dict)
    used: Vector = _NOTHING


class Resources:
    """The state of a cluster. Nodes are the topology's: hosts, then switches.

    ``is_shared``: False counts the shared demand for every task, as the paper's baselines do (§6.1).
    """

    def __init__(
        self,
        topology: Topology,
        servers: Sequence[ServerSpec],
        switches: Sequence[SwitchSpec],
        *,
        is_shared: bool = True,
    ) -> None:
        """``servers``: shape [hosts]; ``switches``: shape [switches]. Raises: PlacementInvalid: other counts."""
        if len(servers) != topology.hosts or len(switches) != topology.switches:
            raise PlacementInvalid(f"{len(servers)} servers, {len(switches)} switches: the topology has others")
        self.topology = topology
        self.servers, self.switches = tuple(servers), tuple(switches)
        self.is_shared = is_shared
        self._on_server: list[Vector] = [(0, 0)] * topology.hosts
        self._on_switch = [_Switch() for _ in switches]
        self._running: list[Counter[GroupId]] = [Counter() for _ in range(topology.nodes)]
        self._nodes_of: dict[GroupId, Counter[int]] = {}
        self._lost: set[int] = set()

    # -- questions -------------------------------------------------------------------------------------------------
    def fits(self, group: TaskGroup, node: int) -> bool:
        """True if one more task of the group can start on the node now.

        A switch runs at most one task of a group: a chain or a cache of three on one switch would tolerate no failure.
        """
        if node in self._lost:
            return False
        hosts = self.topology.hosts
        if not group.is_inc:
            return node < hosts and _has_room(group.demand, self._on_server[node], self.servers[node].capacity)
        if node < hosts or group.id in self._running[node]:
            return False
        switch, spec = self._on_switch[node - hosts], self.switches[node - hosts]
        if group.service not in switch.services and self.slots(node) <= 0:
            return False
        # What is needed beside the others fits an idle switch, too: `could_host`.
        return self._may_run(group, node) and _has_room(self.needed(group, node), switch.used, spec.capacity)

    def _may_run(self, group: TaskGroup, switch: int) -> bool:
        """The switch has all that the group's tasks on switches need but room."""
        spec = self.switches[switch - self.topology.hosts]
        return spec.supports(group) and is_level_right(group.connectivity, self.topology.level[switch])

    def could_host(self, group: TaskGroup, node: int) -> bool:
        """True if a task fits the node when it is idle. Equal for all tasks of the group, and never changes."""
        hosts = self.topology.hosts
        if group.is_inc != (node >= hosts):
            return False
        if not group.is_inc:
            return fits_in(group.demand, self.servers[node].capacity)
        capacity = self.switches[node - hosts].capacity
        return self._may_run(group, node) and fits_in(plus(group.demand, group.shared), capacity)

    def needed(self, group: TaskGroup, node: int) -> Vector:
        """What one more task takes of the node: its own demand, and what the service shares if it is not there yet."""
        if not group.is_inc:
            return group.demand
        if not self.is_shared:
            return plus(group.demand, group.shared)
        service = self._on_switch[node - self.topology.hosts].services.get(group.service)
        if service is None:
            return plus(group.demand, group.shared)
        before = service.demand
        if before == group.shared:
            return group.demand
        return tuple(
            own + max(0, shared - there) for own, shared, there in zip(group.demand, group.shared, before, strict=True)
        )

    def capacity(self, node: int) -> Vector:
        """Of an idle node."""
        hosts = self.topology.hosts
        return self.servers[node].capacity if node < hosts else self.switches[node - hosts].capacity

    def used(self, node: int) -> Vector:
        """Of a node, shared demand once for each active service."""
        hosts = self.topology.hosts
        return self._on_server[node] if node < hosts else self._on_switch[node - hosts].used

    def used_of(self, nodes: Sequence[int]) -> list[Vector]:
        """`used` of many nodes of one kind."""
        if not nodes or nodes[0] < self.topology.hosts:
            return [self._on_server[node] for node in nodes]
        hosts, switches = self.topology.hosts, self._on_switch
        return [switches[node - hosts].used for node in nodes]

    def free(self, node: int) -> Vector:
        """Of a node that is not lost; of a lost one nothing."""
        capacity = self.capacity(node)
        if node in self._lost:
            return (0,) * len(capacity)
        used = self.used(node)
        return tuple(all_ - gone for all_, gone in zip(capacity, used, strict=True)) if any(used) else capacity

    def active(self, node: int) -> frozenset[str]:
        """The services that run on a switch."""
        return frozenset(self._on_switch[node - self.topology.hosts].services)

    def sharing(self, node: int) -> frozenset[tuple[str, Vector]]:
        """The services on a switch with the shared demands that are covered there: one more task that states one of
        these needs only its own demand."""
        services = self._on_switch[node - self.topology.hosts].services
        if not services:
            return _NO_SERVICES
        return frozenset([(name, shared) for name, each in services.items() for shared in each.shared])

    def covered(self, node: int) -> dict[str, Vector]:
        """What each service on a switch shares there."""
        return {name: each.demand for name, each in self._on_switch[node - self.topology.hosts].services.items()}

    def slots(self, node: int) -> int:
        """Services that may still be added to a switch; 0 if it is lost."""
        at = node - self.topology.hosts
        rest = self.switches[at].most_services - len(self._on_switch[at].services)
        return 0 if node in self._lost else rest

    def nodes_of(self, group: GroupId) -> Counter[int]:
        """Running tasks of a group by node."""
        return Counter(self._nodes_of.get(group, ()))

    def places(self, group: GroupId) -> Collection[int]:
        """The nodes with a running task of a group, now; not a copy."""
        return self._nodes_of.get(group, ())

    def is_running(self, group: GroupId) -> bool:
        """True if some task of the group runs."""
        return group in self._nodes_of

    def is_running_on(self, group: GroupId, node: int) -> bool:
        """True if some task of the group runs on the node."""
        return group in self._running[node]

    def tasks_of(self, group: GroupId) -> int:
        """Running tasks of a group."""
        nodes = self._nodes_of.get(group)
        return nodes.total() if nodes else 0

    def running(self, node: int) -> Counter[GroupId]:
        """Running tasks on a node by group."""
        return Counter(self._running[node])

    @property
    def lost(self) -> Set[int]:
        """The nodes from `lose` to `restore`."""
        return self._lost

    def is_lost(self, node: int) -> bool:
        """True from `lose` to `restore`."""
        return node in self._lost

    def state(self) -> tuple[object, ...]:
        """All that changes, comparable: equal states are equal bit for bit."""
        switches = tuple(
            (each.own, each.used, tuple(sorted((name, tuple(sorted(s.shared.items())))
                                               for name, s in each.services.items())))
            for each in self._on_switch
        )  # fmt: skip
        running = tuple(tuple(sorted(each.items())) for each in self._running)
        of = tuple(sorted((group, tuple(sorted(nodes.items()))) for group, nodes in self._nodes_of.items()))
        return tuple(self._on_server), switches, running, of, tuple(sorted(self._lost))

    # -- changes ---------------------------------------------------------------------------------------------------
    def start(self, group: TaskGroup, node: int) -> None:
        """Raises: PlacementInvalid: it does not fit; nothing changes."""
        if not 0 <= node < self.topology.nodes or not self.fits(group, node):
            raise PlacementInvalid(f"a task of {group.id} does not fit node {node}")
        if group.is_inc:
            switch = self._on_switch[node - self.topology.hosts]
            switch.own = plus(switch.own, group.demand)
            service = switch.services.get(group.service)
            if service is None:
                service = switch.services[group.service] = _Service()
            service.shared[group.shared] = service.shared.get(group.shared, 0) + 1
            self._count(switch)
        else:
            self._on_server[node] = plus(self._on_server[node], group.demand)
        running = self._running[node]
        running[group.id] = running.get(group.id, 0) + 1
        nodes = self._nodes_of.get(group.id)
        if nodes is None:
            nodes = self._nodes_of[group.id] = Counter()
        nodes[node] = nodes.get(node, 0) + 1

    def stop(self, group: TaskGroup, node: int) -> None:
        """Raises: PlacementInvalid: no task of the group runs there; nothing changes."""
        if not 0 <= node < self.topology.nodes or group.id not in self._running[node]:
            raise PlacementInvalid(f"no task of {group.id} runs on node {node}")
        back = tuple(map(neg, group.demand))
        if group.is_inc:
            switch = self._on_switch[node - self.topology.hosts]
            switch.own = plus(switch.own, back)
            service = switch.services[group.service]
            _take_one(service.shared, group.shared)
            if not service.tasks:
                del switch.services[group.service]
            self._count(switch)
        else:
            self._on_server[node] = plus(self._on_server[node], back)
        _take_one(self._running[node], group.id)
        _take_one(self._nodes_of[group.id], node)
        if not self._nodes_of[group.id]:
            del self._nodes_of[group.id]

    def lose(self, node: int) -> None:
        """The node takes no further task. Its tasks stay counted until they are stopped. May be repeated."""
        self._lost.add(node)

    def restore(self, node: int) -> None:
        """The node takes tasks again. May be repeated."""
        self._lost.discard(node)

    def _count(self, switch: _Switch) -> None:
        """From the tasks anew: a sum of whole numbers is the same whatever was added and taken away before."""
        used = switch.own
        for service in switch.services.values():
            if self.is_shared:
                used = plus(used, service.demand)
            else:
                for shared, count in service.shared.items():
                    used = plus(used, tuple(each * count for each in shared))
        switch.used = used


def _has_room(demand: Vector, used: Vector, capacity: Vector) -> bool:
    """Without a generator, which would take twice as long: it is called for each task that starts."""
    return all(map(le, map(add, demand, used), capacity))


def _take_one(counter: Counter[_Key], key: _Key) -> None:
    rest = counter[key] - 1
    if rest:
        counter[key] = rest
    else:
        del counter[key]


def is_level_right(connectivity: Connectivity, level: int) -> bool:
    """``level``: of a switch; 1 has servers below it."""
    if connectivity in (Connectivity.TOR, Connectivity.LEAF):
        return level == 1
    return level > 1 if connectivity is Connectivity.SPINE else True
