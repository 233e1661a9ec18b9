"""Composite requests (CompReq, HIRE §4.2): what a tenant writes. A graph of composites, unchecked until `transform`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.inc.errors import (
    DemandInvalid,
    FlavorsContradict,
    RequestCyclic,
    RequestTooLarge,
    UnknownTemplate,
)
from offpath.sched.inc.templates import MOST_NAME
from offpath.sched.inc.units import amount

MOST_COMPOSITES: Final = 64
MOST_CONNECTIONS: Final = 512
MOST_INSTANCES: Final = 100_000
"""Tasks of one composite."""
LOWEST_PRIORITY: Final = 100
"""0 is the highest: Φ_prio in percent."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The implementation on servers: ``instances`` tasks with so much each."""

    instances: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Composite:
    """One function of a request.

    ``servers``: of its tasks; their number is also |G| of the implementations on switches. ``among``: the
    implementations that may be chosen; empty: all of the template's. ``demand``: by implementation, amounts of one
    instance by dimension (`units.SWITCH_DIMENSIONS`) within the template's range; what is not given is the most of it.
    ``servers_percent``: by implementation, the servers still needed beside the switches.
    """

    name: str
    template: str
    servers: Servers
    among: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    demand: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    servers_percent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connection:
    """Traffic from ``source`` to ``target``. ``is_bidirectional``: both ways; it is no dependency."""

    source: str
    target: str
    is_bidirectional: bool = False


@dataclass(frozen=True, slots=True)
class Tie:
    """Composite ``composite`` talks to ``earlier_composite`` of the earlier request ``earlier_job``.

    ``is_same_flavor``: it must run as the other does, on the same implementation.
    """

    composite: str
    earlier_job: str
    earlier_composite: str
    is_same_flavor: bool = False


@dataclass(frozen=True, slots=True)
class CompReq:
    """``priority``: 0 (highest) … 100."""

    job: str
    composites: tuple[Composite, ...]
    connections: tuple[Connection, ...] = ()
    ties: tuple[Tie, ...] = ()
    priority: int = LOWEST_PRIORITY // 2


def check(request: CompReq) -> None:
    """What can be checked without templates.

    Raises: RequestTooLarge. RequestCyclic. DemandInvalid: of servers or priority. UnknownTemplate: a connection or tie
    names no composite of the request. FlavorsContradict: an implementation both wanted and excluded.
    """
    _check_name(request.job, "job")
    if not 1 <= len(request.composites) <= MOST_COMPOSITES:
        raise RequestTooLarge(f"{len(request.composites)} composites: from 1 to {MOST_COMPOSITES}")
    if len(request.connections) + len(request.ties) > MOST_CONNECTIONS:
        raise RequestTooLarge(f"more than {MOST_CONNECTIONS} connections and ties")
    amount(request.priority, "priority", LOWEST_PRIORITY)
    names = [each.name for each in request.composites]
    if len(set(names)) != len(names):
        raise UnknownTemplate("two composites have the same name")
    for composite in request.composites:
        _check_composite(composite)
    ends = [name for each in request.connections for name in (each.source, each.target)]
    for name in ends + [each.composite for each in request.ties]:
        if name not in names:
            raise UnknownTemplate(f"connection to {name[:MOST_NAME]!r}: the request has no such composite")
    _check_circles(request)


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise UnknownTemplate(f"{what} {name!r:.40}: a name of 1 … {MOST_NAME} printable characters is needed")


def _check_composite(composite: Composite) -> None:
    _check_name(composite.name, "composite")
    instances = composite.servers.instances
    where = f"composite {composite.name}"
    if not isinstance(instances, int) or isinstance(instances, bool) or instances < 1:
        raise DemandInvalid(f"{where}: {instances!r:.30} instances: a whole number of 1 or more is needed")
    if instances > MOST_INSTANCES:
        raise RequestTooLarge(f"{where}: {instances} instances: at most {MOST_INSTANCES}")
    amount(composite.servers.cpu_milli, f"{where}: cpu_milli")
    amount(composite.servers.memory_mib, f"{where}: memory_mib")
    both = set(composite.among) & set(composite.without)
    if both:
        raise FlavorsContradict(f"{where}: {sorted(both)[0][:MOST_NAME]} is wanted and excluded")


def _check_circles(request: CompReq) -> None:
    """Kahn's order of the directed connections: what is left over lies on a circle or behind one."""
    behind: dict[str, list[str]] = {each.name: [] for each in request.composites}
    waiting_for = dict.fromkeys(behind, 0)
    for each in request.connections:
        if not each.is_bidirectional:
            behind[each.source].append(each.target)
            waiting_for[each.target] += 1
    ready = [name for name, count in waiting_for.items() if not count]
    done = 0
    while ready:
        done += 1
        for target in behind[ready.pop()]:
            waiting_for[target] -= 1
            if not waiting_for[target]:
                ready.append(target)
    if done < len(behind):
        circle = sorted(name for name, count in waiting_for.items() if count)
        raise RequestCyclic(f"composites depend on each other: {', '.join(circle[:10])}")
