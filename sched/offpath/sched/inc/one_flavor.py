"""HIRE with one flavor decision per job (HIRE §6.3): the whole request uses switches wherever it can, or servers.

The decision variables of all composites become two, one for each variant, so that a round's single flavor decision
decides the job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from offpath.sched.inc import flavors
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.poly import PolyReq, TaskGroup

JOINT: Final = "*"
"""The composite that stands for all those with a choice."""
ON_SWITCHES: Final = "switches"
ON_SERVERS: Final = "servers"


def one_flavor(request: PolyReq) -> PolyReq:
    """The request with two flavors. Of several implementations of one kind the first stays; a composite that has only
    one kind, or whose flavor is tied already, stays out of the decision. Groups keep their identifiers."""
    by_composite: dict[str, dict[str, list[TaskGroup]]] = {}
    for each in request.groups:
        if flavors.status(each.flavor, request.active) is not flavors.Status.REMOVED:
            by_composite.setdefault(each.composite, {}).setdefault(each.implementation, []).append(each)
    kept: dict[tuple[str, str], TaskGroup] = {}
    for implementations in by_composite.values():
        first: dict[bool, list[TaskGroup]] = {}
        for groups in implementations.values():
            first.setdefault(any(each.is_inc for each in groups), groups)
        for is_inc, groups in first.items():
            for each in groups:
                kept[each.id] = _joined(each, is_inc) if len(first) > 1 else replace(each, flavor="xx")
    return PolyReq(request.job, tuple(kept[each.id] for each in request.groups if each.id in kept), "xx",
                   request.priority)  # fmt: skip


def _joined(group: TaskGroup, is_inc: bool) -> TaskGroup:
    implementation, flavor = (ON_SWITCHES, "10") if is_inc else (ON_SERVERS, "01")
    return replace(group, composite=JOINT, implementation=implementation, flavor=flavor)


class HireOneFlavor(Hire):
    """The policy: `Hire` on requests with two flavors. Its decisions name the composite `JOINT`."""

    def submit(self, request: PolyReq, now_ms: int) -> None:
        """Raises: as `Scheduler.submit`."""
        super().submit(one_flavor(request), now_ms)
