"""Polymorphic requests (PolyReq, HIRE §4.3): task groups with demands, sharing and flavor vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Final

from offpath.sched.inc import flavors
from offpath.sched.inc.errors import DemandInvalid, FlavorsContradict, RequestTooLarge
from offpath.sched.inc.flavors import Flavor
from offpath.sched.inc.templates import MOST_SWITCHES, Connectivity
from offpath.sched.inc.units import SERVER_DIMENSIONS, SWITCH_DIMENSIONS, Vector, vector

GroupId = tuple[str, str]
"""Job, and the group's name in it."""
Kind = tuple[str, frozenset[str], Vector, Vector, str]
MOST_GROUPS: Final = 256
MOST_TASKS: Final = 1_000_000
"""Of one job, in all its flavors."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Equal tasks. On servers ``service`` is empty, ``demand`` has shape [2] and nothing is shared; on switches the
    shape is [3].

    ``demand``: of each task. ``shared``: the dimensions marked *sharable*: needed once per switch, however many tasks
    of the same ``service`` run there. ``features``: of the switch. ``connected``: groups that this one talks to, also
    of earlier jobs.

    ``is_inc``: it runs on switches. ``kind``: equal for groups whose tasks fit the same nodes, at the same cost if
    nothing runs near. Both are worked out once, because a round reads them very often.
    """

    id: GroupId
    composite: str
    implementation: str
    tasks: int
    demand: Vector
    flavor: Flavor
    service: str = ""
    shared: Vector = (0, 0, 0)
    features: frozenset[str] = frozenset()
    connectivity: Connectivity = Connectivity.SINGLE
    connected: tuple[GroupId, ...] = ()
    is_inc: bool = field(init=False, repr=False, compare=False)
    kind: Kind = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_inc", bool(self.service))
        kind = self.service, self.features, self.demand, self.shared, str(self.connectivity)
        object.__setattr__(self, "kind", kind)


@dataclass(frozen=True)
class PolyReq:
    """A job as the scheduler takes it; ``active``: the flavor vector at the start, all x but for what a tie decides.

    Raises: FlavorsContradict. DemandInvalid. RequestTooLarge.
    """

    job: str
    groups: tuple[TaskGroup, ...]
    active: Flavor
    priority: int = 50

    def __post_init__(self) -> None:
        if len(self.groups) > MOST_GROUPS or sum(each.tasks for each in self.groups) > MOST_TASKS:
            raise RequestTooLarge(f"more than {MOST_GROUPS} task groups or {MOST_TASKS} tasks")
        flavors.checked(self.active, len(self.active))
        for each in self.groups:
            _check_group(each, len(self.active))
        _check_alternatives(self.groups)
        if not self.choices(self.active):
            raise FlavorsContradict("no flavor of the request satisfies its ties")

    @cached_property
    def by_id(self) -> Mapping[GroupId, TaskGroup]:
        """Groups by their identifier."""
        return {each.id: each for each in self.groups}

    def statuses(self, active: Flavor) -> dict[GroupId, flavors.Status]:
        """Of each group, under an active vector."""
        return {each.id: flavors.status(each.flavor, active) for each in self.groups}

    def choices(self, active: Flavor) -> list[tuple[str, str]]:
        """Composite and implementation of every choice that is still open or made, each once."""
        open_ = [each for each in self.groups if flavors.status(each.flavor, active) is not flavors.Status.REMOVED]
        found = dict.fromkeys((each.composite, each.implementation) for each in open_)
        served = {composite for composite, _ in found}
        return list(found) if served == {each.composite for each in self.groups} else []

    def implementation(self, composite: str, name: str) -> list[TaskGroup]:
        """The groups of one implementation of a composite."""
        return [each for each in self.groups if (each.composite, each.implementation) == (composite, name)]


def _check_group(group: TaskGroup, length: int) -> None:
    flavors.checked(group.flavor, length)
    what = f"group {group.id[1]}"
    if not isinstance(group.tasks, int) or group.tasks < 1:
        raise DemandInvalid(f"{what}: {group.tasks!r:.30} tasks: 1 or more are needed")
    if not group.is_inc:
        vector(group.demand, SERVER_DIMENSIONS, what)
        return
    if group.tasks > MOST_SWITCHES:
        raise RequestTooLarge(f"{what}: {group.tasks} switches: at most {MOST_SWITCHES}")
    vector(group.demand, SWITCH_DIMENSIONS, what)
    vector(group.shared, SWITCH_DIMENSIONS, f"{what}, shared")


def _check_alternatives(groups: Sequence[TaskGroup]) -> None:
    """Exactly one implementation of a composite: those of one go together, those of two exclude each other."""
    by_composite: dict[str, list[TaskGroup]] = {}
    for each in groups:
        by_composite.setdefault(each.composite, []).append(each)
    for composite, members in by_composite.items():
        for one, other in combinations(members, 2):
            same = one.implementation == other.implementation
            if same and one.flavor != other.flavor:
                raise FlavorsContradict(f"{composite}: groups of {one.implementation} have different flavor vectors")
            if not same and not flavors.exclude(one.flavor, other.flavor):
                raise FlavorsContradict(
                    f"{composite}: {one.implementation} and {other.implementation} can both be chosen"
                )
