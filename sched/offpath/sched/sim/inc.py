"""Drives a policy of `sched.inc` by a stream of jobs, in virtual time (HIRE §6.2).

A server task ends when its time is over. Tasks on switches serve the job: they end with its last server task, as in the
authors' simulator, so a job that waits for a switch keeps those that it has. A round takes time (`Thinking`), an
explicit parameter: its tasks start, and the next round begins, after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.inc.decisions import Decision, Placed, Postponed, Preempted, Stopped
from offpath.sched.inc.errors import Unhostable
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, PolyReq
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.sim.core import EventCore
from offpath.sched.topology.graph import Topology

MS: Final = 1_000_000
"""ns."""
PERIOD_MS: Final = 100
"""At least between two rounds."""
RETRY_MS: Final = 500
"""Between rounds while tasks wait and nothing happens."""
SAMPLE_MS: Final = 1_000
"""Between two looks at the load."""


@dataclass(frozen=True, slots=True)
class IncJob:
    """``lasts_ms``: of a task, by task group on servers; 1 or more."""

    request: PolyReq
    at_ms: int
    lasts_ms: Mapping[GroupId, int]


@dataclass(frozen=True, slots=True)
class Thinking:
    """How long a round takes: a fixed time, and so much for each task that it places and each group that waited."""

    fixed_ms: float = 0.0
    placement_ms: float = 0.0
    group_ms: float = 0.0

    def of(self, placements: int, groups: int) -> int:
        """In ms, rounded up to 1 or more."""
        return max(1, -int(-(self.fixed_ms + self.placement_ms * placements + self.group_ms * groups) // 1))


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job by its end, or by that of the simulation.

    ``alternatives``: composites with an implementation on switches and one on servers; ``on_switches``: those of them
    all of whose tasks got places on switches and beside them. ``latencies_ms``: by selected task group, from the
    submission until all its tasks run; if they never did, until the end of the simulation, and ``late`` counts it.
    ``detours``: of `additional_levels`; None: nothing of it runs on switches.
    """

    job: str
    at_ms: int
    alternatives: int
    on_switches: int
    is_placed: bool
    latencies_ms: tuple[int, ...]
    late: int
    detours: int | None

    @property
    def is_satisfied(self) -> bool:
        """Placed with something on switches (§6.2)."""
        return self.is_placed and self.on_switches > 0


@dataclass(frozen=True, slots=True)
class IncRun:
    """``jobs`` by submission. ``server_load`` and ``switch_load``: mean part in use by dimension, over the samples.
    ``preempted``: tasks stopped by the policy."""

    jobs: tuple[JobOutcome, ...]
    refused: int
    server_load: tuple[float, ...]
    switch_load: tuple[float, ...]
    rounds: int
    preempted: int


@dataclass(slots=True)
class _Live:
    """A job in the policy. ``places``: nodes on which its tasks started, also of those that have ended. ``full_ms``: by
    group, when its last task started."""

    job: IncJob
    pending: PendingJob
    places: dict[GroupId, list[int]] = field(default_factory=dict)
    full_ms: dict[GroupId, int] = field(default_factory=dict)


def simulated(
    scheduler: Scheduler, jobs: Sequence[IncJob], until_ms: int, thinking: Thinking = Thinking(), *,
    sample_from_ms: int = 0,
) -> IncRun:  # fmt: skip
    """Run ``jobs`` until ``until_ms``. ``sample_from_ms``: the load counts from then on. Deterministic.

    Raises: SchedError: a policy's placement is not valid, or a duration is below 1.
    """
    if any(lasts < 1 for each in jobs for lasts in each.lasts_ms.values()):
        raise SchedError("a task lasts 1 ms or more")
    return _Simulation(scheduler, thinking, until_ms, sample_from_ms).run(jobs)


