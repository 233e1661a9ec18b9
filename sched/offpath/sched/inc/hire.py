"""The policy `hire`: events in, decisions out, by rounds over the flow network (HIRE §5.3). No clock, no randomness.

A round takes back flavors that did not get their places in time, builds and solves the network, chooses flavors and
starts tasks. A network gives at most one task to a node and one flavor to a job; what got a place and still waits comes
into another network of the same round, as often as the reading says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from offpath.sched.inc import cost
from offpath.sched.inc.decisions import (
    Decision,
    FlavorChosen,
    Placed,
    Postponed,
    Preempted,
    Reason,
    Why,
)
from offpath.sched.inc.flow import solve
from offpath.sched.inc.gangs import whole
from offpath.sched.inc.network import FlowNetwork, GroupNode, Limits, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import HIRE, Reading
from offpath.sched.inc.reasons import verdicts
from offpath.sched.inc.reservations import Reservations
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scheduler import Scheduler

_CROWDED: Final = Reason(Why.CROWDED, "other tasks got the places of this round, or waiting is cheaper")
GANG_MS: Final = 10_000
"""For how long a job may hold some of its places without running."""


class Hire(Scheduler):
    """The policy.

    ``preempt_ms``: a chosen flavor that did not get all its places by then is taken back. ``gang_ms``: a job that holds
    some of its places for that long without getting another gives all of them up, so that two half-placed jobs do not
    wait for each other forever; None: never, as in the paper's heuristic. ``watch``: called at the end of each phase of
    a round with its name: prepare, cost, build, solve, decisions. A caller that has a clock can measure them.
    """

    def __init__(
        self,
        resources: Resources,
        reading: Reading = HIRE,
        limits: Limits | None = None,
        *,
        preempt_ms: int = cost.UPPER_MS,
        gang_ms: int | None = GANG_MS,
        watch: Callable[[str], None] = lambda phase: None,
    ) -> None:
        super().__init__(resources)
        self.limits, self.preempt_ms, self.gang_ms = limits or Limits(), preempt_ms, gang_ms
        self.watch = watch
        self.network = FlowNetwork(resources, reading, self.limits)
        self.reservations = Reservations(resources)

    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """The network keeps what did not change."""
        self.network.changed(node, group, sign)

    def forgotten(self, job: PendingJob) -> None:
        """The network forgets the job's edges."""
        self.network.forget(job)

    # -- a round ---------------------------------------------------------------------------------------------------
    def round(self, now_ms: int) -> list[Decision]:
        """Decide on all that waits. Raises: SolverMissing."""
        decisions = self.take_back(now_ms)
        jobs = list(self.jobs.values())
        if self.network.reading.is_reserving:
            self.reservations.renew(jobs, now_ms)
            self.network.reserve(self.reservations.current)
        resting = [job for job in jobs if job.not_before_ms > now_ms]
        able = [job for job in jobs if job.not_before_ms <= now_ms]
        self.watch("prepare")
        self.repeated = []
        held = self._held(able)
        first, made = self._pass(able, able, now_ms, held)
        decisions += made
        latest, groups = _by_id(first), len(first.groups)
        for _ in range(self.network.reading.passes - 1):
            again = self._again(able, made, held, groups)
            if not again:
                break
            held = frozenset()
            built, made = self._pass(again, able, now_ms, held)
            decisions += made
            latest |= _by_id(built)
            groups += len(built.groups)
            self.repeated.append(len(built.groups))
        for job in jobs:
            job.note_holding(now_ms)
        out = {job.number for job in (*first.left_out, *resting)}
        decisions += self._postponed([job for job in able if job.number not in out], latest)
        decisions += self._outside(first.left_out, resting)
        self.watch("decisions")
        return decisions

    def _held(self, able: Sequence[PendingJob]) -> frozenset[int]:
        """Jobs whose tasks on servers wait for the second pass, so that they come near the switches of the first: those
        with an open choice. None if there is no room for two passes of all groups."""
        if not self.network.reading.is_switch_first:
            return frozenset()
        groups = 0
        for job in able:
            groups += len(job.materialized()) + len(job.undecided())
            if 2 * groups > self.limits.groups:
                return frozenset()
        return frozenset(job.number for job in able if job.undecided() and job.materialized())

    def _again(
        self, able: Sequence[PendingJob], made: Sequence[Decision], held: Collection[int], groups: int
    ) -> list[PendingJob]:
        """Jobs of another pass: those that got a place in the last one and still wait, and ``held`` ones. None if a
        round with them had more groups than one network may have; ``groups``: in its networks so far."""
        served = {each.group[0] for each in made if isinstance(each, Placed)}
        found = []
        for job in able:
            if job.request.job in served or job.number in held:
                count = len(job.materialized()) + len(job.undecided())
                groups += count
                if groups > self.limits.groups:
                    return []
                if count:
                    found.append(job)
        return found

    def _pass(
        self, jobs: Sequence[PendingJob], able: Sequence[PendingJob], now_ms: int, held: Collection[int]
    ) -> tuple[Round, list[Decision]]:
        """One network of these jobs: at most one task per node from its flow, and at most one flavor per job. ``able``:
        all jobs of the round."""
        prepared = self.network.prepare(jobs, held)
        self.watch("cost")
        built = self.network.built(prepared, able, now_ms)
        self.watch("build")
        flow = solve(built.problem)
        self.watch("solve")
        picked = self.network.picked(built, flow)
        if self.network.reading.is_whole:
            picked = whole(self.network, built, picked)
        reasons = verdicts(self.network, built, picked)  # before anything starts: then costs are those that decided
        decisions: list[Decision] = []
        chosen: set[tuple[int, str]] = set()
        for each, reason in zip(picked, reasons, strict=True):
            of = each.of
            if of.flavor is not None and not each.is_further and (of.job.number, of.group.composite) not in chosen:
                chosen.add((of.job.number, of.group.composite))
                of.job.choose(of.group, now_ms)
                text = f"{of.group.implementation} on {self._name(each.node)}"
                decisions.append(FlavorChosen(of.job.request.job, of.group.composite, of.group.implementation,
                                              reason.about(text)))  # fmt: skip
        for each, reason in zip(picked, reasons, strict=True):
            # The flavors first: a reader in order sees why a group starts.
            group = each.of.group
            self._start(each.of.job, group, each.node)
            text = f"{group.id[1]} on {self._name(each.node)}"
            decisions.append(Placed(group.id, each.node, 1, reason.about(text)))
        self.watch("decisions")
        return built, decisions

    def _postponed(self, jobs: Sequence[PendingJob], latest: Mapping[GroupId, GroupNode]) -> Iterator[Postponed]:
        """What still waits of the jobs in the network. ``latest``: each group as of its last network; one that is not
        there is of a flavor that was not offered."""
        for job in jobs:
            for group in (*job.materialized(), *job.undecided()):
                of = latest.get(group.id)
                has_edges = of is not None and bool(of.shortcuts)
                yield Postponed(group.id, job.waiting(group), self._why_waiting(group, has_edges))

    def _outside(self, left_out: Sequence[PendingJob], resting: Sequence[PendingJob]) -> Iterator[Postponed]:
        """What waits for the network."""
        backlog = Reason(Why.BACKLOG, f"{self.limits.groups} task groups are in the network before it")
        rest = Reason(Why.GANG, "it gave up its places, so that another job gets all of its own")
        for job, reason in [(each, backlog) for each in left_out] + [(each, rest) for each in resting]:
            for group in (*job.materialized(), *job.undecided()):
                yield Postponed(group.id, job.waiting(group), reason)

    def _why_waiting(self, group: TaskGroup, has_edges: bool) -> Reason:
        if has_edges:
            return _CROWDED
        return Reason(Why.NO_ROOM, self.network.scarcity(group))

    # -- taking back -----------------------------------------------------------------------------------------------
    def take_back(self, now_ms: int) -> list[Decision]:
        """What `round` does first: take back flavors that did not get their places in time, and the places of a job
        that holds some for too long. It needs no solver."""
        jobs = list(self.jobs.values())
        for job in jobs:
            job.forgive(now_ms - self.preempt_ms)
        return [*(each for job in jobs for each in self._preempt(job, now_ms)), *self._give_up(jobs, now_ms)]

    def _preempt(self, job: PendingJob, now_ms: int) -> Iterator[Decision]:
        for composite, decided in list(job.decided.items()):
            groups = job.request.implementation(composite, decided.implementation)
            is_waiting = any(job.waiting(each) for each in groups)
            has_other = any(each.composite == composite and each.implementation != decided.implementation
                            for each in job.request.groups)  # fmt: skip
            if not (is_waiting and has_other and now_ms - decided.since_ms > self.preempt_ms):
                continue
            reason = Reason(Why.TIMED_OUT, f"not all tasks had a place within {self.preempt_ms} ms")
            yield from self._stop_all(groups, reason)
            for each in job.take_back(composite, now_ms):
                job.started.pop(each.id, None)
                job.ended.pop(each.id, None)
            yield Preempted(job.request.job, composite, decided.implementation, reason)

    def _give_up(self, jobs: Sequence[PendingJob], now_ms: int) -> Iterator[Decision]:
        """Of the jobs that hold places for too long the youngest gives up; the others get as much time again."""
        if self.gang_ms is None:
            return
        overdue = [
            job for job in jobs if job.holding_since_ms is not None and now_ms - job.holding_since_ms > self.gang_ms
        ]
        if not overdue:
            return
        reason = Reason(Why.GANG, f"some of its tasks had no place, and none got one within {self.gang_ms} ms")
        job = overdue[-1]
        yield from self._stop_all(job.request.groups, reason)
        for composite, decided in job.decided.items():
            yield Preempted(job.request.job, composite, decided.implementation, reason)
        job.release(now_ms + self.gang_ms)
        for other in overdue[:-1]:
            other.holding_since_ms = now_ms


def _by_id(built: Round) -> dict[GroupId, GroupNode]:
    return {of.group.id: of for of in built.groups.values()}
