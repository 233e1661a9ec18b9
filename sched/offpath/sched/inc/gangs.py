"""Groups on switches start whole: the flow gives a group its first places, this completes it or takes it out.

A flow may give each of two groups a part of what both need, and then none of them runs. Groups are completed in the
order of their jobs, by trial on the resources, which are at the end as before.

The first switch of a job is the flow's. Once a job has one of the highest switches, all its servers are below one of
its switches, and further high ones save it no detour: they become the dearest, so that other jobs get one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np

from offpath.sched.inc.columns import Flags
from offpath.sched.inc.cost import ONE
from offpath.sched.inc.cost_columns import SINK_TERMS
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.network import FlowNetwork, GroupNode, Picked, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, Kind, TaskGroup

_DISTANCE: Final = SINK_TERMS.index("distance")
_DEAR: Final = 1 << 20
"""Above the cost of any place."""
_HAS_TOP: Final = "another switch of the job is above all its servers"


@dataclass(slots=True)
class _Gang:
    """What starts together: the groups on switches of a flavor, or a single group. ``picked``: by the flow."""

    job: PendingJob
    parts: list[GroupNode]
    picked: list[Picked] = field(default_factory=list)


def whole(network: FlowNetwork, built: Round, picked: Sequence[Picked]) -> list[Picked]:
    """``picked`` without groups on switches that cannot have all their places now, and with the places that the others
    still need; sorted by node. Nothing is started."""
    nodes = {of.group.id: of for of in built.groups.values()}
    gangs: dict[tuple[int, str, str], _Gang] = {}
    found = []
    for each in picked:
        parts = _parts(network, nodes, each.of)
        if parts:
            name = each.of.job.number, each.of.group.composite, parts[0].group.id[1]
            gangs.setdefault(name, _Gang(each.of.job, parts)).picked.append(each)
        else:
            found.append(each)
    trial = _Trial(network, list(gangs.values()))
    try:
        for each in found:
            if each.of.group.is_inc:
                trial.start(each)
        for _, gang in sorted(gangs.items(), key=lambda each: each[0]):
            complete = trial.completed(gang)
            if complete is not None:
                found += complete
    finally:
        trial.end()
    return sorted(found, key=lambda each: each.node)


def _parts(network: FlowNetwork, nodes: Mapping[GroupId, GroupNode], of: GroupNode) -> list[GroupNode]:
    """The groups on switches that start with this one. Empty: it starts task by task, because it is on servers, runs in
    part already, or has more tasks than a group has edges."""
    if of.flavor is not None:
        flavor = of.job.request.implementation(of.group.composite, of.group.implementation)
        parts = [nodes[each.id] for each in flavor if each.is_inc]
    else:
        parts = [of] if of.group.is_inc and not network.resources.tasks_of(of.group.id) else []
    return parts if all(of.job.waiting(each.group) <= network.limits.shortcuts for each in parts) else []


class _Trial:
    """Starts for the gangs that are taken back at the end."""

    def __init__(self, network: FlowNetwork, gangs: Sequence[_Gang]) -> None:
        self._network, self._resources = network, network.resources
        self._parts = [of for gang in gangs for of in gang.parts]
        self._is_wanted: Flags = np.zeros(self._resources.topology.nodes, np.bool_)
        """Nodes that the flow gave to some gang. Those of the gang whose turn it is are among them: it takes them
        first, or, with one of the highest switches, last. To leave them out changed satisfied jobs by less than half a
        point in either direction (`simulate hire --quick`, twelve seeds)."""
        self._is_wanted[[each.node for gang in gangs for each in gang.picked]] = True
        self._started: list[Picked] = []
        self._level, self._top = self._resources.topology.level, network.top
        self._rankings: dict[bool, dict[GroupId, list[int]]] = {}
        self._full: dict[Kind, set[int]] = {}
        """By kind of groups, nodes where none of its tasks fits now. No start makes room: what others of its service
        need less after it, it has taken itself."""

    def start(self, each: Picked) -> None:
        """Until `end`."""
        self._resources.start(each.of.group, each.node)
        self._started.append(each)

    def end(self, first: int = 0) -> None:
        """Take back what started after the first so many."""
        for each in reversed(self._started[first:]):
            self._resources.stop(each.of.group, each.node)
            for full in self._full.values():
                full.discard(each.node)
        del self._started[first:]

    def completed(self, gang: _Gang) -> list[Picked] | None:
        """All places of the gang on switches, and what the flow gave it on servers. None: there are too few; then
        nothing of it is started."""
        before = len(self._started)
        has_top = self._has_top(gang.job)
        for of in gang.parts:
            own = [each.node for each in gang.picked if each.of is of]
            places = self._places(of, own, has_top)
            for _ in range(gang.job.waiting(of.group)):
                node = next(places, None)
                if node is None:
                    self.end(before)
                    return None
                is_further = len(self._started) > before
                self.start(Picked(of, node, node, False, is_further, _HAS_TOP if has_top else ""))
                if self._network.reading.is_one_top and not has_top and self._level[node] == self._top:
                    has_top = True
                    places = self._places(of, own, has_top)
        return self._started[before:] + [each for each in gang.picked if not each.of.group.is_inc]

    def _has_top(self, job: PendingJob) -> bool:
        """One of the highest switches runs a task of the job, and that makes a difference."""
        return self._network.reading.is_one_top and any(
            self._level[node] == self._top
            for each in job.request.groups
            if each.is_inc
            for node in self._resources.places(each.id)
        )

    def _places(self, of: GroupNode, own: Sequence[int], has_top: bool) -> Iterator[int]:
        """The places of the group, each if it fits when its turn comes: the flow's, then the cheapest of those that no
        gang has from the flow, at last the others. With one of the highest switches the job needs the flow's last.
        One that did not fit is not looked at again: starts of the same group make room nowhere."""
        group = of.group
        full = self._full.setdefault(group.kind, set())
        if not has_top:
            yield from self._fitting(group, own, full)
        yield from self._fitting(group, self._ranked(has_top)[group.id], full)
        if has_top:
            yield from self._fitting(group, own, full)

    def _fitting(self, group: TaskGroup, nodes: Sequence[int], full: set[int]) -> Iterator[int]:
        """Of these nodes those that fit. ``full``: of the group's kind; the others are noted there."""
        for node in nodes:
            if node in full:
                continue
            if self._resources.fits(group, node):
                yield node
            elif not self._resources.is_running_on(group.id, node):  # else another group of the kind may fit
                full.add(node)

    def _ranked(self, has_top: bool) -> dict[GroupId, list[int]]:
        """The places of all parts of the gangs, by group: those that no gang has from the flow first, then by cost. All
        at once, because a ranking depends on no start of the trial."""
        known = self._rankings.get(has_top)
        if known is None:
            edges = [of.shortcuts for of in self._parts]
            counts = [each.places for each in edges]
            nodes = np.concatenate([each.nodes[: each.places] for each in edges])
            costs = np.concatenate([each.totals[: each.places] for each in edges]) + self._sinks(nodes, has_top)
            rows = np.repeat(np.arange(len(edges)), counts)
            order = np.argsort((2 * rows + self._is_wanted[nodes]) * _DEAR + costs, kind="stable")
            ranked: list[int] = nodes[order].tolist()
            ends = accumulate(counts)
            known = self._rankings[has_top] = {
                of.group.id: ranked[end - count : end] for of, end, count in zip(self._parts, ends, counts, strict=True)
            }
        return known

    def _sinks(self, nodes: Ints, has_top: bool) -> Ints:
        """What M → K costs; with ``has_top`` the highest switches are the dearest."""
        if not has_top:
            return self._network.sink_totals(nodes)
        terms = self._network.sink_terms(nodes)
        terms[self._network.level[nodes] == self._top, _DISTANCE] = ONE
        totals: Ints = terms.sum(1) // len(SINK_TERMS)
        return totals
