"""What cannot be placed: requests that no idle cluster could run, and why a task group finds no place now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from offpath.sched.inc.errors import Unhostable
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.units import SERVER_DIMENSIONS, SWITCH_DIMENSIONS, Vector


def check_hostable(resources: Resources, request: PolyReq) -> None:
    """Raises: Unhostable: in every flavor some group has more tasks than idle nodes could run. Nobody else waits for
    such a request."""
    best: dict[str, tuple[bool, str]] = {}
    for composite, implementation in request.choices(request.active):
        faults = [
            f"{each.id[1]} needs {each.tasks} places"
            for each in request.implementation(composite, implementation)
            if not _has_room(resources, each)
        ]
        if not faults:
            best[composite] = (True, "")
        else:
            best.setdefault(composite, (False, faults[0]))
    for composite, (is_possible, why) in best.items():
        if not is_possible:
            raise Unhostable(f"composite {composite}: no implementation fits the cluster, even idle: {why}")


def _has_room(resources: Resources, group: TaskGroup) -> bool:
    """Alone on the idle cluster."""
    topology = resources.topology
    places = 0
    for node in range(topology.hosts, topology.nodes) if group.is_inc else range(topology.hosts):
        if resources.could_host(group, node):
            places += 1 if group.is_inc else _times(group.demand, resources.capacity(node), group.tasks)
        if places >= group.tasks:
            return True
    return False


def _times(demand: Vector, capacity: Vector, most: int) -> int:
    return min((have // need for need, have in zip(demand, capacity, strict=True) if need), default=most)


def scarcity(resources: Resources, group: TaskGroup) -> str:
    """Why no node fits a task of the group now: how many of the nodes that could run it lack what, most frequent
    first."""
    found: Counter[str] = Counter()
    for node in range(resources.topology.nodes):
        if resources.could_host(group, node) and not resources.fits(group, node):
            found.update(_lacks(resources, group, node))
    return described(group, [(count, what) for what, count in found.items()])


def described(group: TaskGroup, lacks: Iterable[tuple[int, str]]) -> str:
    """How many nodes lack what, most frequent first; of nothing: no node can run the group."""
    kind = "switches" if group.is_inc else "servers"
    ranked = sorted(lacks, key=lambda each: (-each[0], each[1]))
    if not ranked:
        return f"no {kind[:-2] if group.is_inc else kind[:-1]} can run {group.service or 'it'}"
    return f"{kind}: " + ", ".join(f"{count} {what}" for count, what in ranked)


def _lacks(resources: Resources, group: TaskGroup, node: int) -> Iterable[str]:
    if resources.is_lost(node):
        return ["lost"]
    if group.is_inc:
        if resources.running(node)[group.id]:
            return ["run a task of the group already"]
        if not resources.slots(node) and group.service not in resources.active(node):
            return ["run as many services as they may"]
    names = SWITCH_DIMENSIONS if group.is_inc else SERVER_DIMENSIONS
    needed, free = resources.needed(group, node), resources.free(node)
    return [f"lack {name}" for name, need, left in zip(names, needed, free, strict=True) if need > left]
