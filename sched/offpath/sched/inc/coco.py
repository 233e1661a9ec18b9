"""CoCo++ (HIRE §6.1): a scheduler by min-cost flow that knows neither flavors nor sharing, as Firmament's CoCo model.

Nodes: G of task groups, one virtual rack for each service on switches, M of servers and switches, K. A rack is
connected to the switches on which a task fits at the time of the round; groups of one service with different demands
have racks of their own, because flow into a rack may end on any of its switches. Costs follow CoCo: a server costs its
load, a switch nothing, and waiting costs more than any place. One task per node and round, at most `Limits.groups`
groups in the order of submission, and `Limits.shortcuts` servers for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.inc import cost
from offpath.sched.inc.decisions import Decision, Placed, Postponed, Reason, Why
from offpath.sched.inc.flow import Flow, FlowProblem, solve
from offpath.sched.inc.network import Limits
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.units import SERVER_DIMENSIONS, Vector
from offpath.sched.inc.variants import Fallback, Mode, Variants

WAITING: Final = 2 * cost.ONE * (len(SERVER_DIMENSIONS) + 1)
"""A task that waits: above the most that its demand and a full server cost together."""
MS_PER_COST: Final = 10
"""Waiting for this long costs one hundredth, as the authors' simulator counts."""
MOST_WAITING_MS: Final = 1_000_000

_Kind = tuple[str, frozenset[str], Vector, Vector, Connectivity]


@dataclass(frozen=True, slots=True)
class _Wanted:
    job: PendingJob
    group: TaskGroup
    tasks: int


@dataclass(slots=True)
class _Built:
    """``groups``: by node of the problem. ``racks``: nodes of virtual racks."""

    problem: FlowProblem
    groups: dict[int, _Wanted] = field(default_factory=dict)
    racks: dict[_Kind, int] = field(default_factory=dict)
    waiting: list[_Wanted] = field(default_factory=list)
    left_out: list[_Wanted] = field(default_factory=list)