class _Simulation:
    def __init__(self, scheduler: Scheduler, thinking: Thinking, until_ms: int, sample_from_ms: int) -> None:
        self.scheduler, self.thinking, self.until_ms = scheduler, thinking, until_ms
        self.sample_from_ms = sample_from_ms
        self.core = EventCore()
        self.live: dict[str, _Live] = {}
        self.outcomes: dict[str, JobOutcome] = {}
        self.running: dict[tuple[GroupId, int], list[int]] = {}
        self.tokens = self.refused = self.rounds = self.preempted = self.samples = 0
        self.next_ms: int | None = None
        self.free_ms = 0
        topology = scheduler.resources.topology
        self.kinds = (range(topology.hosts), range(topology.hosts, topology.nodes))
        self.loads = [[0.0] * len(scheduler.resources.capacity(kind[0])) for kind in self.kinds if len(kind)]

    @property
    def now_ms(self) -> int:
        return self.core.now_ns // MS

    def run(self, jobs: Sequence[IncJob]) -> IncRun:
        order = [each.request.job for each in jobs]
        for job in jobs:
            self.core.at(job.at_ms * MS, partial(self._submit, job))
        self.core.at(self.sample_from_ms * MS, self._sample)
        self.core.run(self.until_ms * MS)
        for name, live in self.live.items():
            self.outcomes[name] = self._outcome(live)
        loads = [tuple(each / max(1, self.samples) for each in kind) for kind in self.loads]
        return IncRun(
            tuple(self.outcomes[name] for name in order if name in self.outcomes), self.refused, loads[0],
            loads[1] if len(loads) > 1 else (), self.rounds, self.preempted,
        )  # fmt: skip

    # -- events ----------------------------------------------------------------------------------------------------
    def _submit(self, job: IncJob) -> None:
        try:
            self.scheduler.submit(job.request, self.now_ms)
        except Unhostable:
            self.refused += 1
            return
        self.live[job.request.job] = _Live(job, self.scheduler.jobs[job.request.job])
        self._wake(self.now_ms)

    def _wake(self, at_ms: int) -> None:
        """A round at ``at_ms``, or as soon as the policy is free."""
        at_ms = max(at_ms, self.free_ms)
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms
            self.core.at(at_ms * MS, lambda: self._round(at_ms))

    def _round(self, due_ms: int) -> None:
        if self.next_ms != due_ms:
            return  # another round came first
        self.next_ms = None
        waiting = sum(len(each.pending.materialized()) + len(each.pending.undecided()) for each in self.live.values())
        if not waiting:
            return
        decisions = self.scheduler.round(self.now_ms)
        self.rounds += 1
        placed = sum(isinstance(each, Placed) for each in decisions)
        took_ms = self.thinking.of(placed, waiting)
        took_ms += sum(self.thinking.of(0, groups) for groups in self.scheduler.repeated)
        self.free_ms = self.now_ms + max(took_ms, PERIOD_MS)
        touched = dict.fromkeys(self._carried_out(decisions, self.now_ms + took_ms))
        for name in touched:
            self._end_switches(self.live[name])
        if any(isinstance(each, Postponed) for each in decisions):
            self._wake(self.now_ms + (PERIOD_MS if touched else RETRY_MS))

    def _carried_out(self, decisions: Sequence[Decision], start_ms: int) -> Iterator[str]:
        """The tasks that begin then, and those that stop now; yields the jobs."""
        for each in decisions:
            if isinstance(each, Placed):
                live = self.live[each.group[0]]
                for _ in range(each.tasks):
                    self._start(live, each.group, each.node, start_ms)
                yield each.group[0]
            elif isinstance(each, Stopped):
                self.preempted += each.tasks
                self.running.pop((each.group, each.node), None)
                self._forgotten(self.live[each.group[0]], each.group)
                yield each.group[0]
            elif isinstance(each, Preempted):  # also groups all of whose tasks have ended begin anew
                live = self.live[each.job]
                for group in live.pending.request.implementation(each.composite, each.implementation):
                    self._forgotten(live, group.id)

    def _forgotten(self, live: _Live, group: GroupId) -> None:
        live.full_ms.pop(group, None)
        live.places.pop(group, None)

    def _start(self, live: _Live, group: GroupId, node: int, start_ms: int) -> None:
        places = live.places.setdefault(group, [])
        places.append(node)
        if len(places) == live.job.request.by_id[group].tasks:
            live.full_ms[group] = start_ms
        self.tokens += 1
        token = self.tokens
        self.running.setdefault((group, node), []).append(token)
        lasts_ms = live.job.lasts_ms.get(group)
        if lasts_ms is not None:
            self.core.at((start_ms + lasts_ms) * MS, lambda: self._ended(group, node, token))

    def _ended(self, group: GroupId, node: int, token: int) -> None:
        tokens = self.running.get((group, node), [])
        if token not in tokens:
            return  # it was stopped
        tokens.remove(token)
        live = self.live[group[0]]
        self.scheduler.ended(group, node)
        self._end_switches(live)
        self._wake(self.now_ms)

    def _end_switches(self, live: _Live) -> None:
        """Those of a job all of whose server tasks have ended; and the job, if it is gone."""
        name, pending = live.job.request.job, live.pending
        if name in self.scheduler.jobs and not pending.undecided() and not pending.materialized():
            selected = _selected(pending)
            on_servers = [each for each in selected if not pending.request.by_id[each].is_inc]
            if all(pending.ended.get(each, 0) == pending.request.by_id[each].tasks for each in on_servers):
                for group in selected:
                    for node, tokens in [(at, some) for (of, at), some in self.running.items() if of == group]:
                        for _ in tokens:
                            self.scheduler.ended(group, node)
                        del self.running[group, node]
        if name not in self.scheduler.jobs:
            self.outcomes[name] = self._outcome(self.live.pop(name))

    def _sample(self) -> None:
        resources = self.scheduler.resources
        self.samples += 1
        for kind, sums in zip(self.kinds, self.loads, strict=False):
            used: Counter[int] = Counter()
            capacity: Counter[int] = Counter()
            for node in kind:
                for dimension, (part, whole) in enumerate(
                    zip(resources.used(node), resources.capacity(node), strict=True)
                ):
                    used[dimension] += part
                    capacity[dimension] += whole
            for dimension in range(len(sums)):
                sums[dimension] += used[dimension] / capacity[dimension] if capacity[dimension] else 0.0
        self.core.after(SAMPLE_MS * MS, self._sample)

    # -- the result ------------------------------------------------------------------------------------------------
    def _outcome(self, live: _Live) -> JobOutcome:
        request, selected = live.job.request, set(_selected(live.pending))
        by_composite: dict[str, list[GroupId]] = {}
        for group in request.groups:
            by_composite.setdefault(group.composite, []).append(group.id)
        latencies, late = [], 0
        for groups in by_composite.values():
            mine = [each for each in groups if each in selected]
            for each in mine or groups[:1]:  # undecided: the composite waits
                full_ms = live.full_ms.get(each)
                late += full_ms is None
                latencies.append((self.until_ms if full_ms is None else full_ms) - live.job.at_ms)
        served = [composite for composite in alternatives(request)
                  if _is_served(request, by_composite[composite], selected, live.full_ms)]  # fmt: skip
        switches = [node for each in selected if request.by_id[each].is_inc for node in live.places.get(each, ())]
        servers = [node for each in selected if not request.by_id[each].is_inc for node in live.places.get(each, ())]
        levels = None
        if served and switches and servers:
            levels = additional_levels(self.scheduler.resources.topology, switches, servers)
        is_placed = not late
        return JobOutcome(request.job, live.job.at_ms, len(alternatives(request)), len(served), is_placed,
                          tuple(latencies), late, levels)  # fmt: skip


