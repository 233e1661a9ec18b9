"""Which tasks a switch takes: recirculation, stages and SRAM, at most so many services, sharing what is sharable.

The oracle is the scheduler's own (`sched.inc.resources`), with this switch alone. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from offpath.sched.inc.errors import IncRefused, Unhostable
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.scarcity import scarcity
from offpath.sched.inc.units import SWITCH_DIMENSIONS, Vector, vector
from offpath.sched.topology.declared import Declared, connected

_SWITCH = 1
"""Its number; 0 is the one host below it."""


class TaskRefused(IncRefused):
    """The switch has no room for the task now; its text names what is scarce."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Of a task: its own amounts, and what all tasks of its service share. Shape [3] each."""

    service: str
    own: Vector
    shared: Vector
    features: frozenset[str]


class Admission:
    """The tasks of one switch by identity."""

    def __init__(self, name: str, spec: SwitchSpec) -> None:
        host = f"below-{name}"
        self._resources = Resources(connected([Declared(name, (), (host,))]), [ServerSpec((0, 0))], [spec])
        self._groups: dict[str, tuple[Demand, TaskGroup]] = {}

    def start(self, identity: str, demand: Demand) -> bool:
        """Take a task; False: it runs already. Raises: DemandInvalid. Unhostable: it would not fit the idle switch.
        TaskRefused: it does not fit now; or the identity is another task's. Nothing has changed then."""
        if identity in self._groups:
            if self._groups[identity][0] != demand:
                raise TaskRefused(f"{identity} runs with another demand")
            return False
        for amounts, what in ((demand.own, "demand"), (demand.shared, "shared")):
            vector(amounts, SWITCH_DIMENSIONS, f"{identity}: {what}")
        group = TaskGroup(
            (identity, "task"), "task", demand.service, 1, demand.own, "", demand.service, demand.shared,
            demand.features,
        )  # fmt: skip
        if not self._resources.could_host(group, _SWITCH):
            raise Unhostable(f"{demand.service}: the idle switch lacks features or capacity for {demand.own}")
        if not self._resources.fits(group, _SWITCH):
            raise TaskRefused(scarcity(self._resources, group))
        self._resources.start(group, _SWITCH)
        self._groups[identity] = (demand, group)
        return True

    def stop(self, identity: str) -> bool:
        """Give its resources back; False: it does not run."""
        found = self._groups.pop(identity, None)
        if found is None:
            return False
        self._resources.stop(found[1], _SWITCH)
        return True

    @property
    def identities(self) -> list[str]:
        """Of the tasks that run, sorted."""
        return sorted(self._groups)

    @property
    def free(self) -> Vector:
        """Recirculation, stages, SRAM that are left."""
        return self._resources.free(_SWITCH)

    @property
    def services(self) -> list[str]:
        """Those that run, sorted."""
        return sorted(self._resources.active(_SWITCH))

    def state(self) -> tuple[object, ...]:
        """All that changes, comparable bit for bit."""
        return self._resources.state(), tuple(sorted(self._groups))