class CoCo(Variants):
    """The policy. Only in `Mode.TIMEOUT`: alternatives cannot be handled within a round."""

    name = "coco++"

    def __init__(self, resources: Resources, limits: Limits | None = None, *, fallback_ms: Fallback = 60_000) -> None:
        super().__init__(resources, Mode.TIMEOUT, fallback_ms=fallback_ms)
        self.limits = limits or Limits()
        self.sink = resources.topology.nodes
        self._fitting: dict[_Kind, set[int]] = {}
        self._dirty: set[int] = set()
        self._used: dict[_Kind, int] = {}
        self._rounds = 0

    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """Where tasks fit is looked up again at this node only."""
        self._dirty.add(node)

    def round(self, now_ms: int) -> list[Decision]:
        """Decide on all that waits. Raises: SolverMissing."""
        decisions: list[Decision] = []
        self._rounds += 1
        self._refresh()
        for job in self.jobs.values():
            if self._gives_up(job, now_ms):
                decisions += self._to_servers(job, now_ms)
        self._refresh()
        built = self._network(now_ms)
        for wanted, node in list(self._picked(built, solve(built.problem))):
            job, group = wanted.job, wanted.group
            if group in job.undecided():
                decisions += self._decide(job, not self._gives_up(job, now_ms), now_ms)
            self._start(job, group, node)
            reason = Reason(Why.RULE, f"{group.id[1]} on {self._name(node)}: by {self.name}")
            decisions.append(Placed(group.id, node, 1, reason))
        return decisions + list(self._postponed(built))

    def _postponed(self, built: _Built) -> Iterator[Postponed]:
        backlog = {each.job.request.job for each in built.left_out}
        for job in self.jobs.values():
            for group in (*job.materialized(), *job.undecided()):
                reason = self._no_room(group)
                if job.request.job in backlog:
                    text = f"{self.limits.groups} task groups are in the network before it"
                    reason = Reason(Why.BACKLOG, text)
                yield Postponed(group.id, job.waiting(group), reason)

    # -- the network -----------------------------------------------------------------------------------------------
    def _network(self, now_ms: int) -> _Built:
        built = _Built(FlowProblem())
        problem = built.problem
        problem.supply.extend([0] * (self.sink + 1))
        for job in self.jobs.values():
            mine = [_Wanted(job, each, job.waiting(each)) for each in self._candidates(job, now_ms)]
            if built.left_out or len(built.waiting) + len(mine) > self.limits.groups:
                built.left_out += mine  # and all behind it: nobody overtakes
            else:
                built.waiting += mine
        hosts = self.resources.topology.hosts
        loads = [sum(cost.utilization(self.resources.used(node), self.resources.capacity(node)))
                 for node in range(hosts)]  # fmt: skip
        for node in range(self.sink):
            problem.add(node, self.sink, 1, loads[node] if node < hosts else 0)
        for wanted in built.waiting:
            self._add(built, wanted, now_ms, loads)
        problem.supply[self.sink] = -sum(problem.supply[self.sink + 1 :])
        return built

    def _add(self, built: _Built, wanted: _Wanted, now_ms: int, loads: Sequence[int]) -> None:
        problem, group = built.problem, wanted.group
        node = len(problem.supply)
        problem.supply.append(wanted.tasks)
        built.groups[node] = wanted
        waited = min(MOST_WAITING_MS, wanted.job.wait_ms(now_ms)) // MS_PER_COST
        problem.add(node, self.sink, wanted.tasks, WAITING + waited)
        fitting = self._fits(group)
        if not group.is_inc:
            for server in self._cheapest(fitting, loads, wanted.job.number):
                problem.add(node, server, 1, 0)
        elif own := self.resources.nodes_of(group.id):
            for switch in sorted(fitting - own.keys()):  # the rack would lead to those that have a task of it
                problem.add(node, switch, 1, 0)
        else:
            problem.add(node, self._rack(built, group), wanted.tasks, 0)

    def _cheapest(self, fitting: set[int], loads: Sequence[int], number: int) -> list[int]:
        """The least loaded servers; of equally loaded ones each job begins at another."""
        start = number * self.limits.shortcuts % max(1, self.resources.topology.hosts)
        ranked = sorted(fitting, key=lambda each: (loads[each], each < start, each))
        return ranked[: self.limits.shortcuts]

    def _rack(self, built: _Built, group: TaskGroup) -> int:
        kind = _kind(group)
        if kind not in built.racks:
            built.racks[kind] = rack = len(built.problem.supply)
            built.problem.supply.append(0)
            for switch in sorted(self._fits(group)):
                built.problem.add(rack, switch, 1, 0)
        return built.racks[kind]

    def _picked(self, built: _Built, flow: Flow) -> Iterator[tuple[_Wanted, int]]:
        """Which task goes where. Any switch of a rack fits any group that sends flow into it."""
        problem, racks = built.problem, set(built.racks.values())
        into: dict[int, list[_Wanted]] = {}
        out: list[tuple[int, int]] = []
        for arc, units in enumerate(flow.flows):
            tail, head = problem.tails[arc], problem.heads[arc]
            if not units or head == self.sink:
                continue
            if head in racks:
                into.setdefault(head, []).extend([built.groups[tail]] * units)
            elif tail in racks:
                out.append((tail, head))
            else:
                yield built.groups[tail], head
        for rack, switch in out:
            yield into[rack].pop(0), switch

    # -- where tasks fit -------------------------------------------------------------------------------------------
    def _fits(self, group: TaskGroup) -> set[int]:
        """Nodes on which a task of the group's kind fits now, the group's own tasks left aside."""
        kind = _kind(group)
        self._used[kind] = self._rounds
        if kind not in self._fitting:
            self._fitting[kind] = {node for node in self._nodes(group) if self._has_room(kind, node)}
        return self._fitting[kind]

    def _has_room(self, kind: _Kind, node: int) -> bool:
        service, features, demand, shared, connectivity = kind
        example = TaskGroup(("", ""), "", "", 1, demand, "", service, shared, features, connectivity)
        return self.resources.fits(example, node)

    def _refresh(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for kind in [each for each, used in self._used.items() if used < self._rounds - 1]:
            del self._used[kind], self._fitting[kind]
        for kind, fitting in self._fitting.items():
            for node in dirty:
                fitting.discard(node)
                if self._has_room(kind, node):
                    fitting.add(node)


def _kind(group: TaskGroup) -> _Kind:
    return group.service, group.features, group.demand, group.shared, group.connectivity