def alternatives(request: PolyReq) -> list[str]:
    """Composites that have implementations on switches and on servers."""
    kinds: dict[str, dict[str, bool]] = {}
    for each in request.groups:
        of = kinds.setdefault(each.composite, {})
        of[each.implementation] = of.get(each.implementation, False) or each.is_inc
    return [composite for composite, of in kinds.items() if len(set(of.values())) > 1]


def _selected(pending: PendingJob) -> list[GroupId]:
    return [each for each, status in pending.request.statuses(pending.active).items() if status is Status.SELECTED]


def _is_served(
    request: PolyReq, groups: Sequence[GroupId], selected: set[GroupId], full_ms: Mapping[GroupId, int]
) -> bool:
    mine = [each for each in groups if each in selected]
    return any(request.by_id[each].is_inc for each in mine) and all(each in full_ms for each in mine)


def additional_levels(topology: Topology, switches: Sequence[int], servers: Sequence[int]) -> int:
    """Switch detours (§6.2), by the rule of the authors' simulator: how many levels above the highest of ``switches``
    are needed until the servers below all of these together are all of ``servers``; each step adds the parents of the
    highest ones. 2 more if even the top of the tree does not reach them.
    """
    above = topology.above
    top = max(topology.level[node] for node in switches)
    reached, added = 0, 0
    for node in switches:
        reached |= 1 << (node - topology.hosts)
    racks = [_above_server(topology, node, above) for node in set(servers)]
    highest = max(topology.level)
    front = {node for node in switches if topology.level[node] == top}
    while not all(each & reached for each in racks):
        if top == highest:
            return added + 2
        front = {parent for node in front for parent, _ in topology.up[node]}
        for node in front:
            reached |= 1 << (node - topology.hosts)
        top, added = top + 1, added + 1
    return added


def _above_server(topology: Topology, server: int, above: Sequence[int]) -> int:
    """A bit set of the switches above it."""
    found = 0
    for parent, _ in topology.up[server]:
        found |= above[parent - topology.hosts]
    return found
