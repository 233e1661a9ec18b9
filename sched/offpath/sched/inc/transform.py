"""Turns composite requests into polymorphic ones by the rules of the templates (HIRE §4.4).

A composite with k > 1 possible implementations gets k decision variables, one for each: the vector of implementation i
has a 1 at i and 0 at the others. All groups of an implementation share its vector, so they are chosen together (the
paper's spine and leaf of DistCache). A composite with one implementation decides nothing: its groups are all x.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from offpath.sched.inc import flavors
from offpath.sched.inc.errors import DemandInvalid, FlavorsContradict, RequestTooLarge, UnknownTemplate
from offpath.sched.inc.poly import GroupId, PolyReq, TaskGroup
from offpath.sched.inc.request import Composite, CompReq, Tie, check
from offpath.sched.inc.store import CompStore
from offpath.sched.inc.templates import MOST_NAME, MOST_SWITCHES, Implementation, SwitchGroup
from offpath.sched.inc.units import SWITCH_CAPACITY, SWITCH_DIMENSIONS, amount


@dataclass(frozen=True, slots=True)
class Earlier:
    """What ties to an earlier request need: its PolyReq and its active flavor vector now."""

    request: PolyReq
    active: flavors.Flavor


@dataclass(frozen=True, slots=True)
class Rules:
    """Readings. ``stages_are_bounded``: R2P2's [0, |G|] stages end at the 48 of a switch; as printed they do not, and
    no switch could host more."""

    stages_are_bounded: bool = True


def transform(
    request: CompReq, store: CompStore, earlier: Mapping[str, Earlier] | None = None, rules: Rules = Rules()
) -> PolyReq:
    """The request's task groups. ``earlier``: the jobs that ties may name.

    Raises: IncRefused: the kinds of `errors`, each with the composite.
    """
    check(request)
    choices = {each.name: _choices(each, store) for each in request.composites}
    for composite in request.composites:
        _check_keys(composite, choices[composite.name])
    length = sum(len(each) for each in choices.values() if len(each) > 1)
    groups: list[TaskGroup] = []
    before = 0
    for composite in request.composites:
        count = len(choices[composite.name])
        for at, implementation in enumerate(choices[composite.name]):
            flavor = flavors.one_hot(at, count, before, length - before - count) if count > 1 else "x" * length
            groups += _groups(request.job, composite, implementation, flavor, rules)
        before += count if count > 1 else 0
    known = earlier or {}
    linked = _connected(request, groups, known)
    return PolyReq(request.job, tuple(linked), _active(request.ties, groups, length, known), request.priority)


def _choices(composite: Composite, store: CompStore) -> list[Implementation]:
    template = store.template(composite.template)
    for name in (*composite.among, *composite.without):
        if template.implementation(name) is None:
            known = ", ".join(each.name for each in template.implementations)
            raise UnknownTemplate(f"{composite.name}: {template.name} has no {name[:MOST_NAME]!r}, but {known}")
    wanted = composite.among or tuple(each.name for each in template.implementations)
    found = [each for each in template.implementations if each.name in wanted and each.name not in composite.without]
    if not found:
        raise FlavorsContradict(f"{composite.name}: every implementation is excluded")
    return found


def _check_keys(composite: Composite, choices: Sequence[Implementation]) -> None:
    names = {each.name for each in choices if each.is_inc}
    for key in (*composite.demand, *composite.servers_percent):
        if key not in names:
            raise UnknownTemplate(f"{composite.name}: {key[:MOST_NAME]!r} is no chosen implementation on switches")
    for table in composite.demand.values():
        unknown = sorted(table.keys() - set(SWITCH_DIMENSIONS))
        if unknown:
            raise UnknownTemplate(f"{composite.name}: {unknown[0][:MOST_NAME]!r} is no dimension of a switch")


def _groups(
    job: str, composite: Composite, implementation: Implementation, flavor: flavors.Flavor, rules: Rules
) -> Iterator[TaskGroup]:
    """Of one implementation: its switches, and the servers that it needs (beside them)."""
    servers = composite.servers
    percent = 100
    for each in implementation.groups:
        yield _on_switches(job, composite, implementation, each, flavor, rules)
    if implementation.is_inc:
        percent = composite.servers_percent.get(implementation.name, implementation.servers_percent)
        amount(percent, f"{composite.name}: servers_percent", 100)
    if tasks := -(-servers.instances * percent // 100):
        name = f"{composite.name}.{implementation.name}{'.servers' if implementation.is_inc else ''}"
        demand = (servers.cpu_milli, servers.memory_mib)
        yield TaskGroup((job, name), composite.name, implementation.name, tasks, demand, flavor)


def _on_switches(
    job: str, composite: Composite, service: Implementation, group: SwitchGroup, flavor: flavors.Flavor, rules: Rules
) -> TaskGroup:
    tasks = composite.servers.instances
    most = list(group.most)
    stages = SWITCH_DIMENSIONS.index("stages")
    if group.stages_by_tasks:
        most[stages] = min(tasks, SWITCH_CAPACITY[stages]) if rules.stages_are_bounded else tasks
    given = composite.demand.get(service.name, {})
    demand = tuple(
        _within(given.get(dimension, high), low, high, f"{composite.name}.{service.name}.{dimension}")
        for dimension, low, high in zip(SWITCH_DIMENSIONS, group.least, most, strict=True)
    )
    switches = group.count.of(tasks)
    if switches > MOST_SWITCHES:
        raise RequestTooLarge(f"{composite.name}.{service.name}: {switches} switches: at most {MOST_SWITCHES}")
    name = ".".join(filter(None, (composite.name, service.name, group.suffix)))
    return TaskGroup(
        (job, name), composite.name, service.name, switches, demand, flavor, service.name, group.shared,
        service.features, group.connectivity,
    )  # fmt: skip


def _within(value: int, low: int, high: int, what: str) -> int:
    amount(value, what)
    if not low <= value <= high:
        raise DemandInvalid(f"{what} is {value}: the template allows {low} … {high}")
    return value


# -- connections ---------------------------------------------------------------------------------------------------


def _connected(request: CompReq, groups: Sequence[TaskGroup], earlier: Mapping[str, Earlier]) -> Iterator[TaskGroup]:
    """Each group with those it talks to: of connected and tied composites, and of its own implementation."""
    of: dict[str, list[GroupId]] = {}
    for group in groups:
        of.setdefault(group.composite, []).append(group.id)
    talks: dict[str, list[GroupId]] = {each.name: [] for each in request.composites}
    for connection in request.connections:  # locality is symmetric, whatever the direction of the traffic
        talks[connection.source] += of[connection.target]
        talks[connection.target] += of[connection.source]
    for tie in request.ties:
        talks[tie.composite] += [each.id for each in _tied(tie, earlier)]
    for group in groups:
        beside = [
            each.id
            for each in groups
            if (each.composite, each.implementation) == (group.composite, group.implementation) and each is not group
        ]
        others = [each for each in (*beside, *talks[group.composite]) if each != group.id]
        yield replace(group, connected=tuple(dict.fromkeys(others)))


def _tied(tie: Tie, earlier: Mapping[str, Earlier]) -> list[TaskGroup]:
    known = earlier.get(tie.earlier_job)
    found = [each for each in known.request.groups if each.composite == tie.earlier_composite] if known else []
    if not found:
        raise UnknownTemplate(
            f"{tie.composite} is tied to {tie.earlier_job[:MOST_NAME]}/{tie.earlier_composite[:MOST_NAME]}: not known"
        )
    return found


def _active(
    ties: Sequence[Tie], groups: Sequence[TaskGroup], length: int, earlier: Mapping[str, Earlier]
) -> flavors.Flavor:
    """All x, but for composites that must run as earlier ones do. An earlier one that is undecided decides nothing:
    then the flavors are not tied."""
    wanted: list[flavors.Flavor] = []
    for tie in ties:
        if not tie.is_same_flavor:
            continue
        active = earlier[tie.earlier_job].active
        runs = {
            each.implementation
            for each in _tied(tie, earlier)
            if flavors.status(each.flavor, active) is flavors.Status.SELECTED
        }
        mine = {each.implementation: each.flavor for each in groups if each.composite == tie.composite}
        for name in runs:
            if name not in mine:
                raise FlavorsContradict(f"{tie.composite} must run as {name}, which it excludes or does not know")
            wanted.append(mine[name])
    return flavors.joint(wanted, length)
