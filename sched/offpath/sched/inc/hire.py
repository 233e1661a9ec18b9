"""The policy `hire`: events in, decisions out, by rounds over the flow network (HIRE §5.3). No clock, no randomness.

A round takes back flavors that did not get their places in time, builds and solves the network, chooses flavors and
starts tasks: in each round at most one task per node and at most one flavor per job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from offpath.sched.inc import cost
from offpath.sched.inc.cost import EdgeCost
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
from offpath.sched.inc.network import FlowNetwork, Limits, Picked, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.readings import HIRE, Reading
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import scarcity
from offpath.sched.inc.scheduler import Scheduler

GANG_MS: Final = 10_000
"""For how long a job may hold some of its places in vain."""


class Hire(Scheduler):
    """The policy.

    ``preempt_ms``: a chosen flavor that did not get all its places by then is taken back. ``gang_ms``: a job that holds
    some of its places for that long without getting another gives all of them up, so that two half-placed jobs do not
    wait for each other forever; None: never, as in the paper's heuristic.
    """

    def __init__(
        self,
        resources: Resources,
        reading: Reading = HIRE,
        limits: Limits | None = None,
        *,
        preempt_ms: int = cost.UPPER_MS,
        gang_ms: int | None = GANG_MS,
    ) -> None:
        super().__init__(resources)
        self.limits, self.preempt_ms, self.gang_ms = limits or Limits(), preempt_ms, gang_ms
        self.network = FlowNetwork(resources, reading, self.limits)

    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """The network keeps what did not change."""
        self.network.changed(node, group, sign)

    def forgotten(self, job: PendingJob) -> None:
        """The network forgets the job's edges."""
        self.network.forget(job, list(self.jobs.values()))

    # -- a round ---------------------------------------------------------------------------------------------------
    def round(self, now_ms: int) -> list[Decision]:
        """Decide on all that waits. Raises: SolverMissing."""
        jobs = list(self.jobs.values())
        for job in jobs:
            job.forgive(now_ms - self.preempt_ms)
        decisions: list[Decision] = [each for job in jobs for each in self._preempt(job, now_ms)]
        decisions += self._give_up(jobs, now_ms)
        resting = [job for job in jobs if job.not_before_ms > now_ms]
        built = self.network.round([job for job in jobs if job.not_before_ms <= now_ms], now_ms)
        flow = solve(built.problem)
        picked = self.network.picked(built, flow)
        for each in picked:
            if each.of.flavor is not None:
                each.of.job.choose(each.of.group, now_ms)
                text = f"{each.of.group.implementation} on {self._name(each.node)}"
                reason = self._reason(built, each, text)
                decisions.append(FlavorChosen(each.of.job.request.job, each.of.group.composite,
                                              each.of.group.implementation, reason))  # fmt: skip
        for each in picked:  # the flavors first: whoever reads in order knows why a group starts
            decisions.append(self._place(built, each))
        for job in jobs:
            job.note_holding(now_ms)
        return decisions + list(self._postponed(built, resting))

    def _place(self, built: Round, picked: Picked) -> Placed:
        job, group, node = picked.of.job, picked.of.group, picked.node
        reason = self._reason(built, picked, f"{group.id[1]} on {self._name(node)}")
        self._start(job, group, node)
        return Placed(group.id, node, 1, reason)

    def _reason(self, built: Round, picked: Picked, text: str) -> Reason:
        """Against the next place of the same group; if a flavor was chosen, against the job's next flavor too."""
        mine = [picked.shortcut.cost, self.network.sink_cost(picked.node)]
        others: list[list[EdgeCost]] = [
            [each.cost, self.network.sink_cost(each.node)]
            for each in picked.of.shortcuts
            if not each.is_subtree and each.node != picked.node
        ]
        if picked.of.flavor is not None:
            mine.append(picked.of.flavor)
            others = [
                [of.shortcuts[0].cost, self.network.sink_cost(of.shortcuts[0].node), of.flavor]
                for of in built.groups.values()
                if of.job is picked.of.job and of.flavor is not None and of.shortcuts
                and (of.group.composite, of.group.implementation)
                != (picked.of.group.composite, picked.of.group.implementation)
            ]  # fmt: skip
        if not others:
            return Reason(Why.ONLY, f"{text}: nothing else fits")
        next_best = min(others, key=_total)
        terms = cost.decisive(mine, next_best)
        if _total(mine) >= _total(next_best) or not terms:
            return Reason(Why.NO_CHEAPER, f"{text}: as cheap as any that was left", terms)
        return Reason(Why.CHEAPEST, f"{text}: {', '.join(name for name, _ in terms)}", terms)

    def _postponed(self, built: Round, resting: Sequence[PendingJob]) -> Iterator[Postponed]:
        """What still waits in the network, and what waits for the network."""
        for of in built.groups.values():
            is_open = of.group in of.job.materialized() or of.group in of.job.undecided()
            tasks = of.job.waiting(of.group)
            if is_open and tasks:
                yield Postponed(of.group.id, tasks, self._why_waiting(of.group, bool(of.shortcuts)))
        in_network = {of.group.id for of in built.groups.values()}
        for job in built.selectors.values():
            for group in job.undecided():
                if group.id not in in_network:  # its flavor was not offered
                    yield Postponed(group.id, job.waiting(group), self._why_waiting(group, False))
        backlog = Reason(Why.BACKLOG, f"{self.limits.groups} task groups are in the network before it")
        rest = Reason(Why.GANG, "it gave up its places, so that another job gets all of its own")
        for job, reason in [(each, backlog) for each in built.left_out] + [(each, rest) for each in resting]:
            for group in (*job.materialized(), *job.undecided()):
                yield Postponed(group.id, job.waiting(group), reason)

    def _why_waiting(self, group: TaskGroup, has_edges: bool) -> Reason:
        if has_edges:
            return Reason(Why.CROWDED, "other tasks got the places of this round, or waiting is cheaper")
        return Reason(Why.NO_ROOM, scarcity(self.resources, group))

    # -- taking back -----------------------------------------------------------------------------------------------
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


def _total(path: Sequence[EdgeCost]) -> int:
    return sum(each.total for each in path)
